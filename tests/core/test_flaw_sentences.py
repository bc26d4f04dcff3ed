"""A wrong value is told in a sentence of the platform, never in the validator's words."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import AwareDatetime, BaseModel, Field, ValidationError
from pydantic_core.core_schema import ErrorType

from core.base.flaw_sentences import PATTERNS, sentence
from core.base.strict_text import flaws
from core.states import JobState

OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"
RAW = re.compile(r"Input should|String should|should match|valid \w+, unable|Value error|pydantic")


class Form(BaseModel, extra="forbid"):
    """One field of each common kind."""

    name: str = Field(default="ada", pattern=r"^[a-z][a-z0-9_.-]{0,31}$")
    secret: str = Field(default="x" * 20, min_length=20)
    width: int = Field(default=64, ge=1, le=4096)
    rate: float = Field(default=0.1, gt=0)
    flag: bool = False
    state: JobState = JobState.QUEUED
    rows: list[int] = Field(default=[1], min_length=1, max_length=2)
    at: AwareDatetime | None = None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"name": "Ada Lovelace"},
            "name: must begin with a lowercase letter, and consist of lowercase letters, digits, "
            "dots, dashes and underscores; at most 32 characters, not 'Ada Lovelace'.",
        ),
        ({"secret": "abc"}, "secret: must have at least 20 characters."),
        ({"width": "abc"}, "width: must be a whole number, not 'abc'."),
        ({"width": 1.5}, "width: must be a whole number, not 1.5."),
        ({"width": 5000}, "width: must be at most 4,096, not 5000."),
        ({"rate": 0}, "rate: must be greater than 0.0, not 0."),
        ({"flag": "perhaps"}, "flag: must be true or false, not 'perhaps'."),
        ({"rows": []}, "rows: must have at least 1 entry; it has 0."),
        ({"rows": [1, 2, 3]}, "rows: must have at most 2 entries; it has 3."),
        ({"rows": 7}, "rows: must be a list, not 7."),
        (
            {"at": "2026-12-01T14:00"},
            "at: needs the offset of its zone, such as 2026-12-01T14:00+01:00, not "
            "'2026-12-01T14:00'.",
        ),
        ({"unknown": 1}, "unknown: this field does not exist."),
    ],
)
def test_a_wrong_value_is_told_with_field_demand_and_value(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError) as found:
        Form.model_validate(given)
    [flaw] = flaws(found.value.errors())
    assert flaw.message == told


def test_a_word_that_is_not_among_the_known_ones_is_told_with_them() -> None:
    with pytest.raises(ValidationError) as found:
        Form.model_validate({"state": "asleep"})
    [flaw] = flaws(found.value.errors())
    assert flaw.message.startswith("state: must be 'queued', 'starting'")
    assert flaw.message.endswith(", not 'asleep'.")


@pytest.mark.parametrize("kind", get_args(ErrorType))
def test_no_kind_of_error_keeps_the_validators_words(kind: str) -> None:
    error = {"type": kind, "loc": ("field",), "msg": "Input should be a valid thing", "input": 1}
    if kind in ("value_error", "assertion_error"):
        error["msg"] = "Value error, 3 ranks are too few"
        assert sentence(error) == "3 ranks are too few, not 1."
    else:
        assert not RAW.search(sentence(error))


def test_a_value_that_a_message_names_is_not_told_twice() -> None:
    error = {
        "type": "value_error",
        "loc": ("wall_time",),
        "msg": "Value error, 'two hours' is not a valid duration; write it like 1h 30min.",
        "input": "two hours",
    }
    assert sentence(error) == "'two hours' is not a valid duration; write it like 1h 30min."


def test_the_usual_patterns_of_the_api_have_words() -> None:
    found: dict[str, int] = {}

    def collect(part: object) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("pattern"), str):
                found[part["pattern"]] = found.get(part["pattern"], 0) + 1
            for inner in part.values():
                collect(inner)
        elif isinstance(part, list):
            for inner in part:
                collect(inner)

    collect(json.loads(OPENAPI.read_text()))
    often = {pattern for pattern, times in found.items() if times > 2}
    assert often - set(PATTERNS) == set()
