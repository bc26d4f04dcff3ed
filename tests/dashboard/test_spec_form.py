"""The form of a spec: made from the API's document, read out of YAML and written back into it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.spec.spec import JobSpec
from dashboard.examples import read_examples
from dashboard.spec_form import (
    Field,
    Group,
    Unreadable,
    groups_of,
    merged,
    read_yaml,
    spec_of,
    values_of,
)
from dashboard.spec_uses import AXES, unused
from strategies.plan.catalog import TECHNIQUES

OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"


@cache
def groups() -> list[Group]:
    return groups_of(json.loads(OPENAPI.read_text()))


def field(path: str) -> Field:
    [found] = [
        field for group in groups() for field in (*group.basic, *group.more) if field.path == path
    ]
    return found


def paths_of(model: Any, before: str = "") -> set[str]:
    """Every field of a spec, as pydantic has them."""
    found: set[str] = set()
    for name, info in model.model_fields.items():
        inner = info.annotation
        nested = [
            one for one in (inner, *getattr(inner, "__args__", ())) if hasattr(one, "model_fields")
        ]
        found |= paths_of(nested[0], f"{before}{name}.") if nested else {f"{before}{name}"}
    return found


def test_every_field_of_a_spec_is_in_the_form_with_its_limits() -> None:
    listed = {one.path for group in groups() for one in (*group.basic, *group.more)}
    deep = {path for path in paths_of(JobSpec) if path.count(".") > 1}
    assert paths_of(JobSpec) - deep <= listed
    steps = field("training.steps")
    assert (steps.kind, steps.minimum, steps.maximum) == ("integer", 1, 100_000_000)
    assert (steps.is_required, steps.is_basic, steps.unit) == (True, True, "steps")
    assert "fsdp" in field("parallelism.strategy").choices
    assert field("deterministic").kind == "flag"
    assert (field("compile").choices, field("compile").default) == (
        ("true", "false", "auto"),
        "auto",
    )
    assert field("adapter.targets").kind == "words"
    assert field("training.micro_batch_size").kind == "text", "a number, or auto"
    assert field("training.beta1").default == "0.9"
    assert "largest learning rate" not in field("training.learning_rate").hint
    assert field("training.learning_rate").hint.startswith("Highest learning rate")


@pytest.mark.parametrize("name", sorted(read_examples()))
def test_an_example_goes_through_the_form_unchanged(name: str) -> None:
    spec = read_yaml(read_examples()[name])
    again = spec_of(values_of(spec), groups(), spec)
    assert JobSpec.model_validate(again) == JobSpec.model_validate(spec)


def test_what_was_typed_is_written_and_what_was_emptied_goes() -> None:
    spec = {"name": "a", "checkpoint": {"every_steps": 5}, "unknown": {"kept": 1}}
    typed = {
        "checkpoint.every_steps": "",
        "training.steps": "many",
        "training.learning_rate": "3e-4",
        "adapter.targets": "query, value",
        "compile": "true",
        "training.micro_batch_size": "auto",
    }
    assert spec_of(typed, groups(), spec) == {
        "name": "a",
        "unknown": {"kept": 1},
        "training": {"steps": "many", "learning_rate": 3e-4, "micro_batch_size": "auto"},
        "adapter": {"targets": ["query", "value"]},
        "compile": True,
    }


def test_advice_is_laid_over_a_spec() -> None:
    spec = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merged(spec, {"a": {"b": None, "e": 4}, "f": {"g": 5}}) == {
        "a": {"c": 2, "e": 4},
        "d": 3,
        "f": {"g": 5},
    }
    assert spec == {"a": {"b": 1, "c": 2}, "d": 3}


@pytest.mark.parametrize(
    "text",
    [
        "name: [",
        "- a list",
        "just words",
        "a: &x [1]\nb: [*x, *x]",
        "!!python/object/apply:os.system ['true']",
        "[" * 5000,
    ],
)
def test_what_is_no_spec_is_told_and_not_run(text: str) -> None:
    with pytest.raises(Unreadable):
        read_yaml(text)


def test_a_spec_as_yaml_is_read_as_itself() -> None:
    spec = read_yaml(read_examples()["gpt-ddp"])
    assert read_yaml(yaml.safe_dump(spec)) == spec


def test_every_field_has_a_sentence_about_it() -> None:
    bare = [one.path for group in groups() for one in (*group.basic, *group.more) if not one.hint]
    assert bare == []


def test_the_axes_of_the_strategies_are_those_of_the_planner() -> None:
    assert {name: set(axes) for name, axes in AXES.items()} == {
        str(strategy): set(technique.axes) for strategy, technique in TECHNIQUES.items()
    }


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        ("model.kv_heads", {"model.name": "gpt"}, True),
        ("model.kv_heads", {"model.name": "llama"}, False),
        ("model.kv_heads", {"model.name": "gpt", "model.kv_heads": "2"}, False),
        ("model.heads", {"model.name": "mlp"}, True),
        ("data.image_shape", {"model.name": "gpt"}, True),
        ("data.image_shape", {"model.name": "cnn"}, False),
        ("data.tokenizer_name", {"data.tokenizer": "bytes"}, True),
        ("data.vocabulary_size", {"data.tokenizer": "characters"}, False),
        ("parallelism.tensor_parallel_degree", {"parallelism.strategy": "zero2"}, True),
        ("parallelism.tensor_parallel_degree", {"parallelism.strategy": "fsdp"}, False),
        ("parallelism.tensor_parallel_degree", {"parallelism.strategy": "auto"}, False),
        ("parallelism.offload_parameters", {"parallelism.strategy": "zero3"}, False),
        ("parallelism.offload_parameters", {"parallelism.strategy": "zero2"}, True),
        ("parallelism.offload_optimizer", {"parallelism.strategy": "zero2"}, False),
        ("parallelism.gradient_compression", {"parallelism.strategy": "context"}, False),
        ("tiling.gather", {"parallelism.strategy": "ddp"}, True),
        ("training.steps", {"model.name": "gpt"}, False),
        ("model.kv_heads", {}, False),
    ],
)
def test_a_field_that_nothing_reads_is_known(
    path: str, values: dict[str, str], expected: bool
) -> None:
    assert unused(field(path), values) == expected
