"""Letters with links are asked for over HTTP; nobody learns from it who has an account."""

from typing import Any

import pytest
from sqlalchemy import func, select

from core.tables.notices import LinkLetter
from tests.api.conftest import World

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def mails(world: World) -> World:
    """The application as if a mail server were set up."""
    object.__setattr__(
        world.process, "settings", world.process.settings.model_copy(update={"smtp_host": "mail"})
    )
    return world


def letters(world: World) -> list[tuple[Any, ...]]:
    with world.database.read() as session:
        rows = session.scalars(select(LinkLetter).order_by(LinkLetter.id))
        return [(str(row.kind), row.address) for row in rows]


def test_without_a_mail_server_it_is_said(world: World) -> None:
    for client, path, body in (
        (world.nobody, "/v1/password-letters", {"email": "ann@example.org"}),
        (world.admin, "/v1/users/ann/password-letter", None),
        (world.admin, "/v1/users/import", {"csv": "name\nkim\n", "mail": True}),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "no_mail"), path
    assert letters(world) == []


def test_everybody_gets_the_same_answer_and_an_address_one_letter(mails: World) -> None:
    world = mails
    world.admin.patch("/v1/users/ann", json={"email": "ann@example.org"}).raise_for_status()
    answers = [
        world.nobody.post("/v1/password-letters", json={"email": email})
        for email in ("ann@example.org", "Ann@example.org", "nobody@example.org")
    ]
    assert {(one.status_code, one.text) for one in answers} == {(202, answers[0].text)}
    assert letters(world) == [("password", "ann@example.org"), ("password", "nobody@example.org")]
    wrong = world.nobody.post("/v1/password-letters", json={"email": "no address"})
    assert (wrong.status_code, wrong.json()["param"]) == (422, "email")


def test_staff_mail_links_and_invitations_and_others_do_not(mails: World) -> None:
    world = mails
    path = "/v1/users/bob/password-letter"
    assert world.ann.post(path).status_code == 403
    missing = world.admin.post(path)
    assert (missing.status_code, missing.json()["code"]) == (422, "no_address")
    text = "name,email\nkim,kim@example.org\nlee,\n"
    dry = {"csv": text, "mail": True, "dry_run": True}
    assert world.admin.post("/v1/users/import", json=dry).is_success
    assert letters(world) == []
    assert world.admin.post("/v1/users/import", json={"csv": text, "mail": True}).is_success
    invite = world.admin.post("/v1/invites", json={"email": "new@example.org"}).json()["id"]
    assert world.admin.post(f"/v1/invites/{invite}/letter").status_code == 202
    assert world.bob.post(f"/v1/invites/{invite}/letter").status_code == 404
    assert letters(world) == [("password", "kim@example.org"), ("invitation", "new@example.org")]
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(LinkLetter)) == 2
