"""The page of one's workspace: what it holds, its files, going back."""

from starlette.testclient import TestClient

from api.workspaces.schemas import SharedEntryView, SharedUseView, WorkspaceWriterView
from core.wire.workspace_tree import EntryKind
from tests.dashboard.fake_api import ENTRY, NOW, SNAPSHOT, WORKSPACE, FakeApi, refusal


def test_it_shows_the_quota_the_files_and_the_snapshots(api: FakeApi, page: TestClient) -> None:
    folder = {"path": "my notes", "kind": EntryKind.FOLDER, "sha256": None, "modified_at": None}
    api.put("/v1/workspace/files", [ENTRY, ENTRY.model_copy(update=folder)])
    api.put("/v1/workspace/snapshots", [SNAPSHOT])
    text = page.get("/workspace").text
    assert 'href="/v1/workspace/content?path=my%20notes/%C3%A9t%C3%A9.txt"' in text
    assert text.index("/workspace?below=my%20notes") < text.index("\xe9t\xe9.txt")
    assert f'action="/workspace/snapshots/{SNAPSHOT.id}/restore"' in text
    assert "1 file left out" in text
    assert text.count('role="meter"') == 2
    assert "the next program that brings it may write" in text


def test_it_says_who_writes_and_what_is_wrong(api: FakeApi, page: TestClient) -> None:
    writer = WorkspaceWriterView(job=SNAPSHOT.job or "", name="gpt-ddp", epoch=1, since=NOW)
    trouble = "The workspace was not kept, because it holds 11.0 GiB of at most 10.0 GiB."
    api.put("/v1/workspace", WORKSPACE.model_copy(update={"writer": writer, "trouble": trouble}))
    text = page.get("/workspace").text
    assert f'<a href="/jobs/{SNAPSHOT.job}"><bdi>gpt-ddp</bdi></a> writes to it' in text
    assert trouble in text
    assert "Nothing here" in text


def test_it_shows_what_lies_in_the_sites_folder(api: FakeApi, page: TestClient) -> None:
    top = [SharedEntryView(path="runs <1>", kind=EntryKind.FOLDER, size=4096, files=12)]
    shared = SharedUseView(used=4096, files=13, is_whole=False, top=top, seen_at=NOW)
    update = {"shared": shared, "shared_classes": ["cpu2"]}
    api.put("/v1/workspace", WORKSPACE.model_copy(update=update))
    text = page.get("/workspace").text
    assert "<p>at least 4.0<" in text
    assert "13 of 100,000 files and folders" in text
    assert "<bdi>runs &lt;1&gt;</bdi>/" in text


def test_a_folder_is_walked_into_and_back(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/workspace/files", [ENTRY])
    text = page.get("/workspace", params={"below": "a b/c"}).text
    assert api.sent("GET", "/v1/workspace/files").query["below"] == ["a b/c"]
    assert 'href="/workspace?below=a%20b"' in text


def test_deleting_and_going_back_ask_the_api_and_tell_its_refusal(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/workspace/files", SNAPSHOT, method="DELETE")
    gone = page.post(
        "/workspace/delete", data={"path": "my%20notes/%C3%A9"}, follow_redirects=False
    )
    assert (gone.status_code, gone.headers["location"]) == (303, "/workspace")
    assert api.sent("DELETE", "/v1/workspace/files").query["path"] == ["my notes/\xe9"]
    path = f"/v1/workspace/snapshots/{SNAPSHOT.id}/restore"
    busy = "mine (job_1) writes to your workspace now."
    api.put(path, refusal(409, busy), method="POST")
    refused = page.post(f"/workspace/snapshots/{SNAPSHOT.id}/restore")
    assert refused.status_code == 409
    assert busy in refused.text
