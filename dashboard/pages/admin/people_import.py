"""Import of a list of people: what would happen as a table, then the import itself."""

import csv
import io

from starlette.responses import Response

from dashboard.rendering import render
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Import, ImportRow

ANSWERED = (403, 409, 422)
SHOWN = 500  # rows; all are imported


async def show(viewer: Viewer) -> Response:
    """The empty form."""
    return await _page(viewer, "")


async def check(viewer: Viewer) -> Response:
    """Show what a list would change, row by row; nothing is changed."""
    return await _ask(viewer, dry_run=True)


async def run(viewer: Viewer) -> Response:
    """Import a list, all or nothing, and show the links of new people once."""
    return await _ask(viewer, dry_run=False)


async def _ask(viewer: Viewer, *, dry_run: bool) -> Response:
    form = await viewer.form()
    text, links, mail = form.get("csv", ""), form.get("links") == "on", form.get("mail") == "on"
    body = {"csv": text, "dry_run": dry_run, "links": links, "mail": mail}
    answer = await viewer.or_refusal(viewer.call("POST", "/v1/users/import", json=body), ANSWERED)
    if isinstance(answer, ApiProblem):
        return await _page(viewer, text, links=links, mail=mail, refused=answer)
    found = decode(Import, answer.json())
    return await _page(viewer, text, links=links, mail=mail, found=found)


async def _page(
    viewer: Viewer,
    text: str,
    *,
    links: bool = True,
    mail: bool = False,
    found: Import | None = None,
    refused: ApiProblem | None = None,
) -> Response:
    rows = [] if found is None else [one for one in found.rows if one.action != "same"]
    context = {
        "me": await viewer.me(),
        "section": "admin",
        "part": "people",
        "text": text,
        "links": links,
        "mail": mail,
        "found": found,
        "rows": rows[:SHOWN],
        "more": max(0, len(rows) - SHOWN),
        "made": as_csv(rows),
        "refused": refused,
    }
    return render("admin_import.html", context, status=refused.status if refused else 200)


def as_csv(rows: list[ImportRow]) -> str:
    """Return name and link of everybody who has one, as CSV; empty if nobody has."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    linked = [(one.name, one.password_link) for one in rows if one.password_link]
    table.writerows([("name", "link"), *linked] if linked else [])
    return out.getvalue()
