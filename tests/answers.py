"""Answers of the API for tests, completed from `docs/openapi.json`.

A test gives the fields that it is about, and a field that the server adds needs no edit here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api.contract.client_views import PLAIN_DOCUMENTS

Json = dict[str, Any]
DOCUMENT = Path(__file__).parents[1] / "docs" / "openapi.json"
SCHEMAS: Mapping[str, Json] = json.loads(DOCUMENT.read_text())["components"]["schemas"]
NOW = "2026-11-21T10:57:00+00:00"
ID = "01k9abcdefghjkmnpqrstvwxyz"
USUAL = {  # texts of fields that mean the same in every answer
    "user": "ada",
    "node": "this-machine",
    "node_class": "cpu2",
    "device": "cpu",
    "torch": "2.13.0",
    "zone": "UTC",
    "email": "ada@example.org",
    "job": f"job_{ID}",
    "lease": f"lease_{ID}",
    "hold_start": "2026-11-21T14:00:00+00:00",
    "hold_end": "2026-11-21T16:00:00+00:00",
    "usable_end": "2026-11-21T15:55:00+00:00",
    "expires_at": "2026-11-28T10:57:00+00:00",
    "sha256": "ab" * 32,
    "hash": "cd" * 32,
    "secret": "ty_abcdefghijklmnopqrstuvwxyz",
}
EMPTY: Json = {"string": "", "boolean": False, "array": [], "object": {}}
TIMES = {"date-time": NOW, "date": "2026-11-21"}
NULL = {"type": "null"}


class Answer(Json):
    """An answer that knows its schema."""

    def __init__(self, schema: str, fields: Json) -> None:
        super().__init__(fields)
        self.schema = schema


def answer(schema: str, /, **given: Any) -> Answer:
    """Return a valid answer of a schema with the given fields; documents in them are completed too.

    A field that is not given has its default, else null where that is allowed, else the usual text
    of its name, else zero, nothing, or the first of a closed set.
    """
    fields = _fields(schema)
    assert not (unknown := given.keys() - fields.keys()), f"{schema} has no {unknown}"
    return Answer(
        schema,
        {
            name: _completed(field, given[name]) if name in given else _usual(schema, name, field)
            for name, field in fields.items()
        },
    )


def full_answer(schema: str) -> Json:
    """Return a valid answer of a schema in which no field is null and no list is empty."""
    return {name: _filled(schema, name, field) for name, field in _fields(schema).items()}


def _fields(schema: str) -> Json:
    """Map name -> type of a schema's fields, in the order in which the server sends them."""
    found = SCHEMAS[schema]
    order = dict.fromkeys((*found.get("required", ()), *found["properties"]))
    return {name: found["properties"][name] for name in order}


def _completed(field: Json, value: Any) -> Any:
    """Complete the documents in a given value, but not those that people edit and send back."""
    if isinstance(value, list) and "items" in field:
        return [_completed(field["items"], item) for item in value]
    if isinstance(value, Mapping):
        for kind in field.get("anyOf", [field]):
            name = _target(kind)
            if name and name not in PLAIN_DOCUMENTS and value.keys() <= _fields(name).keys():
                return answer(name, **value)
    return value


def _usual(schema: str, name: str, field: Json) -> Any:
    """Return the value of a field that is not given."""
    kinds = field.get("anyOf", [field])
    if "default" in field or NULL in kinds:
        return field.get("default")
    kind = kinds[0]
    if kind.get("type") == "string" and name == "id":
        return f"{schema.removesuffix('View').lower()}_{ID}"
    if kind.get("type") == "string" and name in USUAL:
        return USUAL[name]
    target = _target(kind)
    if target and "properties" in SCHEMAS[target]:
        return answer(target)
    return _first(SCHEMAS[target] if target else kind)


def _filled(schema: str, name: str, field: Json) -> Any:
    """Return the value of a field in a full answer."""
    kind = field.get("anyOf", [field])[0]
    target = _target(kind)
    if target and target not in PLAIN_DOCUMENTS and "properties" in SCHEMAS[target]:
        return full_answer(target)
    if kind.get("type") == "array":
        return [_filled(schema, name, kind["items"])]
    return field.get("default") or _usual(schema, name, kind)


def _first(kind: Json) -> Any:
    """Return the first, least or emptiest value of a type without fields."""
    if "const" in kind:
        return kind["const"]
    if "enum" in kind:
        return kind["enum"][0]
    if kind.get("format") in TIMES:
        return TIMES[kind["format"]]
    if kind.get("minItems"):
        return [_filled("", "", kind["items"])]
    if kind["type"] in EMPTY:
        return EMPTY[kind["type"]]
    return kind.get("minimum", kind.get("exclusiveMinimum", -1) + 1)


def _target(kind: Json) -> str | None:
    """Return the name of the schema that a type refers to."""
    reference = kind.get("$ref")
    return reference.rsplit("/", 1)[-1] if reference else None
