"""The list of jobs: what runs and waits, filters, pages, and what is newer than the page."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sentences import FINAL, LIVE, WAITING, jobs_sentence, layout_words, predicted_finish
from dashboard.viewer import Viewer
from trainyard.views import Job, Me

PAGE = 25
LOSS = "loss"
LOOK_BACK = 100  # how many of the newest are read to count those newer than the page
ORDERS = {
    "": "newest first",
    "oldest": "oldest first",
    "name": "by name",
    "loss": "lowest loss first",
}
VIEWS: Mapping[str, tuple[str, ...]] = {"": (), "active": LIVE, "waiting": WAITING, "ended": FINAL}


@dataclass(frozen=True)
class Filter:
    """The viewer's choice of jobs; all of it stands in the address."""

    view: str
    search: str
    user: str
    order: str
    metric: str
    """The number that a column and a small curve show: empty for the loss."""
    after: str
    """The last id of the page before; empty on the first page."""
    first: str
    """The newest id of the first page as it was drawn; newer ones wait behind a button."""

    @classmethod
    def of(cls, viewer: Viewer) -> "Filter":
        """The filter in the page's address; an unknown view is all of them."""
        fields = ("view", "search", "user", "order", "metric", "after", "first")
        asked = {field: viewer.query(field) for field in fields}
        view = asked["view"] if asked["view"] in VIEWS else ""
        order = asked["order"] if asked["order"] in ORDERS else ""
        metric = "" if asked["metric"] == LOSS else asked["metric"]
        return cls(**{**asked, "view": view, "order": order, "metric": metric})

    def query(self) -> dict[str, str | int | list[str] | None]:
        """The same for the API."""
        return {
            "state": list(VIEWS[self.view]) or None,
            "search": self.search or None,
            "user": self.user or None,
            "order": self.order or None,
        }

    def address(self, path: str = "/jobs", **changes: str) -> str:
        """A page's address with this filter, some parts changed."""
        kept = ("view", "search", "user", "order", "metric")
        fields = {**{name: getattr(self, name) for name in kept}, **changes}
        given = {name: value for name, value in fields.items() if value}
        return f"{path}?{urlencode(given)}" if given else path


@dataclass(frozen=True)
class Listing:
    """One page of jobs."""

    jobs: list[Job]
    has_more: bool
    newer: int
    """Jobs that were submitted after the page was drawn."""
    is_stale: bool = False
    """True if so many jobs are newer that the page's own rows were not read again."""


async def start(viewer: Viewer) -> Response:
    """Redirect the start page to the list of jobs."""
    await viewer.me()
    return redirect("/jobs")


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    chosen = Filter.of(viewer)
    me, listing = await asyncio.gather(viewer.me(), _read(viewer, chosen))
    return render("jobs.html", _context(me, chosen, listing))


async def rows(viewer: Viewer) -> Response:
    """The table's body as it is now: the same jobs, and how many are newer."""
    chosen = Filter.of(viewer)
    me, listing = await asyncio.gather(viewer.me(), _read(viewer, chosen))
    return render("job_rows.html", _context(me, chosen, listing))


async def cancel_selected(viewer: Viewer) -> Response:
    """Cancel every job that was selected; those that had ended meanwhile are left alone."""
    for field, job_id in await viewer.form_fields():
        if field != "job":
            continue
        await viewer.or_refusal(
            viewer.call("POST", f"/v1/jobs/{viewer.quoted(job_id)}/cancel"), (409,)
        )
    return redirect("/jobs")


async def compare_selected(viewer: Viewer) -> Response:
    """Redirect to the page that compares the selected jobs."""
    chosen = [job_id for field, job_id in await viewer.form_fields() if field == "job"]
    return redirect(f"/jobs/compare?{urlencode([('job', job_id) for job_id in chosen])}")


async def _read(viewer: Viewer, chosen: Filter) -> Listing:
    query = chosen.query()
    if chosen.after:
        jobs, has_more = await viewer.page(
            Job, "/v1/jobs", {**query, "limit": PAGE, "after": chosen.after}
        )
        return Listing(jobs, has_more, newer=0)
    if not chosen.first or chosen.order:
        jobs, has_more = await viewer.page(Job, "/v1/jobs", {**query, "limit": PAGE})
        return Listing(jobs, has_more, newer=0)
    newest, has_more = await viewer.page(Job, "/v1/jobs", {**query, "limit": LOOK_BACK})
    # Ids sort by the time they were made.
    newer = sum(job.id > chosen.first for job in newest)
    shown = newest[newer : newer + PAGE]
    return Listing(
        shown,
        has_more or newer + PAGE < len(newest),
        newer,
        is_stale=len(shown) < PAGE and has_more,
    )


def _context(me: Me, chosen: Filter, listing: Listing) -> dict[str, object]:
    now = datetime.now(UTC)
    newest = listing.jobs[0].id if listing.jobs else "job_"
    anchor = chosen.first or ("" if chosen.after else newest)
    last = listing.jobs[-1].id if listing.jobs else ""
    return {
        "me": me,
        "section": "jobs",
        "now": now,
        "sentence": jobs_sentence(me),
        "chosen": chosen,
        "views": list(VIEWS),
        "orders": ORDERS,
        "listing": listing,
        "finishes": {job.id: predicted_finish(job, now) for job in listing.jobs},
        "layouts": {job.id: layout_words(job) for job in listing.jobs},
        "rows_address": chosen.address("/jobs/rows", after=chosen.after, first=anchor),
        "next_address": chosen.address(after=last),
    }
