"""`trainyard share` and `unshare`: whom they name, and what they ask the server for."""

import json

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json, listed
from tests.client.scripted import Run, everything


def test_one_audience_is_named_and_told(server: FakeServer, run: Run) -> None:
    everything(server)
    told = run("share", "model", "tiny", "--group", "course")
    assert "Group course can read the model tiny." in told.stdout
    assert "ada/tiny" in told.stdout
    assert json.loads(server.of("POST /v1/shares")[0].body) == {
        "kind": "model",
        "thing": "tiny",
        "group": "course",
    }
    for options in ((), ("--group", "course", "--everybody"), ("--person", "a", "--group", "b")):
        refused = run("share", "model", "tiny", *options)
        assert refused.exit_code == 2
        assert "Name one of --person, --group and --everybody." in refused.stderr


def test_unshare_ends_only_the_shares_that_are_meant(server: FakeServer, run: Run) -> None:
    everything(server)
    with_bob = {**d.SHARE, "id": "share_2", "audience": "person", "who": "bob"}
    other = {**d.SHARE, "id": "share_3", "name": "huge"}
    server.answer("GET /v1/shares", listed([d.SHARE, with_bob, other]))
    server.answer("DELETE /v1/shares/share_2", as_json({}))
    told = run("unshare", "model", "tiny", "--person", "bob")
    assert told.stdout.startswith("Person bob can no longer read the model tiny.")
    assert [sent.path for sent in server.asked if sent.method == "DELETE"] == ["/v1/shares/share_2"]
    refused = run("unshare", "model", "tiny", "--everybody")
    assert refused.exit_code == 2
    assert "You do not share the model tiny so." in refused.stderr


def test_lists_name_the_owner_of_what_is_shared(server: FakeServer, run: Run) -> None:
    everything(server)
    server.answer("GET /v1/models", listed([d.MODEL, {**d.MODEL, "owner": "grace"}]))
    names = [line.split()[0] for line in run("models", "list").stdout.splitlines()[1:]]
    assert "tiny" in names
    assert "grace/tiny" in names
    server.answer("GET /v1/models/model_01", as_json(d.MODEL))
    server.answer("GET /v1/models", listed([{**d.MODEL, "owner": "grace", "id": "model_01"}]))
    assert "tiny" in run("models", "show", "grace/tiny").stdout
