"""Time until a job's page is painted in headless Chromium, with many and with few stored points.

The API answers from this process, so server, browser and database share the machine.
"""

import os
import statistics
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from api.records import metric_store
from api.records.metric_store import BLOCKS, Points
from core.base.clock import utc_now
from core.states import JobState, Outcome
from tests import chromium
from tests.dashboard import stage as stages
from tests.dashboard.stage import Stage

KEYS = ("loss", "lr", "grad_norm", "tokens_per_s", "step_time_s", "data_time_s", "mfu", "time")
FEW, MANY = 1_000, 1_000_000
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
FLAGS = ["--disable-gpu", "--disable-background-networking", "--no-first-run"]

Seen = tuple[float, float]
"""Milliseconds from the click to the first paint, and to the drawn curve."""


def rows(*, pairs: int) -> list[tuple[str, str, str]]:
    """Measure the first paint; return rows with the goal, none if there is no Chromium."""
    found = chromium.find()
    if found is None:
        return []
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, stages.raised(Path(folder)) as stage:
        jobs = {points: add_job(stage, points) for points in (FEW, MANY)}
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *sandbox])
            look(browser, stage, jobs[FEW])  # the first page of a server compiles templates
            looks = [
                {points: look(browser, stage, job_id) for points, job_id in jobs.items()}
                for _ in range(pairs)
            ]
            browser.close()
    paint, curve = (
        {points: statistics.median(one[points][part] for one in looks) for points in jobs}
        for part in (0, 1)
    )
    return [
        (
            f"first paint of a job's page with {MANY:,} stored points / with {FEW:,}",
            f"{paint[MANY]:.0f} ms / {paint[FEW]:.0f} ms",
            "< 1 s",
        ),
        (
            "the same, until its curves are drawn",
            f"{curve[MANY]:.0f} ms / {curve[FEW]:.0f} ms",
            "",
        ),
    ]


def add_job(stage: Stage, points: int) -> str:
    """Add a finished job with `points` points, spread over KEYS and stored in blocks; return its
    id."""
    now = utc_now()
    steps = points // len(KEYS)
    with stage.database.write() as session:
        job = stages.add_job(
            stage,
            session,
            stages.HOMEWORK,
            state=JobState.SUCCEEDED,
            reason="All steps done.",
            age=timedelta(hours=2),
            spec={"name": f"points-{points}"},
            last_step=steps,
            finished_at=now,
        )
        attempt = stages.add_attempt(
            stage,
            session,
            job,
            node="north-01",
            start=now - timedelta(hours=1),
            end=now,
            outcome=Outcome.SUCCEEDED,
        )
        draw = np.random.default_rng(1)
        for first in range(0, steps, BLOCKS[-1]):
            lines = np.arange(first, min(first + BLOCKS[-1], steps), dtype=np.int64)
            found = {key: Points(lines + 1, lines, draw.random(len(lines))) for key in KEYS}
            metric_store.insert_rows(session, metric_store.batch_rows(attempt.id, 0, first, found))
        return job.id


def look(browser: Browser, stage: Stage, job_id: str) -> Seen:
    """Open the page in a browser with an empty cache; return its times."""
    context = browser.new_context(
        base_url=stage.url,
        storage_state=stage.storage(),  # type: ignore[arg-type]  # a TypedDict of its own
        viewport={"width": 1280, "height": 900},
    )
    page = context.new_page()
    page.goto(f"/jobs/{job_id}")
    page.locator("[data-chart=loss] .plot[data-points]").wait_for()
    drawn_ms = page.evaluate("performance.now()")
    painted_ms = page.evaluate(PAINTED)
    context.close()
    return float(painted_ms), float(drawn_ms)
