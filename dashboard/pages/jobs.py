"""The list of jobs: what runs and waits, filters, pages, and what is newer than the page."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from dashboard.days import Span, span_of, zone_of
from dashboard.inner_calls import Query
from dashboard.job_columns import ALWAYS, COLUMNS, chosen_columns, sent_columns
from dashboard.rendering import redirect, render
from dashboard.sentences import (
    FINAL,
    LIVE,
    WAITING,
    dataset_words,
    jobs_sentence,
    layout_words,
    predicted_finish,
)
from dashboard.viewer import Viewer
from trainyard.days import EXAMPLES
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
KEPT = ("view", "search", "tag", "days", "zone", "user", "order", "metric")
"""Fields of a filter that stand in every address of the list."""
VIEWS: Mapping[str, tuple[str, ...]] = {"": (), "active": LIVE, "waiting": WAITING, "ended": FINAL}


@dataclass(frozen=True)
class Filter:
    """The viewer's choice of jobs; all of it stands in the address."""

    view: str
    search: str
    tag: str
    days: str
    """Days on which they were submitted, as the viewer wrote them."""
    zone: str
    """Zone of the browser, in which these days lie."""
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
        asked = {field: viewer.query(field) for field in (*KEPT, "after", "first")}
        view = asked["view"] if asked["view"] in VIEWS else ""
        order = asked["order"] if asked["order"] in ORDERS else ""
        metric = "" if asked["metric"] == LOSS else asked["metric"]
        return cls(**{**asked, "view": view, "order": order, "metric": metric})

    def span(self, me: Me, now: datetime) -> Span | None:
        """Time of the days, if some are named. Raises ValueError for a text that names none."""
        zone = zone_of(self.zone, me.user.zone)
        return span_of(self.days, zone, now=now) if self.days else None

    def query(self, span: Span | None) -> Query:
        """The same for the API."""
        return {
            "state": list(VIEWS[self.view]) or None,
            "search": self.search or None,
            "tag": self.tag or None,
            "user": self.user or None,
            "order": self.order or None,
            **(span.query() if span else {}),
        }

    @property
    def is_narrow(self) -> bool:
        """True if it leaves jobs out."""
        return any((self.view, self.search, self.tag, self.days, self.user))

    def address(self, path: str = "/jobs", **changes: str) -> str:
        """A page's address with this filter, some parts changed."""
        fields = {**{name: getattr(self, name) for name in KEPT}, **changes}
        if not fields["days"]:
            fields["zone"] = ""
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
    refusal: str = ""
    """Reason for which nothing is listed; empty if the filter can be read."""


async def start(viewer: Viewer) -> Response:
    """Redirect the start page to the list of jobs."""
    await viewer.me()
    return redirect("/jobs")


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    chosen, now = Filter.of(viewer), datetime.now(UTC)
    me, listing = await _read(viewer, chosen, now)
    return render("jobs.html", _context(me, chosen, listing, now))


async def rows(viewer: Viewer) -> Response:
    """The table's body as it is now: the same jobs, and how many are newer."""
    chosen, now = Filter.of(viewer), datetime.now(UTC)
    me, listing = await _read(viewer, chosen, now)
    return render("job_rows.html", _context(me, chosen, listing, now))


async def choose_columns(viewer: Viewer) -> Response:
    """Keep the columns that the viewer has chosen, and return to the list as it was."""
    fields = await viewer.form_fields()
    await viewer.call("PATCH", "/v1/me", json={"job_columns": sent_columns(fields)})
    filters = parse_qsl(dict(fields).get("filter", ""))
    kept = {name: value for name, value in filters if name in KEPT}
    return redirect(f"/jobs?{urlencode(kept)}" if kept else "/jobs")


async def tag_selected(viewer: Viewer) -> Response:
    """Add a tag to every job that was selected, and list the jobs that have it."""
    fields = await viewer.form_fields()
    added = dict(fields).get("tag", "").strip().lower()
    if not added:
        return redirect("/jobs")
    for field, job_id in fields:
        if field != "job":
            continue
        address = f"/v1/jobs/{viewer.quoted(job_id)}"
        job = await viewer.get(Job, address)
        if added not in job.tags:
            await viewer.call("PUT", f"{address}/tags", json={"tags": [*job.tags, added]})
    return redirect(f"/jobs?{urlencode({'tag': added})}")


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


async def _read(viewer: Viewer, chosen: Filter, now: datetime) -> tuple[Me, Listing]:
    if not chosen.days:
        return await asyncio.gather(viewer.me(), _listing(viewer, chosen, chosen.query(None)))
    me = await viewer.me()
    try:
        query = chosen.query(chosen.span(me, now))
    except ValueError as error:
        return me, Listing([], has_more=False, newer=0, refusal=f"{error}.")
    return me, await _listing(viewer, chosen, query)


async def _listing(viewer: Viewer, chosen: Filter, query: Query) -> Listing:
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


def _context(me: Me, chosen: Filter, listing: Listing, now: datetime) -> dict[str, object]:
    columns = chosen_columns(me.job_columns)
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
        "columns": columns,
        "all_columns": COLUMNS,
        "day_words": EXAMPLES[:5],
        "datasets": {job.id: dataset_words(job) for job in listing.jobs},
        "width": ALWAYS + len(columns),
        "filter": urlencode({name: value for name in KEPT if (value := getattr(chosen, name))}),
        "listing": listing,
        "finishes": {job.id: predicted_finish(job, now) for job in listing.jobs},
        "layouts": {job.id: layout_words(job) for job in listing.jobs},
        "rows_address": chosen.address("/jobs/rows", after=chosen.after, first=anchor),
        "next_address": chosen.address(after=last),
    }
