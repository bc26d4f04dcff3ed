"""Uploads in a real browser: they go on after a break and after a reload, and say what is wrong."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, Route, expect

from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MIB = 1 << 20
BROKEN = "ERR_FAILED|ERR_INTERNET_DISCONNECTED"
PARTS = re.compile(r"/v1/uploads/[^/]+$")


@pytest.fixture
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """Ada's page."""
    yield from opened(stage, chrome, "ada")


@pytest.fixture
def api(stage: Stage) -> Iterator[httpx2.Client]:
    """The API, for ada."""
    headers = {"Authorization": f"Bearer {stage.secrets['ada']}"}
    with httpx2.Client(base_url=stage.url, headers=headers) as client:
        yield client


def large(folder: Path) -> Path:
    """A text of 20 MiB: three parts."""
    path = folder / "large corpus.txt"
    path.write_bytes((b"the same line again and again\n" * MIB)[: 20 * MIB])
    return path


class Connection:
    """The connection of a page, on which parts are counted and broken."""

    def __init__(self, page: Page, *, breaks: set[int]) -> None:
        self.offsets: list[int] = []
        self.breaks = breaks
        page.route(PARTS, self._pass)

    def _pass(self, route: Route) -> None:
        if route.request.method != "PATCH":
            route.continue_()
            return
        self.offsets.append(int(route.request.headers["upload-offset"]))
        if len(self.offsets) in self.breaks:
            route.abort("failed")
        else:
            route.continue_()


def test_a_broken_upload_goes_on_and_so_does_one_after_a_reload(
    page: Page, api: httpx2.Client, chrome: Chrome, tmp_path: Path
) -> None:
    file = large(tmp_path)
    page.goto("/datasets")
    broken = Connection(page, breaks={2, *range(4, 99)})
    page.set_input_files("#file", file)
    expect(page.locator("#name")).to_have_value("large-corpus")
    page.click("text=Upload >> nth=-1")
    expect(page.locator("[data-upload-answer]")).to_contain_text("The server can't be reached.")
    expect(page.locator("[data-upload-answer]")).to_contain_text("80 % have", timeout=20_000)
    expect(page.locator("[data-upload-bar]")).to_have_attribute("aria-valuenow", "80")
    assert broken.offsets[:4] == [0, 8 * MIB, 8 * MIB, 16 * MIB]

    page.reload()  # still without a connection, or what waits would go on
    page.unroute_all()
    expect(page.locator("[data-broken-off]")).to_contain_text(
        re.compile(r"large-corpus\.txt\s+16\.0\s?MiB of 20\.0")
    )
    again = Connection(page, breaks=set())
    page.set_input_files("#file", file)
    with page.expect_navigation():
        page.click("text=Upload >> nth=-1")
    assert again.offsets == [16 * MIB, 20 * MIB]
    expect(page.get_by_role("link", name="large-corpus", exact=True)).to_be_visible()
    made = api.get("/v1/datasets/large-corpus").json()
    assert (made["size"], made["format"]) == (20 * MIB, "text")
    assert api.get("/v1/uploads").json()["data"] == []
    expect(page.locator("[data-broken-off]")).to_have_count(0)
    chrome.forgive(BROKEN)


def test_mistakes_are_told_and_several_files_are_one_dataset(
    page: Page, api: httpx2.Client, tmp_path: Path
) -> None:
    shards = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"]
    shards[0].write_text('{"text": "one"}\n{"text": 2}\n')
    shards[1].write_bytes(gzip.compress(b'{"text": "three"}\n'))
    page.goto("/datasets")
    page.set_input_files("#file", shards)
    expect(page.locator("#format")).to_have_value("jsonl")
    page.click("text=Upload >> nth=-1")
    answer = page.locator("[data-upload-answer]")
    expect(answer).to_contain_text('line 2 has no "text" that is a string')
    shards[0].write_text('{"text": "one"}\n{"text": "two"}\n')
    page.fill("#name", "python-stdlib")
    page.set_input_files("#file", shards)
    page.click("text=Upload >> nth=-1")
    expect(answer).to_contain_text("python-stdlib is built in")
    page.fill("#name", "shards")
    with page.expect_navigation():  # the files are there: only the dataset is made
        page.click("text=Upload >> nth=-1")
    made = api.get("/v1/datasets/shards").json()
    assert [file["path"] for file in made["files"]] == ["a.jsonl", "b.jsonl.gz"]
    assert made["lines"] == 3


def test_files_are_put_into_the_folder_that_is_shown(
    page: Page, api: httpx2.Client, tmp_path: Path
) -> None:
    names = ["notes & more.txt", "été.bin"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 1000)
    api.post("/v1/workspace/files", params={"path": "results/old.txt"}, content=b"x")
    page.goto("/workspace?below=results")
    page.set_input_files("#file", [tmp_path / name for name in names])
    with page.expect_navigation():
        page.click("text=Put here")
    assert page.url.endswith("/workspace?below=results")
    for name in names:
        expect(page.get_by_role("link", name=name)).to_be_visible()
        kept = api.get("/v1/workspace/content", params={"path": f"results/{name}"})
        assert kept.content == name.encode() * 1000


@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_forms_work_without_scripts(
    stage: Stage, chrome: Chrome, api: httpx2.Client, tmp_path: Path, is_large: bool
) -> None:
    file = tmp_path / "a plain file.txt"
    file.write_bytes(b"one, two, three\n" * (33 * MIB // 16 if is_large else 20_000))
    context = chrome.new_context(
        base_url=stage.url, storage_state=stage.storage("ada"), java_script_enabled=False
    )
    page = context.new_page()
    page.goto("/datasets")
    page.set_input_files("#file", file)
    page.fill("#name", "plain")
    page.click("text=Upload >> nth=-1")
    if is_large:
        expect(page.locator("body")).to_contain_text("at most 33,554,432 bytes")
        chrome.forgive("status of 413")
    else:
        assert api.get("/v1/datasets/plain").json()["size"] == 320_000
        expect(page.get_by_role("link", name="plain", exact=True)).to_be_visible()
        page.set_input_files("#file", file)
        page.fill("#name", "plain")
        page.click("text=Upload >> nth=-1")
        expect(page.locator("main")).to_contain_text("you already have a dataset plain")
        api.post("/v1/workspace/files", params={"path": "a folder/old.txt"}, content=b"x")
        page.goto("/workspace?below=a folder")
        page.set_input_files("#file", file)
        page.click("text=Put here")
        page.wait_for_url("**/workspace?below=a+folder")
        kept = api.get("/v1/workspace/content", params={"path": "a folder/a plain file.txt"})
        assert kept.content == file.read_bytes()
    context.close()


def test_strangers_send_no_files(stage: Stage) -> None:
    with httpx2.Client(base_url=stage.url) as stranger:
        for path in ("/datasets", "/workspace/files"):
            sent = stranger.post(path, files={"file": ("a.txt", b"abc")}, data={"name": "a"})
            assert (sent.status_code, sent.headers["location"]) == (303, "/login")
