"""Lists that arrive in pages, as one iterator."""

from collections.abc import Iterator
from itertools import islice

from trainyard.errors import UnexpectedAnswer
from trainyard.transport.connection import Connection, Parameter
from trainyard.transport.decoding import AnyView, decode

PAGE_SIZE = 100
IDS = ("id", "path", "sha256")  # a file of a workspace has a path, a report its hash


def all_pages(
    connection: Connection,
    path: str,
    kind: type[AnyView],
    *,
    limit: int | None = None,
    **params: Parameter | None,
) -> Iterator[AnyView]:
    """Yield every item (at most `limit`); each page is one request, sent when it is needed."""
    return islice(_pages(connection, path, kind, limit, params), limit)


def whole_list(
    connection: Connection, path: str, kind: type[AnyView], **params: Parameter | None
) -> list[AnyView]:
    """Return the items of a list that has one page."""
    return [decode(kind, item) for item in _page(connection.get(path, **params), path)["data"]]


def _pages(
    connection: Connection,
    path: str,
    kind: type[AnyView],
    limit: int | None,
    params: dict[str, Parameter | None],
) -> Iterator[AnyView]:
    size = PAGE_SIZE if limit is None else max(1, min(limit, PAGE_SIZE))
    after: str | None = None
    while True:
        page = _page(connection.get(path, limit=size, after=after, **params), path)
        for document in page["data"]:
            yield decode(kind, document)
        if not page["has_more"] or not page["data"]:
            return
        last = page["data"][-1]
        after = str(next(last[name] for name in IDS if name in last))


def _page(document: object, path: str) -> dict[str, list[dict[str, object]]]:
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise UnexpectedAnswer(f"{path} did not answer with a list")
    return {**document, "has_more": document.get("has_more", False)}
