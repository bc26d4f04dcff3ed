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

from core.base import flaw_sentences
from core.base.errors import BadRequest

MAX_DEPTH = 30
MAX_VALUES = 20_000  # fields and items: an agenda of 100 jobs that says everything has some 5,000
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
DIRECTIVE = re.compile(r"^%", re.MULTILINE)
INTEGER = re.compile(r"^[-+]?[0-9]{1,30}$")
CLOCK = re.compile(r"^[-+]?[0-9]+(:[0-5]?[0-9])+$")  # a number in base 60 by YAML 1.1
FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?$")

MAX_FLAWS = 50

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class SpecText:
    """Data of a text, and for YAML the line on which each field stands."""

    value: dict[str, Json]
    lines: dict[Path, int]


@dataclass(frozen=True)
class Flaw:
    """Flaw of a text, as a sentence that begins with the field."""

    param: str
    code: str
    message: str


class BadText(BadRequest):
    """The text cannot be read at all."""

    code = "unreadable"
    title = "Unreadable body"


def parse(body: bytes, content_type: str) -> SpecText:
    """Return the mapping in `body`. Raises BadText with the line and column."""
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
            f"The body's Content-Type is {kind or 'missing'}. Send application/json or "
            "application/yaml.",
            code="unsupported_media_type",
        )
    return read


def parse_json(text: str) -> SpecText:
    """Parse JSON as the standard has it: no NaN, no key twice. Raises BadText."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise BadText(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError as error:
        raise BadText("The body cannot be read: it is nested too deeply.") from error
    except ValueError as error:  # a number of more digits than Python converts
        raise BadText(f"The body cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise BadText("The body must be a JSON object of fields and values.")
    _refuse_many(_count(value))
    return SpecText(value=value, lines={})


def parse_yaml(text: str, *, quoted_clocks: bool = False) -> SpecText:
    """Parse YAML, the JSON part of it, with the line of every field. Raises BadText.

    `quoted_clocks` refuses 10:30 without quotes: other readers of the same text (YAML 1.1) take it
    for the number 630.
    """
    if directive := DIRECTIVE.search(text):  # libyaml compares each with all before it
        line = text.count("\n", 0, directive.start()) + 1
        raise BadText(f"Line {line}: YAML directives (%) are not supported. Remove them.")
    reading = _YamlReading(text, quoted_clocks=quoted_clocks)
    try:
        value = reading.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = error.problem or error.context or "it cannot be read"
        raise BadText(f"The body is not valid YAML: {what}{where}.") from error
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise BadText(
            f"The body is not valid YAML: it has a control character at line {line}."
        ) from error
    return SpecText(value=value, lines=reading.lines)


def flaws(
    errors: Sequence[Mapping[str, Any]],
    *,
    prefix: str = "",
    lines: Mapping[Path, int] | None = None,
) -> list[Flaw]:
    """Return Pydantic's errors as sentences that begin with the field; `lines` adds its line."""
    found = []
    for error in errors[:MAX_FLAWS]:
        loc = tuple(part for part in error["loc"] if part not in ("body", "query", "path"))
        param = ".".join(str(part) for part in loc)
        named = f"{prefix}{param}" or "body"
        line = line_of(loc, lines or {})
        where = f" (line {line})" if line else ""
        message = f"{named}{where}: {flaw_sentences.sentence(error)}"
        found.append(Flaw(param=param, code=str(error["type"]), message=message))
    return found


def line_of(loc: Path, lines: Mapping[Path, int]) -> int | None:
    """Return the line of the field, or of the nearest field around it that stands in the text."""
    for length in range(len(loc), 0, -1):
        if loc[:length] in lines:
            return lines[loc[:length]]
    return None


class _YamlReading:
    """One YAML document as plain data, built while libyaml reads it, as far as is allowed."""

    def __init__(self, text: str, *, quoted_clocks: bool) -> None:
        self.lines: dict[Path, int] = {}
        self._events = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._quoted_clocks = quoted_clocks
        self._values = 0

    def document(self) -> dict[str, Json]:
        """Return the mapping in the text. Raises BadText if it is not one."""
        self._next(yaml.StreamStartEvent)
        value = None
        if isinstance(self._next(), yaml.DocumentStartEvent):
            value = self._value(self._next(), ())
            self._next(yaml.DocumentEndEvent)
            after = self._next()
            if not isinstance(after, yaml.StreamEndEvent):
                raise BadText(
                    f"Line {_line(after)}: a second YAML document begins. Send one document."
                )
        if not isinstance(value, dict):
            raise BadText("The body must be a YAML mapping of fields and values.")
        return value

    def _next(self, kind: type[yaml.Event] = yaml.Event) -> yaml.Event:
        event = next(self._events)
        assert isinstance(event, kind)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise BadText(
                f"Line {_line(event)}: YAML anchors and aliases (& and *) are not supported. "
                "Write the value out."
            )
        if tag := getattr(event, "tag", None):
            raise BadText(
                f"Line {_line(event)}: YAML tags ({tag}) are not supported. Remove the tag."
            )
        return event

    def _value(self, event: yaml.Event, path: Path) -> Json:
        self._values += 1
        _refuse_many(self._values)
        if len(path) > MAX_DEPTH:
            raise BadText(f"Line {_line(event)}: nested more than {MAX_DEPTH} levels deep.")
        if path:
            self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Json] = []
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                items.append(self._value(event, (*path, len(items))))
            return items
        assert isinstance(event, yaml.ScalarEvent)
        if self._quoted_clocks:
            _refuse_bare_clock(event)
        return _scalar(event)

    def _mapping(self, path: Path) -> dict[str, Json]:
        built: dict[str, Json] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise BadText(f"Line {_line(event)}: a field's name must be plain text.")
            if self._quoted_clocks:
                _refuse_bare_clock(event)
            key = str(event.value)
            if key in built:
                raise BadText(f"Line {_line(event)}: {key} is given twice.", param=key)
            self.lines[(*path, key)] = _line(event)
            built[key] = self._value(self._next(), (*path, key))
        return built


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _refuse_bare_clock(scalar: yaml.ScalarEvent) -> None:
    if not scalar.style and CLOCK.match(scalar.value):
        raise BadText(
            f'Line {_line(scalar)}: write {scalar.value} in quotes, "{scalar.value}". Without '
            "quotes many YAML parsers read it as a number."
        )


def _refuse_many(values: int) -> None:
    if values > MAX_VALUES:
        raise BadText(f"The text has more than {MAX_VALUES:,} fields and items.")


def _scalar(scalar: yaml.ScalarEvent) -> Json:
    text = str(scalar.value)
    if scalar.style:  # quoted, or a block
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


def _count(value: Json) -> int:
    """Return the number of values in it, itself and all nested ones included."""
    found, inside = 0, [value]
    while inside:
        one = inside.pop()
        found += 1
        if isinstance(one, dict):
            inside.extend(one.values())
        elif isinstance(one, list):
            inside.extend(one)
    return found


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    built = dict(pairs)
    if len(built) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadText(f"{key} is given twice in one object.", param=key)
            seen.add(key)
    return built


def _no_constant(name: str) -> Json:
    raise BadText(f"{name} is not a JSON number.")
