"""The OpenAPI document, with the parts that FastAPI does not know by itself.

`python -m api.write_openapi` writes the committed copy, `docs/openapi.json`.
"""

import json
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from api.agendas.schemas import NewAgenda
from api.contract.field_docs import add_field_docs
from api.jobs.schemas import PlanRequest
from api.web.schemas import ProblemDocument
from core.spec.spec import JobSpec
from core.spec.template import TemplateSpec
from core.tables.kinds import Scope

DESCRIPTION = """Submit training jobs with a parallelism spec, book GPU nodes by the hour, watch.

- Sign in with `Authorization: Bearer <token>`; `trainyard login` or the account page creates one.
- `x-scope` of an operation is the scope that an API token needs for it. Each scope includes `read`;
  `all` includes every other.
- Times are RFC 3339 with an offset; a time without one is refused.
- Lists come in pages: `{"object": "list", "data": [...], "has_more": true}`. For the next page pass
  the last id as `after`.
- Errors are problem documents (RFC 9457) with `code`, `param` and a sentence that says what to do.
- Requests that create something take an `Idempotency-Key`: repeating a request with the same key
  creates nothing new.
"""
PROBLEM = "#/components/schemas/ProblemDocument"
REF = "#/components/schemas/{model}"


Scopes = Mapping[tuple[str, str], Scope | None]  # by method, in small letters, and path


def describe(app: FastAPI, scopes: Scopes) -> None:
    """Extend `app.openapi()` by problem documents, scopes, and bodies that the API reads by
    itself."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, scopes)
        return app.openapi_schema

    written = Once(lambda: json.dumps(openapi(), separators=(",", ":")).encode())

    def answer(_: Request) -> Response:  # no coroutine: the first takes a second, on a thread
        return Response(written(), media_type="application/json")

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    app.add_route("/v1/openapi.json", answer, include_in_schema=False)


class Once:
    """Bytes that are made on first demand, by one thread while others wait."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make, self._lock, self._made = make, Lock(), b""

    def __call__(self) -> bytes:
        with self._lock:
            self._made = self._made or self._make()
            return self._made


def _document(app: FastAPI, scopes: Scopes) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
    )
    schemas = document["components"]["schemas"]
    for model in (ProblemDocument, JobSpec, PlanRequest, NewAgenda, TemplateSpec):
        schema = model.model_json_schema(ref_template=REF, mode="validation")
        named = {**schema.pop("$defs", {}), model.__name__: schema}
        for name, found in named.items():
            known = schemas.setdefault(name, found)
            if known.get("properties", {}).keys() != found.get("properties", {}).keys():
                raise ValueError(f"two classes of the API are called {name}: rename one")
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    add_field_docs(schemas)
    problem = {
        "description": "What was wrong and what to do next.",
        "content": {"application/problem+json": {"schema": {"$ref": PROBLEM}}},
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = problem
            scope = scopes[method, path]
            if scope is not None:
                operation["x-scope"] = scope
    return document
