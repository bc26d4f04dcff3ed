"""Decoding of the API's JSON to frozen dataclasses.

Fields that a newer server adds are kept in `raw` only.
"""

import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from trainyard.errors import UnexpectedAnswer

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """Base of answers. `raw` is the received document."""

    raw: Json = field(default_factory=dict, repr=False, compare=False)


AnyView = TypeVar("AnyView", bound=View)


def decode(kind: type[AnyView], document: object) -> AnyView:
    """Decode `document` as `kind`. Raises UnexpectedAnswer if it does not fit."""
    if not isinstance(document, Mapping):
        raise UnexpectedAnswer(f"expected a {kind.__name__}, got {type(document).__name__}")
    values: dict[str, Any] = {"raw": document}
    for name, (hint, required) in _shape(kind).items():  # type: ignore[arg-type]  # mypy looks at the instance's hash
        if name in document:
            values[name] = _value(hint, document[name], f"{kind.__name__}.{name}")
        elif required:
            raise UnexpectedAnswer(
                f"the server's {kind.__name__} has no {name!r}; does its version differ from this "
                "client's? `trainyard doctor` says how to get the matching client"
            )
    return kind(**values)


@functools.cache
def _shape(kind: Any) -> dict[str, tuple[Any, bool]]:
    hints = get_type_hints(kind)
    return {
        item.name: (
            hints[item.name],
            item.default is MISSING and item.default_factory is MISSING,
        )
        for item in fields(kind)
        if item.name != "raw"
    }


def _value(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        kinds = [arg for arg in get_args(hint) if arg is not type(None)]
        if len(kinds) > 1:  # alternatives are scalars
            return _expect(tuple(kinds), value, where)
        [hint] = kinds
        origin = get_origin(hint)
    if origin is tuple:
        item = get_args(hint)[0]
        return tuple(_value(item, one, where) for one in _expect(list, value, where))
    if origin is dict or hint is Any:
        return value
    if hint is datetime:
        try:
            return datetime.fromisoformat(_expect(str, value, where))
        except ValueError as error:
            raise UnexpectedAnswer(f"{where} is not a valid time: {value!r}") from error
    if isinstance(hint, type) and issubclass(hint, View):
        return decode(hint, value)
    if hint is float:
        return float(_expect((int, float), value, where))
    return _expect(hint, value, where)


def _expect(kind: Any, value: Any, where: str) -> Any:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if not fits:
        raise UnexpectedAnswer(f"{where} is {value!r}, which is not what this client expects")
    return value
