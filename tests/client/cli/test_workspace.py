"""`trainyard workspace show`: what lies in the site's shared folder."""

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json
from tests.client.scripted import Run, everything


def test_the_sites_folder_is_shown_by_what_lies_at_its_top(server: FakeServer, run: Run) -> None:
    everything(server)
    shared = {"used": 4096, "files": 14, "is_whole": False, "seen_at": d.NOW}
    shared["top"] = [
        {"path": "runs", "kind": "folder", "size": 4000, "files": 12},
        {"path": "notes.md", "kind": "file", "size": 96, "files": 0},
    ]
    seen = {**d.WORKSPACE, "shared": shared, "shared_classes": ["cpu2"]}
    server.answer("GET /v1/workspace", as_json(seen))
    told = run("workspace", "show").stdout
    assert "at least 4.0 KiB of 10.0 GiB, 14 of 100,000 files and folders" in told
    rows = [line.split() for line in told.splitlines()[-2:]]
    assert rows == [["runs/", "3.9", "KiB", "12"], ["notes.md", "96", "B", "0"]]

    server.answer("GET /v1/workspace", as_json({**seen, "shared": None}))
    told_nothing = run("workspace", "show")
    assert "No program of yours has used it there yet." in told_nothing.stderr
