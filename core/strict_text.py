"""The text of a job or policy as plain data, from JSON or YAML, strictly: no guessing.

YAML is read as the subset that JSON can say: no aliases, no tags, one document, no key twice, and
YAML 1.2's idea of numbers and booleans (`2e-3` is a number, `no` and `12:30` are text).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from core.errors import BadRequest

MAX_DEPTH = 30
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
INTEGER = re.compile(r"^[-+]?[0-9]{1,30}$")
CLOCK = re.compile(r"^[-+]?[0-9]+(:[0-5]?[0-9])+$")  # what YAML 1.1 takes for base 60
FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?$")

MAX_FLAWS = 50
SHOWN = 80  # characters of a wrong value that are repeated in a message

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class SpecText:
    """The data, and for YAML the line on which each field stands."""

    value: dict[str, Json]
    lines: dict[Path, int]


@dataclass(frozen=True)
class Flaw:
    """One thing that is wrong in a text, as a sentence that begins with the field."""

    param: str
    code: str
    message: str


class BadText(BadRequest):
    """The text cannot be read at all."""

    code = "unreadable"
    title = "Unreadable body"


def parse(body: bytes, content_type: str) -> SpecText:
    """The mapping that `body` says. Raises BadText with the line and column."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadText(f"The body is not UTF-8: byte {error.start} is wrong.") from error
    if kind in YAML_TYPES:
        read = parse_yaml(text)
    elif kind == "application/json" or kind.endswith("+json"):
        read = parse_json(text)
    else:
        raise BadText(
            f"The body's Content-Type is {kind or 'missing'}; send application/json or "
            "application/yaml.",
            code="unsupported_media_type",
        )
    return read


def parse_json(text: str) -> SpecText:
    """JSON as the standard has it: no NaN, no key twice."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise BadText(
            f"Not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError as error:
        raise BadText("Not readable: it is nested too deeply.") from error
    except ValueError as error:  # a number of more digits than Python converts
        raise BadText(f"Not readable: {error}.") from error
    if not isinstance(value, dict):
        raise BadText("The text must be a JSON object, fields with their values.")
    return SpecText(value=value, lines={})


def parse_yaml(text: str, *, quoted_clocks: bool = False) -> SpecText:
    """YAML, the JSON part of it, with the line of every field.

    `quoted_clocks` refuses 10:30 without quotes: other readers of the same text (YAML 1.1) take it
    for the number 630.
    """
    try:
        _refuse_events(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = error.problem or error.context or "it cannot be read"
        raise BadText(f"Not YAML: {what}{where}.") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise BadText(f"Not YAML: a control character at line {line}.") from error
    if not isinstance(root, MappingNode):
        raise BadText("The text must be a YAML mapping, fields with their values.")
    if quoted_clocks:
        _refuse_bare_clocks(root)
    lines: dict[Path, int] = {}
    value = _build(root, (), lines)
    assert isinstance(value, dict)
    return SpecText(value=value, lines=lines)


def flaws(
    errors: Sequence[Mapping[str, Any]],
    *,
    prefix: str = "",
    lines: Mapping[Path, int] | None = None,
) -> list[Flaw]:
    """Pydantic's errors as sentences that begin with the field; `lines` adds where it stands."""
    found = []
    for error in errors[:MAX_FLAWS]:
        loc = tuple(part for part in error["loc"] if part not in ("body", "query", "path"))
        param = ".".join(str(part) for part in loc)
        named = f"{prefix}{param}" or "body"
        line = line_of(loc, lines or {})
        where = f" (line {line})" if line else ""
        message = f"{named}{where}: {_sentence(error)}"
        found.append(Flaw(param=param, code=str(error["type"]), message=message))
    return found


def line_of(loc: Path, lines: Mapping[Path, int]) -> int | None:
    """The line of the field, or of the nearest thing around it that stands in the text."""
    for length in range(len(loc), 0, -1):
        if loc[:length] in lines:
            return lines[loc[:length]]
    return None


def _sentence(error: Mapping[str, Any]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return "this field is not known."
    if error["type"] == "missing":
        return "this field is required."
    value = error.get("input")
    if isinstance(value, str | int | float | bool) or value is None:
        shown = repr(value).encode("ascii", "backslashreplace").decode()
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        return f"{message}, not {shown}."
    return f"{message}."


def _refuse_bare_clocks(node: Node) -> None:
    if isinstance(node, ScalarNode):
        if node.style is None and CLOCK.match(node.value):
            raise BadText(
                f"Line {node.start_mark.line + 1}: write {node.value} in quotes, "
                f'"{node.value}". Without them many YAML readers take it for a number.'
            )
    elif isinstance(node, SequenceNode):
        for item in node.value:
            _refuse_bare_clocks(item)
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            _refuse_bare_clocks(key)
            _refuse_bare_clocks(value)


def _refuse_events(text: str) -> None:
    """Refuse aliases, anchors, tags and depth before anything is built from them."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise BadText(f"Line {line}: YAML anchors and aliases (& and *) are not read here.")
        if tag := getattr(event, "tag", None):
            raise BadText(f"Line {line}: YAML tags ({tag}) are not read here.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise BadText(f"Line {line}: nested more than {MAX_DEPTH} levels deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _build(node: Node, path: Path, lines: dict[Path, int]) -> Json:
    if path:
        lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, ScalarNode):
        return _scalar(node)
    if isinstance(node, SequenceNode):
        return [_build(item, (*path, index), lines) for index, item in enumerate(node.value)]
    assert isinstance(node, MappingNode)
    built: dict[str, Json] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            raise BadText(f"Line {line}: a field's name must be plain text.")
        key = str(key_node.value)
        if key in built:
            raise BadText(f"Line {line}: {key} stands here twice.", param=key)
        lines[(*path, key)] = line
        built[key] = _build(value_node, (*path, key), lines)
    return built


def _scalar(node: ScalarNode) -> Json:
    text = str(node.value)
    if node.style is not None:  # quoted, or a block
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if INTEGER.match(text):
        return int(text)
    if FLOAT.match(text):
        return float(text)
    return text


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    built = dict(pairs)
    if len(built) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadText(f"{key} stands in one object twice.", param=key)
            seen.add(key)
    return built


def _no_constant(name: str) -> Json:
    raise BadText(f"{name} is not a JSON number.")
