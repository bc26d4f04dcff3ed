"""Search over everything that the viewer may see: jobs, leases, nodes, files, people, pages."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from urllib.parse import urlencode

from starlette.responses import Response

from dashboard.days import Span, span_of, split_days, zone_of
from dashboard.inner_calls import Query
from dashboard.rendering import render
from dashboard.viewer import AnyView, Viewer
from trainyard.transport.decoding import View
from trainyard.views import Agenda, Dataset, Job, Lease, Me, Model, Node, Study, User

SHOWN, LOOKED_THROUGH = 6, 200  # of each kind
PAGES: Mapping[str, str] = {
    "Jobs": "/jobs",
    "New job": "/jobs/new",
    "New program": "/programs/new",
    "Studies": "/studies",
    "New study": "/studies/new",
    "Agendas": "/agendas",
    "New agenda": "/agendas/new",
    "Templates": "/templates",
    "Reports": "/reports",
    "Calendar": "/calendar",
    "Leases": "/leases",
    "Nodes": "/nodes",
    "Datasets": "/datasets",
    "Models": "/models",
    "Tokenizers": "/tokenizers",
    "Shared by you": "/shares",
    "Courses": "/courses",
    "Workspace": "/workspace",
    "Workbenches": "/workbenches",
    "Usage": "/usage",
    "Help": "/help",
    "Glossary": "/help/glossary",
    "Account, tokens and notifications": "/account",
}
STAFF_PAGES: Mapping[str, str] = {
    "Clean-ups": "/admin/cleanups",
    "People": "/admin/people",
    "Import people": "/admin/people/import",
    "Exceptions": "/admin/grants",
    "Enrol a node": "/nodes/enrol",
    "Policies": "/admin/policies",
    "Audit": "/admin/audit",
}


@dataclass(frozen=True)
class Hit:
    """One thing that was found."""

    words: str
    address: str
    facts: str = ""
    state: str = ""


@dataclass(frozen=True)
class Kind:
    """One kind of thing, with its hits."""

    word: str
    hits: list[Hit]


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    me = await viewer.me()
    text = viewer.query("q").strip()
    found = await _find(viewer, me, text)
    return render("search.html", {"me": me, "section": "search", "text": text, "found": found})


async def found(viewer: Viewer) -> Response:
    """The hits alone, for the dialog that stands on every page."""
    me = await viewer.me()
    text = viewer.query("q").strip()
    return render("found.html", {"text": text, "found": await _find(viewer, me, text)})


async def _find(viewer: Viewer, me: Me, text: str) -> list[Kind]:
    """The kinds with hits; first those in which something has exactly this name."""
    is_staff = me.user.role != "user"
    pages = {**PAGES, **(STAFF_PAGES if is_staff else {})}
    of_pages = Kind("Pages", [Hit(name, at) for name, at in pages.items() if _in(text, name)])
    if not text:
        return [of_pages]
    zone, now = zone_of(viewer.query("zone"), me.user.zone), datetime.now(UTC)
    rest, days = split_days(text, zone, now=now)
    dated = [await _of_days(viewer, rest, days, span_of(days, zone, now=now))] if days else []
    everyone = {"user": "all"} if is_staff else {}
    asked: list[Awaitable[Kind]] = [
        _kind(viewer, "Jobs", Job, "/v1/jobs", {"search": text, **everyone}, _job),
        _kind(viewer, "Leases", Lease, "/v1/leases", everyone, _lease, text),
        _kind(viewer, "Nodes", Node, "/v1/nodes", {}, _node, text),
        _kind(viewer, "Datasets", Dataset, "/v1/datasets", {}, _dataset, text),
        _kind(viewer, "Models", Model, "/v1/models", {}, _model, text),
        _kind(viewer, "Studies", Study, "/v1/studies", {}, _study, text),
        _kind(viewer, "Agendas", Agenda, "/v1/agendas", {}, _agenda, text),
    ]
    if is_staff:
        asked.append(_kind(viewer, "People", User, "/v1/users", {}, _person, text))
    kinds = [*dated, *await asyncio.gather(*asked), of_pages]
    named = [kind for kind in kinds if any(hit.words.lower() == text.lower() for hit in kind.hits)]
    return [*named, *(kind for kind in kinds if kind.hits and kind not in named)]


async def _of_days(viewer: Viewer, rest: str, days: str, span: Span) -> Kind:
    """The viewer's jobs that were submitted on these days, and leases that lie on them."""
    query: Query = {"search": rest or None, **span.query(), "limit": SHOWN}
    (jobs, _), (leases, _) = await asyncio.gather(
        viewer.page(Job, "/v1/jobs", query),
        viewer.page(Lease, "/v1/leases", {"limit": LOOKED_THROUGH}),
    )
    held = [one for one in leases if one.hold_start < span.until and one.hold_end > span.since]
    named = [hit for one in held if _in(rest, _words_of(one, hit := _lease(one)))]
    filters = {"search": rest, "days": days, "zone": viewer.query("zone")}
    address = f"/jobs?{urlencode({name: value for name, value in filters.items() if value})}"
    every = Hit(f"All jobs submitted {days}" + (f" with {rest}" if rest else ""), address)
    return Kind("On these days", [every, *map(_job, jobs), *named[:SHOWN]])


async def _kind(
    viewer: Viewer,
    word: str,
    view: type[AnyView],
    path: str,
    query: Query,
    hit: Callable[[AnyView], Hit],
    text: str = "",
) -> Kind:
    """Ask for things of one kind; with `text` those that have it are chosen here."""
    limit = LOOKED_THROUGH if text else SHOWN
    things, _ = await viewer.page(view, path, {**query, "limit": limit})
    hits = ((one, hit(one)) for one in things)
    matching = (found for one, found in hits if _in(text, _words_of(one, found)))
    return Kind(word, list(islice(matching, SHOWN)))


def _words_of(thing: View, hit: Hit) -> str:
    return f"{hit.words} {hit.facts} {thing.raw.get('id', '')}"


def _in(text: str, words: str) -> bool:
    """Return True if every word of the text is in `words`."""
    return all(part in words.lower() for part in text.lower().split())


def _job(job: Job) -> Hit:
    return Hit(job.name, f"/jobs/{job.id}", f"{job.user} {job.id[-6:]}", job.state)


def _lease(lease: Lease) -> Hit:
    return Hit(
        lease.node, f"/leases/{lease.id}", f"{lease.user} {lease.hold_start:%Y-%m-%d}", lease.state
    )


def _node(node: Node) -> Hit:
    return Hit(node.name, f"/nodes/{node.name}", node.node_class, node.state)


def _dataset(dataset: Dataset) -> Hit:
    return Hit(dataset.name, f"/datasets/{dataset.id}", dataset.owner or "built in")


def _model(model: Model) -> Hit:
    return Hit(model.name, f"/models/{model.id}", f"{model.owner} {model.architecture}")


def _study(study: Study) -> Hit:
    return Hit(study.name, f"/studies/{study.id}", study.kind)


def _agenda(agenda: Agenda) -> Hit:
    return Hit(agenda.name, f"/agendas/{agenda.id}", agenda.summary)


def _person(user: User) -> Hit:
    return Hit(user.name, f"/admin/people?search={user.name}", user.role)
