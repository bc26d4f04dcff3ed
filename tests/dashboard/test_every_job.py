"""The page of every kind of job in every state: nothing on it assumes a recipe, or a start."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, expect
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.clock import utc_now
from core.states import AttemptState, JobState, Outcome
from core.tables.jobs import Attempt, Job
from tests.dashboard import stage as stages
from tests.dashboard.conftest import Chrome, opened
from tests.dashboard.stage import Stage
from tests.running import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = """
name: program
script: {entry: train.py, code: %s, arguments: [--lr, "3e-4"], launcher: torchrun}
resources: {nodes: 1, ranks_per_node: 2, wall_time: 1h}
"""
KINDS = {
    "recipe": (EXAMPLES / "gpt-ddp.yaml").read_text(),
    "images": (EXAMPLES / "digits-cnn.yaml").read_text(),
    "two-nodes": (EXAMPLES / "gpt-two-nodes.yaml").read_text(),
    "fine-tuning": (EXAMPLES / "llama-fine-tuning.yaml").read_text(),
    "program": PROGRAM % ("ab" * 32),
}
OUTCOMES = {
    JobState.QUEUED: None,
    JobState.RUNNING: None,
    JobState.SUCCEEDED: Outcome.SUCCEEDED,
    JobState.FAILED: Outcome.USER_ERROR,
    JobState.CANCELLED: Outcome.CANCELLED,
    JobState.PAUSED: Outcome.PAUSED,
}
ALSO = {
    ("two-nodes", JobState.RUNNING),
    ("fine-tuning", JobState.PAUSED),
    ("program", JobState.RUNNING),
}
"""Of other kinds than a recipe, which is tried in every state."""


@pytest.fixture(scope="module")
def stage(stage: Stage) -> Stage:
    """A platform with a job of every kind in every state."""
    with stage.database.write() as session:
        for kind in KINDS:
            for state in OUTCOMES:
                add(stage, session, kind, state)
        add(stage, session, "recipe", JobState.PAUSED, name="of-a-newer-version")
        unread = session.get_one(Job, stage.jobs["of-a-newer-version"])
        unread.spec = {**unread.spec, "newer": 1}
        unread.plan = {**unread.plan, "newer": 1}
    return stage


@pytest.fixture(scope="module")
def page(stage: Stage, chrome: Chrome) -> Iterator[Page]:
    """Ada's page, one for all jobs: scripts and styles are read once."""
    yield from opened(stage, chrome, "ada")


def add(stage: Stage, session: Session, kind: str, state: JobState, *, name: str = "") -> None:
    """A job that was never started, or one with a try: lines of its ranks, one step of a recipe."""
    now = utc_now()
    is_over = state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    job = stages.add_job(
        stage,
        session,
        KINDS[kind],
        hardware=stages.CPU,
        state=state,
        reason=f"It is {state}.",
        finished_at=now if is_over else None,
        spec={"name": name or f"{kind}-{state}"},
    )
    if state is JobState.QUEUED:
        return
    outcome = OUTCOMES[state]
    nodes = yaml.safe_load(KINDS[kind])["resources"]["nodes"]
    attempt = stages.add_attempt(
        stage,
        session,
        job,
        node="cpu-01",
        others=["east-01"][: nodes - 1],
        start=now - timedelta(minutes=1),
        end=now if outcome else None,
        outcome=outcome,
        reason=job.reason,
    )
    for rank in range(2):
        lines = [f"rank {rank} of {job.name} says hello", "ValueError: the last line"]
        stages.add_log(session, attempt, lines, rank=rank)
    if kind != "program":
        started = now - timedelta(minutes=1)
        stages.add_metrics(session, attempt, stages.curve(20, step_s=1, tokens=64, start=started))
        job.last_step, job.last_loss, job.last_tokens_per_s = 20, 4.2, 64.0


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        pytest.param(kind, state, marks=marks)
        for kind in KINDS
        for state in OUTCOMES
        for marks in ([] if kind == "recipe" or (kind, state) in ALSO else [pytest.mark.slow],)
    ],
)
def test_the_page_is_whole(stage: Stage, page: Page, kind: str, state: JobState) -> None:
    page.goto(f"/jobs/{stage.jobs[f'{kind}-{state}']}")
    expect(page.locator("#head .badge")).to_have_text(state)
    text = page.inner_text("main")
    for never in ("NaN", "undefined", "Infinity", "null"):
        assert never not in text
    lines = page.locator("[data-log] li")
    assert page.locator("#failure").is_visible() == (state is JobState.FAILED)
    if state is JobState.QUEUED:
        page.click("[data-job-tabs] >> text=Logs")
        expect(page.locator("[data-log-empty]")).to_be_visible()
        return
    if kind != "program":
        page.locator("[data-chart=loss] canvas").wait_for()
    lines.nth(3).wait_for(state="attached")
    expect(lines.filter(has_text=f"rank 1 of {kind}-{state} says hello")).to_have_count(1)
    page.keyboard.press("e")
    page.locator("[data-log] li:focus", has_text="ValueError").wait_for()
    page.click("[data-job-tabs] >> text=Charts")
    if kind == "program":
        expect(page.locator("[data-chart]:visible"), "there is no data").to_have_count(0)
    else:
        page.locator("[data-chart=parts] canvas").wait_for()


def test_a_report_is_chosen_while_the_job_runs_and_is_there_once_it_has_ended(
    stage: Stage, page: Page
) -> None:
    with stage.database.write() as session:
        add(stage, session, "recipe", JobState.RUNNING, name="to-report")
    job_id = stage.jobs["to-report"]
    page.goto(f"/jobs/{job_id}")
    page.click("#report summary")
    page.click("text=Write it when it has ended")
    expect(page.locator("#head .tag >> nth=0")).to_have_text("report when ended")
    page.click("#report summary")
    page.click("text=Don't write it")
    expect(page.locator("text=report when ended")).to_have_count(0)
    page.click("#report summary")
    page.click("text=Write it when it has ended")
    page.locator("#line[data-line=live]").wait_for()
    with stage.database.write() as session:
        now = utc_now()
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == job_id)).one()
        attempt.state, attempt.outcome, attempt.ended_at = (
            AttemptState.EXITED,
            Outcome.SUCCEEDED,
            now,
        )
        job = session.get_one(Job, job_id)
        job.state, job.finished_at = JobState.SUCCEEDED, now
    page.click("#head a.btn:text-is('Report')")  # without a reload
    expect(page.locator("h1")).to_have_text("to-report")
    page.goto("/account")
    page.click("text=The report of your job is written")
    expect(page.locator("h1")).to_have_text("to-report")


def test_the_page_of_a_job_that_this_version_cannot_read_has_its_lines(
    stage: Stage, page: Page
) -> None:
    page.goto(f"/jobs/{stage.jobs['of-a-newer-version']}")
    page.locator("[data-chart=loss] canvas").wait_for()
    page.click("[data-job-tabs] >> text=Logs")
    page.locator("[data-log] li", has_text="rank 1 of of-a-newer-version says hello").wait_for()


COLOURED = """
(canvas) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    const colour = data.slice(at, at + 3);
    if (data[at + 3] > 99 && Math.max(...colour) - Math.min(...colour) > 50) found += 1;
  }
  return found;
}
"""


def test_the_parts_of_a_single_look_are_seen(stage: Stage, page: Page) -> None:
    """Step 20 is the only one of a short job that is looked into: a point, for it makes no line."""
    page.goto(f"/jobs/{stage.jobs['recipe-succeeded']}#charts")
    canvas = page.locator("[data-chart=parts] canvas")
    wait_for(lambda: canvas.evaluate(COLOURED) > 40, what="four points", every_s=0.1)
