"""Decoding of the API's JSON to frozen dataclasses.

Fields that a newer server adds are kept in `raw` only.
"""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from trainyard.errors import UnexpectedAnswer

Json = Mapping[str, Any]
Reader = Callable[[Any], Any]
"""Function that returns a value of the document as the field's type, or raises UnexpectedAnswer."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Base of answers. `raw` is the received document."""

    raw: Json = field(default_factory=dict, repr=False, compare=False)


AnyView = TypeVar("AnyView", bound=View)


def decode(kind: type[AnyView], document: object) -> AnyView:
    """Decode `document` as `kind`. Raises UnexpectedAnswer if it does not fit."""
    if not isinstance(document, Mapping):
        raise UnexpectedAnswer(f"expected a {kind.__name__}, got {type(document).__name__}")
    # Not by its constructor: a frozen class sets each field by a call, half of the time.
    view = object.__new__(kind)
    values = view.__dict__
    values["raw"] = document
    for name, read, default in _fields_of(kind):  # type: ignore[arg-type]  # mypy looks at the instance's hash
        if name in document:
            values[name] = read(document[name])
        elif default is not None:
            values[name] = default()
        else:
            raise UnexpectedAnswer(
                f"the server's {kind.__name__} has no {name!r}; does its version differ from this "
                "client's? `trainyard doctor` says how to get the matching client"
            )
    return view


class _FieldOf(NamedTuple):
    name: str
    read: Reader
    default: Callable[[], Any] | None
    """Function that returns the value of a field that is missing; None: it is required."""


@functools.cache
def _fields_of(kind: type[View]) -> tuple[_FieldOf, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _FieldOf(
            one.name, _reader(hints[one.name], f"{kind.__name__}.{one.name}"), _default_of(one)
        )
        for one in fields(kind)
        if one.name != "raw"
    )


def _default_of(one: Field[Any]) -> Callable[[], Any] | None:
    if one.default_factory is not MISSING:
        return one.default_factory
    return None if one.default is MISSING else lambda: one.default


def _reader(hint: Any, where: str) -> Reader:
    """Return the reader of a field's type; `where` names the field in errors."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        kinds = [arg for arg in get_args(hint) if arg is not types.NoneType]
        # Alternatives are scalars.
        read = _scalar(tuple(kinds), where) if len(kinds) > 1 else _reader(kinds[0], where)
        if types.NoneType not in get_args(hint):
            return read
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        read_item, read_list = _reader(get_args(hint)[0], where), _scalar((list,), where)
        return lambda value: tuple(map(read_item, read_list(value)))
    if origin is dict or hint is Any:
        return lambda value: value
    if hint is datetime:
        return functools.partial(_moment, where=where)
    if isinstance(hint, type) and issubclass(hint, View):
        return functools.partial(decode, hint)
    if hint is float:
        read_number = _scalar((int, float), where)
        return lambda value: float(read_number(value))
    return _scalar((hint,), where)


def _scalar(kinds: tuple[type, ...], where: str) -> Reader:
    """Return a reader of plain values of these types; a bool is not an int."""

    def read(value: Any) -> Any:
        if type(value) in kinds:
            return value
        if isinstance(value, kinds) and not isinstance(value, bool):
            return value
        raise UnexpectedAnswer(f"{where} is {value!r}, which is not what this client expects")

    return read


def _moment(value: Any, *, where: str) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise UnexpectedAnswer(f"{where} is not a valid time: {value!r}") from error
