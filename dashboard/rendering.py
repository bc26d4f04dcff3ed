"""Templates to answers: the Jinja environment, its filters, and the headers of every page."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from dashboard import formats, static_files
from dashboard.sentences import change_words
from dashboard.viewer import ApiProblem, Viewer

TEMPLATES = Path(__file__).parent / "templates"
# Page of the manual about each section, and its subject.
MANUAL = {
    "jobs": ("training", "jobs"),
    "calendar": ("leases", "leases"),
    "nodes": ("gpus", "nodes"),
    "datasets": ("data", "data"),
    "courses": ("courses", "courses"),
    "workbenches": ("workbench", "workbenches"),
    "admin": ("admin", "administration"),
}
# style-src-attr: positions in tracks and bars come as custom properties in style attributes.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def _time(moment: datetime | None, shape: str = "clock") -> Markup:
    """A moment; the browser writes it in its own zone, in one of the shapes of times.js."""
    if moment is None:
        return Markup(formats.UNKNOWN)
    at = moment.astimezone(UTC)
    return Markup('<time datetime="{}" data-time="{}">{}</time>').format(
        at.isoformat(), shape, f"{at:%d %b %Y, %H:%M} UTC"
    )


def _moment(moment: datetime | None) -> str:
    """A moment in full and in UTC, for what is read without scripts."""
    return formats.UNKNOWN if moment is None else f"{moment.astimezone(UTC):%d %b %Y, %H:%M:%S} UTC"


def _until(end: datetime, start: datetime) -> Markup:
    """A block, from start to end; the day stands twice only where it is another one."""
    to = _time(end).replace("<time ", Markup('<time data-since="{}" ').format(start.isoformat()))
    return _time(start) + " to " + to


def _with_unit(number_and_unit: tuple[str, str]) -> Markup:
    number, unit = number_and_unit
    return Markup('{}<span class="unit">{}</span>').format(number, unit) if unit else Markup(number)


def _breakable(name: str) -> Markup:
    """A name of several parts, which may be continued on the next line after each of them."""
    return Markup("<wbr>").join(re.findall(r"[^_.]*[_.]?", name))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # else each page looks at the files of all its templates
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        time=_time,
        until=_until,
        moment=_moment,
        count=formats.count,
        hours=formats.hours,
        decimal=formats.decimal,
        gib=lambda number: _with_unit(formats.gib(number)),
        size=lambda number: _with_unit(formats.size(number)),
        span=formats.span,
        share=lambda part: _with_unit(formats.share(part)),
        counted=formats.counted,
        visible=formats.visible,
        breakable=_breakable,
        unit=lambda number, unit: _with_unit((number, unit)),
    )
    environment.globals.update(
        manual=MANUAL,
        percent=formats.percent,
        static=static_files.address,
        change_words=change_words,
    )
    return environment


ENVIRONMENT = _environment()


def render(template: str, context: Mapping[str, object], *, status: int = 200) -> Response:
    """A page, or a piece of one."""
    text = ENVIRONMENT.get_template(template).render({"me": None, "section": "", **context})
    return HTMLResponse(text, status_code=status, headers=PAGE_HEADERS)


def redirect(path: str) -> Response:
    """Go and look there; after a form was sent, so that a reload does not send it again."""
    return RedirectResponse(path, status_code=303, headers=PAGE_HEADERS)


async def refusal(viewer: Viewer, refused: ApiProblem) -> Response:
    """Return the API's refusal, as a page of its own or as a banner inside one."""
    context: dict[str, object] = {"refused": refused, "now": datetime.now(UTC), "again": None}
    template = "refusal_fragment.html"
    if not viewer.is_fragment:
        template = "refusal.html"
        if viewer.request.method == "GET":
            context["again"] = viewer.request.url
        with suppress(ApiProblem):  # nobody has signed in, or nothing can be read
            context["me"] = await viewer.me()
    response = render(template, context, status=refused.status)
    if refused.retry_after:
        response.headers["Retry-After"] = refused.retry_after
    return response
