"""What the command line can do and the pages too: people, nodes, exceptions, programs, studies,
agendas, models."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from sqlalchemy import select

from core.base.clock import utc_now
from core.policy.grid import hour_ceiling
from core.tables.people import Link, User
from tests.api.files.test_models import files
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage
from trainyard import Trainyard

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

PEOPLE = "name,email,lab\nkim,kim@example.org,course-ml\nlee,,course-ml\n"
JOB = """\
name: tiny
model: {name: gpt, layers: 2, width: 32, heads: 2}
data: {dataset: python-stdlib, tokenizer: bytes, sequence_length: 32}
training: {steps: 4, global_batch_size: 4, learning_rate: 1.0e-3, seed: 1}
resources: {ranks_per_node: 1, wall_time: 2min}
"""
AGENDA = """\
name: two
common:
  model: {name: gpt, layers: 2, width: 32, heads: 2}
  data: {dataset: python-stdlib, tokenizer: bytes, sequence_length: 32}
  training: {steps: 4, global_batch_size: 4, learning_rate: 1.0e-3, seed: 1}
  resources: {ranks_per_node: 1, wall_time: 2min}
jobs: [{name: first}, {name: second}]
"""


@pytest.fixture
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """The administrator's."""
    yield from opened(stage, chrome, "ada")


def names(stage: Stage) -> set[str]:
    with stage.database.read() as session:
        return set(session.scalars(select(User.name)))


def test_a_list_of_people_is_shown_before_it_is_imported_and_a_bad_one_changes_nothing(
    stage: Stage, page: Page, tmp_path: Path
) -> None:
    page.goto("/admin/people")
    page.click("a:has-text('Import a list')")
    before = names(stage)
    page.fill("#csv", f"{PEOPLE}Max!,x,course-ml\n")
    page.click("button:has-text('Check')")
    expect(page.locator("main")).to_contain_text("line 4, name")
    assert names(stage) == before

    (tmp_path / "people.csv").write_text(PEOPLE)
    page.set_input_files("[data-list-file]", tmp_path / "people.csv")
    expect(page.locator("#csv")).to_have_value(PEOPLE)
    page.click("button:has-text('Check')")
    expect(page.locator(".reason")).to_contain_text("2 to add, 0 to change")
    expect(page.locator("section[aria-label='What happens'] tbody tr")).to_have_text(
        [re.compile(r"2\s*kim\s*add"), re.compile(r"3\s*lee\s*add")]
    )
    expect(page.locator("main")).to_contain_text("New labs: course-ml")
    assert names(stage) == before

    page.click("button:has-text('Import 2')")
    expect(page.locator(".reason")).to_contain_text("2 added")
    assert names(stage) == before | {"kim", "lee"}
    links = page.input_value("[aria-label='Links as CSV']").splitlines()
    assert [line.split(",")[0] for line in links] == ["name", "kim", "lee"]
    with stage.database.read() as session:
        assert len(session.scalars(select(Link)).all()) == 2
    page.goto(links[1].split(",")[1])
    expect(page.locator("main")).to_contain_text("Set a new password")


def test_the_token_of_a_node_is_shown_once_with_the_command(page: Page) -> None:
    page.goto("/nodes")
    page.click("a:has-text('Enrol a node')")
    page.fill("#name", "307G3Q3")
    page.click("button:has-text('Make a token')")
    command = page.input_value("[aria-label='The command']")
    assert "TRAINYARD_ENROL_TOKEN=ty_" in command
    assert command.endswith("trainyard worker")
    page.goto("/nodes/enrol")
    expect(page.locator("[aria-label='The command']")).to_have_count(0)
    page.fill("#name", "no such name")
    page.click("button:has-text('Make a token')")
    expect(page.locator("[role=alert]")).to_contain_text("name")


def test_an_exception_is_granted_and_taken_back(page: Page, chrome: Chrome) -> None:
    page.goto("/admin/grants")
    for field, value in (
        ("user", "nobody-here"),
        ("rule", "quota_main"),
        ("starts_at", "2027-01-25T08:00"),
        ("ends_at", "2027-01-26T08:00"),
        ("why", "was ill"),
    ):
        page.fill(f"#{field}", value)
    page.click("button:has-text('Grant')")
    expect(page.locator("[role=alert]")).to_contain_text("nobody-here")
    chrome.forgive("404")  # the answer to a person who is not there
    page.fill("#user", "ada")
    page.click("button:has-text('Grant')")
    expect(page.locator("section[aria-label=Exceptions]")).to_contain_text("was ill")
    page.click("button:has-text('Take back')")
    expect(page.locator("section[aria-label=Exceptions]")).to_contain_text("taken back")


def test_a_program_of_one_file_is_submitted(stage: Stage, page: Page, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import sys\nprint('hello', sys.argv)\n")
    page.goto("/jobs")
    late: list[Route] = []
    page.route("**/new_program.js", lambda route: late.append(route))
    page.click("a:has-text('New program')")
    page.set_input_files("[data-program-file]", tmp_path / "hello.py")  # before its script is there
    expect(page.locator("#text")).to_have_value("")
    late.pop().continue_()
    expect(page.locator("#text")).to_have_value(re.compile("hello"))
    page.fill("#arguments", "--name 'a b'")
    page.fill("#ranks", "2")
    page.click("button:has-text('Submit')")
    expect(page.locator("[role=alert]")).to_contain_text("launcher python starts one rank")
    page.fill("#ranks", "1")
    page.click("button:has-text('Submit')")
    page.wait_for_url("**/jobs/job_*")
    with Trainyard(stage.url, stage.secrets["ada"]) as ada:
        spec = ada.jobs.get(page.url.rpartition("/")[2]).spec
    assert spec["script"]["entry"] == "hello.py"
    assert spec["script"]["arguments"] == ["--name", "a b"]


def test_a_program_of_a_folder_is_submitted(stage: Stage, page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    for path, content in (
        ("aaa.py", "A = 1\n"),
        ("main.py", "from parts.model import B\n"),
        ("parts/model.py", "B = 2\n"),
        ("parts/__pycache__/model.pyc", "x"),
        (".env", "SECRET=1"),
        ("picture.bin", "a\0b"),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    page.goto("/programs/new")
    page.set_input_files("#program-folder", folder)
    expect(page.locator("#text")).to_have_value(re.compile(r"parts\.model"))
    expect(page.locator("#entry")).to_have_value("main.py")
    expect(page.locator("[data-program-told]")).to_contain_text("picture.bin")
    listed = "[aria-label='Files beside it'] bdi"
    assert sorted(page.locator(listed).all_inner_texts()) == ["aaa.py", "parts/model.py"]
    page.click("[aria-label='Files beside it'] li:has-text('aaa.py') button")
    page.fill("#ranks", "0")
    page.click("button:has-text('Submit')")  # what is refused keeps the files
    assert page.inner_text("[role=alert]")
    expect(page.locator(listed)).to_have_text(["parts/model.py"])
    page.fill("#ranks", "1")
    page.click("button:has-text('Submit')")
    page.wait_for_url("**/jobs/job_*")
    with Trainyard(stage.url, stage.secrets["ada"]) as ada:
        spec = ada.jobs.get(page.url.rpartition("/")[2]).spec
        paths = ada.code.get(spec["script"]["code"]).paths
    assert spec["script"]["entry"] == "main.py"
    assert sorted(paths) == ["main.py", "parts/model.py"]


def test_a_study_and_an_agenda_are_submitted(stage: Stage, page: Page) -> None:
    page.goto("/studies")
    page.click("a:has-text('New study')")
    page.fill("#spec", JOB)
    page.fill("#ranks", "none")
    page.click("button:has-text('Submit')")
    expect(page.locator("[role=alert]")).to_contain_text("ranks")
    page.fill("#ranks", "1,2")
    page.click("button:has-text('Submit')")
    page.wait_for_url("**/studies/study_*")

    with Trainyard(stage.url, stage.secrets["ada"]) as ada:
        lease = ada.leases.book(hour_ceiling(utc_now()) + timedelta(hours=3), 1, node="north-01").id
    page.goto("/agendas")
    page.click("a:has-text('New agenda')")
    page.fill("#spec", AGENDA)
    page.select_option("#lease", lease)
    page.click("button:has-text('Check')")
    expect(page.locator("section[aria-label=Timetable] tbody tr")).to_have_count(2)
    page.click("button:has-text('Submit')")
    page.wait_for_url("**/agendas/agenda_*")
    expect(page.locator("h1")).to_have_text("two")


def test_a_model_is_uploaded_from_its_folder(page: Page, tmp_path: Path) -> None:
    for name, content in {**files(), "README.md": b"not needed"}.items():
        (tmp_path / name).write_bytes(content)
    page.goto("/models")
    page.set_input_files("#file", [tmp_path / "config.json"])
    page.fill("#name", "tiny")
    page.click("button:has-text('Upload')")
    page.wait_for_selector("[data-upload-answer] :text('config.json and model.safetensors')")
    page.set_input_files("#file", sorted(tmp_path.iterdir()))
    page.click("button:has-text('Upload')")
    page.wait_for_selector("table :text('tiny')")


def test_a_forgotten_password_without_a_mail_server_is_said(page: Page) -> None:
    page.goto("/forgotten-password")
    page.fill("#email", "ada@example.org")
    page.click("button:has-text('Send the link')")
    expect(page.locator("[role=alert]")).to_contain_text("No mail server is set up")
