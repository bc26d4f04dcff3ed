"""Sentences about wrong values, from the errors of the validator. Pure.

Nothing of the validator's own wording reaches anybody: an error of a kind that is not listed here
says that the value cannot be used.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

SHOWN = 80  # characters of a wrong value that are repeated in a message
SECRET = frozenset({"secret", "password", "token", "new_password", "value"})
"""Fields whose value is not repeated: it may be a secret."""

EMAIL = r"^[^@\s<>\"(),:;\\\[\]]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,188}[A-Za-z0-9])?$"
NAME = (
    "must begin with a letter or digit, and consist of letters, digits, dots, dashes and "
    "underscores; at most 63 characters"
)
HASH = "must be a SHA-256 in hexadecimal, 64 characters"
PATTERNS: Mapping[str, str] = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$": NAME,
    r"^[a-z][a-z0-9_.-]{0,31}$": (
        "must begin with a lowercase letter, and consist of lowercase letters, digits, dots, "
        "dashes and underscores; at most 32 characters"
    ),
    r"^[a-z0-9][a-z0-9._-]{0,31}$": (
        "must begin with a lowercase letter or digit, and consist of lowercase letters, digits, "
        "dots, dashes and underscores; at most 32 characters"
    ),
    r"^[a-z0-9][a-z0-9-]{0,62}$": (
        "must consist of lowercase letters, digits and dashes; at most 63 characters"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,62}$": (
        "must begin with a letter or digit, and consist of letters, digits, spaces, dots, dashes "
        "and underscores; at most 63 characters"
    ),
    r"^([A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*$": (
        "must be a name, or owner/name, of letters, digits, dots, dashes and underscores"
    ),
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$": (
        "must be the name of an environment variable: letters, digits and underscores, no digit "
        "first; at most 128 characters"
    ),
    r"^[^\x00]*$": "must not have the character U+0000",
    r"^[\x21-\x7e]{1,200}$": "must be 1 to 200 visible ASCII characters without spaces",
    EMAIL: "must be an e-mail address such as ada@example.org",
    r"^[0-9a-f]{64}$": HASH,
    r"^[0-9a-f]{40,64}$": "must be the hash of a commit, 40 to 64 characters in hexadecimal",
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "must be a time of day such as 18:00",
    r"^job_[0-9a-z]{26}$": "must be the id of a job, such as job_01m8...",
    r"^lease_[0-9a-z]{26}$": "must be the id of a lease, such as lease_01m8...",
    "^(stdout|stderr)$": "must be stdout or stderr",
}


PLURALS = {"character": "characters", "entry": "entries"}


def sentence(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a field: the end of a sentence that begins with its name."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind == "missing":
        return "this field is required."
    if kind == "extra_forbidden":
        return "this field does not exist."
    if kind in ("value_error", "assertion_error"):
        return _own(error)
    demand = _demand(kind, context)
    shown = _shown(error)
    return f"{demand}, not {shown}." if shown else f"{demand}."


def _own(error: Mapping[str, Any]) -> str:
    """A sentence of a validator of ours; the value follows unless it is named already."""
    message = re.sub(r"^(Value error|Assertion failed), ", "", str(error["msg"]))
    message = message.removesuffix(".")
    shown = _shown(error)
    value = error.get("input")
    is_named = isinstance(value, str) and value != "" and value in message
    return f"{message}." if not shown or is_named else f"{message}, not {shown}."


def _shown(error: Mapping[str, Any]) -> str:
    value = error.get("input")
    location = error.get("loc") or ()
    if location and location[-1] in SECRET:
        return ""
    if not (isinstance(value, str | int | float | bool) or value is None):
        return ""
    text = repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _demand(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(str(context.get("pattern")), "has a form that is not allowed here")
    for names, words in DEMANDS:
        if kind in names:
            return words(context)
    return "cannot be used"


def _plain(words: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _: words


def _limit(words: str, key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda context: f"must be {words} {_number(context.get(key))}"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _counted(least: str, key: str, noun: str) -> Callable[[Mapping[str, Any]], str]:
    def words(context: Mapping[str, Any]) -> str:
        number = context.get(key)
        unit = noun if number == 1 else PLURALS[noun]
        has = context.get("actual_length")
        told = f"; it has {_number(has)}" if has is not None else ""
        return f"must have {least} {_number(number)} {unit}{told}"

    return words


DEMANDS: tuple[tuple[frozenset[str], Callable[[Mapping[str, Any]], str]], ...] = (
    (
        frozenset({"int_type", "int_parsing", "int_from_float", "int_parsing_size"}),
        _plain("must be a whole number"),
    ),
    (
        frozenset({"float_type", "float_parsing", "decimal_type", "decimal_parsing"}),
        _plain("must be a number"),
    ),
    (frozenset({"finite_number"}), _plain("must be a finite number")),
    (frozenset({"bool_type", "bool_parsing"}), _plain("must be true or false")),
    (frozenset({"string_type", "string_sub_type", "string_unicode"}), _plain("must be text")),
    (frozenset({"bytes_type"}), _plain("must be bytes")),
    (frozenset({"none_required"}), _plain("must be left out")),
    (frozenset({"greater_than"}), _limit("greater than", "gt")),
    (frozenset({"greater_than_equal"}), _limit("at least", "ge")),
    (frozenset({"less_than"}), _limit("less than", "lt")),
    (frozenset({"less_than_equal"}), _limit("at most", "le")),
    (frozenset({"multiple_of"}), _limit("a multiple of", "multiple_of")),
    (frozenset({"string_too_short"}), _counted("at least", "min_length", "character")),
    (frozenset({"string_too_long"}), _counted("at most", "max_length", "character")),
    (frozenset({"too_short"}), _counted("at least", "min_length", "entry")),
    (frozenset({"too_long"}), _counted("at most", "max_length", "entry")),
    (
        frozenset({"enum", "literal_error"}),
        lambda context: f"must be {context.get('expected')}",
    ),
    (
        frozenset({"union_tag_invalid", "union_tag_not_found"}),
        lambda context: f"must be one of {context.get('expected_tags') or 'the known kinds'}",
    ),
    (
        frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"}),
        _plain("must be a list"),
    ),
    (
        frozenset(
            {
                *("dict_type", "mapping_type", "model_type", "model_attributes_type"),
                *("dataclass_type", "arguments_type"),
            }
        ),
        _plain("must be a group of fields with their values"),
    ),
    (
        frozenset({"timezone_aware", "timezone_offset"}),
        _plain("needs the offset of its zone, such as 2026-12-01T14:00+01:00"),
    ),
    (
        frozenset(
            {
                *("datetime_type", "datetime_parsing", "datetime_object_invalid"),
                *("datetime_from_date_parsing",),
            }
        ),
        _plain("must be a moment such as 2026-12-01T14:00+01:00"),
    ),
    (
        frozenset(
            {
                *("date_type", "date_parsing", "date_from_datetime_parsing"),
                *("date_from_datetime_inexact",),
            }
        ),
        _plain("must be a day such as 2026-12-01"),
    ),
    (frozenset({"time_type", "time_parsing"}), _plain("must be a time of day such as 18:00")),
    (
        frozenset({"time_delta_type", "time_delta_parsing"}),
        _plain("must be a duration such as 20min"),
    ),
    (
        frozenset({"url_type", "url_parsing", "url_syntax_violation", "url_scheme"}),
        _plain("must be an address such as https://example.org"),
    ),
    (frozenset({"json_type", "json_invalid"}), _plain("must be valid JSON")),
)
