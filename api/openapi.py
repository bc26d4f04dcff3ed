"""The OpenAPI document: what FastAPI does not know by itself.

`python -m api.write_openapi` writes the committed copy, `docs/openapi.json`.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.schemas import PlanRequest, Problem
from core.spec import JobSpec

DESCRIPTION = """Submit training jobs with a parallelism spec, book GPU nodes by the hour, watch.

- Sign in with `Authorization: Bearer <token>`; `trainyard login` or the account page make one.
- Times are RFC 3339 with an offset; a time without one is refused.
- Lists are pages: `{"object": "list", "data": [...], "has_more": true}`; the next page begins
  `after` the last id.
- Errors are problem documents (RFC 9457) with `code`, `param` and a sentence that says what to do.
- Creates take an `Idempotency-Key`: sending a request again with the same key makes nothing new.
"""
PROBLEM = "#/components/schemas/Problem"
REF = "#/components/schemas/{model}"


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` tell of problem documents, and of the bodies that we read ourselves."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
    )
    schemas = document["components"]["schemas"]
    for model in (Problem, JobSpec, PlanRequest):
        schema = model.model_json_schema(ref_template=REF, mode="validation")
        for name, inner in schema.pop("$defs", {}).items():
            schemas.setdefault(name, inner)
        schemas.setdefault(model.__name__, schema)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = {
        "description": "What was wrong, and what to do.",
        "content": {"application/problem+json": {"schema": {"$ref": PROBLEM}}},
    }
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = problem
    return document
