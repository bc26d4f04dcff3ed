"""`make screenshots`: the pictures that README and docs show, taken of the real pages on the stage.

Each is drawn anew from the same made-up afternoon; only the hours of the day differ.
"""

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests import chromium
from tests.dashboard import stage as stages

TARGET = Path(__file__).parents[2] / "docs" / "images"
FLAGS = ["--disable-gpu", "--disable-background-networking", "--no-first-run"]


@dataclass(frozen=True)
class Picture:
    """One picture: a page, what is done on it first, and how it is seen."""

    name: str
    path: str
    width: int = 1280
    height: int = 1100
    scheme: str = "light"
    script: str = ""
    waits_for: str = ""
    person: str = "ada"


PICK = """
async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  document.querySelectorAll("[data-day]")[3].click();
  await wait(1200);
  [...document.querySelectorAll("[data-lane=east-01] .cell")][14].click();
}
"""
COMPARED = "&".join(f"job={{homework-4-{name}}}" for name, *_ in stages.LAYOUTS)
PICTURES = (
    Picture("jobs", "/jobs", height=760, waits_for="[data-spark] path[d^=M]"),
    Picture("job", "/jobs/{llama-7b-python}", height=1500, waits_for=".rank.straggler"),
    Picture("job-dark", "/jobs/{llama-7b-python}", scheme="dark", waits_for=".rank.straggler"),
    Picture(
        "compare", f"/jobs/compare?{COMPARED}", height=1350, waits_for="[data-row=reach] .best"
    ),
    Picture("new-job", "/jobs/new", height=1150, waits_for="#plan .verdict"),
    Picture(
        "calendar", "/calendar", script=PICK, waits_for="[data-verdict] .verdict", person="ta-03"
    ),
    Picture("nodes", "/nodes", height=760),
    Picture("usage", "/usage", height=760),
    Picture("policies", "/admin/policies", height=820, waits_for="#policy-plan .verdict"),
    Picture("jobs-phone", "/jobs", width=390, height=844),
)


def main() -> None:
    """Take them all, or those that are named."""
    wanted = set(sys.argv[1:])
    found = chromium.find()
    if found is None:
        raise SystemExit("No Chromium was found: `python -m tests.install` installs one.")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, stages.raised(Path(folder)) as stage:
        stages.fill(stage)
        stages.apply_policy(stage)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *sandbox])
            for picture in PICTURES:
                if wanted and picture.name not in wanted:
                    continue
                context = browser.new_context(
                    base_url=stage.url,
                    storage_state=stage.storage(picture.person),  # type: ignore[arg-type]
                    viewport={"width": picture.width, "height": picture.height},
                    color_scheme=picture.scheme,  # type: ignore[arg-type]
                    timezone_id="America/New_York",
                    reduced_motion="reduce",
                )
                take(context.new_page(), stage, picture)
                context.close()
                sys.stdout.write(f"{picture.name}.png\n")
            browser.close()


def take(page: Page, stage: stages.Stage, picture: Picture) -> None:
    """One picture, once the page has settled."""
    page.goto(re.sub(r"\{([^}]+)\}", lambda name: stage.jobs[name[1]], picture.path))
    page.wait_for_load_state("load")
    if picture.script:
        page.wait_for_load_state("networkidle")
        page.evaluate(picture.script)
    if picture.waits_for:
        page.locator(picture.waits_for).first.wait_for(state="attached")
    page.wait_for_timeout(600)  # charts are drawn five times a second
    page.screenshot(path=TARGET / f"{picture.name}.png")


if __name__ == "__main__":
    main()
