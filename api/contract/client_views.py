"""`python -m api.contract.client_views`: write the client's views, a frozen dataclass for each
answer, from `docs/openapi.json`, which a test compares.

The server's schemas are the only description of an answer that is written by hand. What people edit
and send back, such as a spec, stays a plain document on the client's side; states and other closed
sets become texts, so that a server may know more of them than its client.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill, indent
from typing import Any

Schema = Mapping[str, Any]

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "openapi.json"
VIEWS = ROOT / "client" / "trainyard" / "views.py"

HEADER = '''"""Answers of the API as frozen dataclasses. Times carry their offset.

Written from docs/openapi.json by `make openapi`; do not edit. Fields that a newer server adds are
left in `raw`. States and outcomes are plain texts, so that a server may know more of them.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainyard.transport.decoding import View
'''
NODE_PROTOCOL = "/v1/node/"
PLAIN_DOCUMENTS = frozenset(
    {"JobSpec", "ScriptJobSpec", "WorkbenchJobSpec", "ModelSpec", "Inventory", "Layout"}
)
NAMES = {  # where the name of the schema without "View" says too little, or stands for another one
    "AuditView": "AuditEntry",
    "ChoicesView": "NoticeChoices",
    "ClientView": "ClientRelease",
    "Comparison": "CurveComparison",
    "HolderView": "StorageHolder",
    "LayoutView": "JobLayout",
    "PlanView": "PlanAnswer",
    "VerdictView": "BlockVerdict",
}
SECRET_FIELDS = frozenset({"secret", "token"})
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
ZEROS = {"str": '""', "int": "0", "float": "0.0", "bool": "False"}
WIDTH = 100


def main() -> None:
    """Write the views."""
    VIEWS.write_text(render(json.loads(DOCUMENT.read_text())))


def render(document: Schema) -> str:
    """Write the module `trainyard.views` as text, for an OpenAPI document."""
    answers = _merge_unions(answers_of(document))
    return HEADER + "".join(
        f"\n\n{_class(name, answers[name], answers)}" for name in _in_order(answers)
    )


def answers_of(document: Schema) -> dict[str, Schema]:
    """Map name -> schema, for the schemas that occur in answers for people."""
    schemas = document["components"]["schemas"]
    responses = [
        response
        for path, operations in document["paths"].items()
        if not path.startswith(NODE_PROTOCOL)
        for operation in operations.values()
        for status, response in operation["responses"].items()
        if status != "default"
    ]
    found: dict[str, Schema] = {}
    waiting = list(_refs(responses))
    while waiting:
        name = waiting.pop()
        schema = schemas[name]
        if name in found or name in PLAIN_DOCUMENTS or "properties" not in schema:
            continue
        found[name] = schema
        waiting += _refs(schema)
    return {name: schema for name, schema in found.items() if not name.startswith("Page_")}


def name_of(schema: str) -> str:
    """Return the client's name of a schema."""
    if schema in NAMES:
        return NAMES[schema]
    if schema.endswith("Made"):
        return f"New{schema.removesuffix('Made')}"
    return schema.removesuffix("View")


def _refs(part: object) -> Iterator[str]:
    """Yield the names of all schemas that a part of the document refers to."""
    if isinstance(part, Mapping):
        if "$ref" in part:
            yield _target(part)
        for value in part.values():
            yield from _refs(value)
    elif isinstance(part, list):
        for value in part:
            yield from _refs(value)


def _target(schema: Schema) -> str:
    return str(schema["$ref"]).rsplit("/", 1)[-1]


def _merge_unions(answers: Mapping[str, Schema]) -> dict[str, Schema]:
    """Merge schemas that are alternatives of one field into one class: that of the first, with a
    field required only if all of them have it. The others get no class."""
    merged = dict(answers)
    for schema in answers.values():
        for found in schema["properties"].values():
            named = [_target(one) for one in found.get("anyOf", ()) if "$ref" in one]
            first, *others = [name for name in named if name in answers] or [""]
            for other in others:
                one, two = merged[first], answers[other]
                required = set(one.get("required", ())) & set(two.get("required", ()))
                properties = {**two["properties"], **one["properties"]}
                merged[first] = {**one, "properties": properties, "required": sorted(required)}
                merged.pop(other, None)
    return merged


def _in_order(answers: Mapping[str, Schema]) -> list[str]:
    """Return the names sorted as the client names them, but each after those that its fields
    need."""
    ordered: list[str] = []

    def add(name: str) -> None:
        if name in ordered:
            return
        for needed in sorted(set(_refs(answers[name])) & answers.keys() - {name}, key=name_of):
            add(needed)
        ordered.append(name)

    for name in sorted(answers, key=name_of):
        add(name)
    return ordered


def _class(schema_name: str, schema: Schema, answers: Mapping[str, Schema]) -> str:
    required = schema.get("required", ())
    lines = ["@dataclass(frozen=True, kw_only=True)", f"class {name_of(schema_name)}(View):"]
    lines += [_docstring(schema.get("description") or f"{schema_name} of the API."), ""]
    for name in dict.fromkeys((*required, *schema["properties"])):  # as the server orders them
        found = schema["properties"][name]
        kind = _type(found, answers)
        default = "" if name in required else _default(kind, found)
        if name in SECRET_FIELDS:
            default = "field(repr=False)"
        line = f"    {name}: {kind} = {default}" if default else f"    {name}: {kind}"
        if len(line) > WIDTH:
            line = f"    {name}: {kind} = (\n        {default}\n    )"
        lines.append(line)
        if doc := found.get("description"):
            lines.append(_docstring(doc))
    return "\n".join(lines) + "\n"


def _docstring(text: str) -> str:
    """Return a docstring of the class or of a field, filled to the width of a line."""
    paragraphs = [" ".join(one.split()) for one in text.strip().split("\n\n")]
    if len(paragraphs) == 1:
        return indent(fill(f'"""{paragraphs[0]}"""', WIDTH - 4), "    ")
    first, *rest = [fill(one, WIDTH - 4) for one in (f'"""{paragraphs[0]}', *paragraphs[1:])]
    return indent("\n\n".join([first, *rest]) + '\n"""', "    ")


def _default(kind: str, schema: Schema) -> str:
    """Return Python text for the value of a field that the server did not send."""
    if kind.startswith("dict["):
        return "field(default_factory=dict)"
    if kind.endswith("| None"):
        return "None"
    if kind.startswith("tuple["):
        return "()"
    value = schema.get("default")
    if value is None:
        return ZEROS[kind]
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _type(schema: Schema, answers: Mapping[str, Schema]) -> str:
    """Return the Python type of a field."""
    if "$ref" in schema:
        name = _target(schema)
        if name in PLAIN_DOCUMENTS:
            return "dict[str, Any]"
        return name_of(name) if name in answers else "str"  # what has no fields is a closed set
    if "anyOf" in schema:
        kinds = [_type(one, answers) for one in schema["anyOf"] if one.get("type") != "null"]
        found = "dict[str, Any]" if "dict[str, Any]" in kinds else kinds[0]
        if set(kinds) <= {*SCALARS.values()}:
            found = " | ".join(dict.fromkeys(kinds))
        return f"{found} | None" if len(kinds) < len(schema["anyOf"]) else found
    kind = schema.get("type")
    if kind == "array":
        return f"tuple[{_type(schema['items'], answers)}, ...]"
    if kind == "object":
        values = schema.get("additionalProperties")
        of = _type(values, answers) if isinstance(values, Mapping) and values else "Any"
        return f"dict[str, {of}]"
    if kind == "string" and schema.get("format") == "date-time":
        return "datetime"
    return SCALARS.get(str(kind), "Any")


if __name__ == "__main__":
    main()
