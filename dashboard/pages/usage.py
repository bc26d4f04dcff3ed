"""Usage: hours booked, used and useful, by person, lab or node, and what quotas still leave."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from starlette.responses import Response

from dashboard.rendering import render
from dashboard.viewer import Viewer
from trainyard.views import Quotas, Usage, UsageRow

BY = {"user": "people", "lab": "labs", "node": "nodes"}
SPANS = {"7": "7 days", "28": "4 weeks", "120": "a term"}
FIRST_SPAN = "28"


@dataclass(frozen=True)
class UsageBar:
    """One day or week as a bar: hours of all rows."""

    start: str
    booked: float
    used: float
    useful: float

    @property
    def label(self) -> str:
        """`16 Nov`."""
        first = date.fromisoformat(self.start)
        return f"{first.day} {first:%b}"


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    by = viewer.query("by") if viewer.query("by") in BY else "user"
    days = viewer.query("days") if viewer.query("days") in SPANS else FIRST_SPAN
    now = datetime.now(UTC)
    per = "day" if days == "7" else "week"
    query = {"by": by, "per": per, "start": (now - timedelta(days=int(days))).isoformat()}
    me, usage, quotas = await asyncio.gather(
        viewer.me(),
        viewer.get(Usage, "/v1/usage", query),
        viewer.get(Quotas, "/v1/me/quotas"),
    )
    periods = periods_of(usage.rows)
    total = sorted(usage.total, key=lambda row: row.booked_hours, reverse=True)
    context = {
        "me": me,
        "section": "usage",
        "by": by,
        "days": days,
        "per": per,
        "groups": BY,
        "spans": SPANS,
        "zone": usage.zone,
        "start": query["start"],
        "rows": total,
        "periods": periods,
        "highest": max((max(one.booked, one.used) for one in periods), default=0.0),
        "most": max((row.booked_hours for row in total), default=0.0),
        "booked": sum(row.booked_hours for row in total),
        "used": sum(row.used_hours for row in total),
        "useful": sum(row.useful_hours for row in total),
        "quotas": quotas.quotas,
    }
    return render("usage.html", context)


def periods_of(rows: Sequence[UsageRow]) -> list[UsageBar]:
    """Each period with the hours of all its rows, the first one first."""
    return [
        UsageBar(
            start=start,
            booked=sum(row.booked_hours for row in rows if row.period == start),
            used=sum(row.used_hours for row in rows if row.period == start),
            useful=sum(row.useful_hours for row in rows if row.period == start),
        )
        for start in sorted({row.period for row in rows})
    ]
