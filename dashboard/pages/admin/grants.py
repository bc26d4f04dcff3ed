"""Exceptions to booking rules: the list of them, granting one, taking one back."""

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Grant

ANSWERED = (400, 404, 409, 422)
LIMIT = 100
PAGE = "/admin/grants"
RULES = (
    *("quota_main", "too_many_open", "overlaps_own", "user_cap", "lab_cap", "churn", "no_shows"),
    *("outside_window", "not_open_yet", "outside_horizon", "too_soon", "cohort_day"),
    *("not_eligible", "bad_block_length", "bad_size", "crosses_band", "distinct_times"),
    *("back_to_back", "merged_too_long", "leaves_gap", "walk_in_refused", "extension_refused"),
)


async def show(viewer: Viewer) -> Response:
    """The list, newest first, and the form."""
    return await _page(viewer, {"extra": "1", "user": viewer.query("user")})


async def grant(viewer: Viewer) -> Response:
    """Grant an exception. Its times are on the clock of the viewer's zone."""
    form = {name: value.strip() for name, value in (await viewer.form()).items()}
    me = await viewer.me()
    zone = ZoneInfo(me.user.zone)
    extra = form.get("extra", "")
    body = {
        **{name: form.get(name, "") for name in ("user", "rule", "why")},
        **{name: _moment(form.get(name, ""), zone) for name in ("starts_at", "ends_at")},
        "extra": int(extra) if extra.isdecimal() else extra,
    }
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/grants", json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, form, answer)
    return redirect(PAGE)


async def revoke(viewer: Viewer) -> Response:
    """Take an exception back; booked leases stay."""
    answer = await viewer.or_refusal(
        viewer.call("DELETE", f"/v1/grants/{viewer.part('grant_id')}"), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, {}, answer)
    return redirect(PAGE)


async def _page(
    viewer: Viewer, form: dict[str, str], refused: ApiProblem | None = None
) -> Response:
    me, (grants, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Grant, "/v1/grants", {"limit": LIMIT})
    )
    context = {
        "me": me,
        "section": "admin",
        "part": "grants",
        "grants": grants,
        "has_more": has_more,
        "rules": RULES,
        "form": form,
        "refused": refused,
    }
    return render("admin_grants.html", context, status=refused.status if refused else 200)


def _moment(text: str, zone: ZoneInfo) -> str:
    """Return a clock time of the form with its offset; what is none is sent as it is."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone).isoformat()
    except ValueError:
        return text
