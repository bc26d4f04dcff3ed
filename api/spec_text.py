"""The text of a job as plain data, from JSON or YAML, strictly: what is unclear is refused.

YAML is read as the subset that JSON can say: no aliases, no tags, one document, no key twice, and
YAML 1.2's idea of numbers and booleans (`2e-3` is a number, `no` and `12:30` are text).
"""

import json
import re
from dataclasses import dataclass

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from core.errors import BadRequest

MAX_DEPTH = 30
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
INTEGER = re.compile(r"^[-+]?[0-9]{1,30}$")
FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?$")

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class SpecText:
    """The data, and for YAML the line on which each field stands."""

    value: dict[str, Json]
    lines: dict[Path, int]


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
        raise BadText("Not a job: it is nested too deeply.") from error
    except ValueError as error:  # a number of more digits than Python converts
        raise BadText(f"Not readable: {error}.") from error
    if not isinstance(value, dict):
        raise BadText("A job is a JSON object, with fields such as name, model and resources.")
    return SpecText(value=value, lines={})


def parse_yaml(text: str) -> SpecText:
    """YAML, the JSON part of it, with the line of every field."""
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
        raise BadText("A job is a YAML mapping, with fields such as name, model and resources.")
    lines: dict[Path, int] = {}
    value = _build(root, (), lines)
    assert isinstance(value, dict)
    return SpecText(value=value, lines=lines)


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
