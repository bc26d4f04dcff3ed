"""A spec is checked field by field, and each refusal names its field."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from strategies.plan.spec import Strategy, TrainSpec
from tests.strategies.support.training_runs import make_spec


def refused_at(**changes: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        make_spec(**changes)
    return [".".join(str(part) for part in error["loc"]) for error in caught.value.errors()]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model__name", "bert"),
        ("model__layers", 0),
        ("model__layers", 10**30),
        ("model__layers", "4"),
        ("model__layers", True),
        ("model__layers", 4.5),
        ("model__heads", -1),
        ("model__dropout", 0.1),
        ("data__dataset", ""),
        ("data__dataset", "../../etc/passwd"),
        ("data__dataset", "a\nb"),
        ("data__dataset", "x" * 129),
        ("data__tokenizer", "words"),
        ("data__sequence_length", 0),
        ("data__held_out", 0.6),
        ("training__steps", 0),
        ("training__global_batch_size", None),
        ("training__learning_rate", 0.0),
        ("training__learning_rate", float("nan")),
        ("training__learning_rate", float("inf")),
        ("training__schedule", "linear"),
        ("training__beta2", 1.0),
        ("training__max_grad_norm", 0.0),
        ("training__seed", -1),
        ("training__seed", 2**63),
        ("training__epochs", 3),
        ("parallelism__strategy", "magic"),
        ("parallelism__data_parallel_replicate_degree", 0),
        ("precision", "float8"),
        ("checkpoint__keep_last", 0),
        ("checkpoint__every_steps", 0),
        ("surprise", 1),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    assert refused_at(**{field: value}) == [field.replace("__", ".")]


def test_defaults_are_those_of_the_design() -> None:
    spec = make_spec()
    training = spec.training
    assert (training.beta1, training.beta2, training.weight_decay) == (0.9, 0.95, 0.1)
    assert (training.min_learning_rate_ratio, training.schedule) == (0.1, "cosine")
    assert (spec.data.held_out, spec.data.tokenizer) == (0.02, "bytes")
    assert (spec.precision, spec.checkpoint.keep_last) == ("float32", 2)


def test_every_strategy_of_the_design_has_its_name() -> None:
    assert [strategy.value for strategy in Strategy] == [
        *["auto", "single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3"],
        *["tensor", "pipeline", "context", "naive", "local_sgd"],
    ]


def test_a_spec_survives_json_and_is_frozen() -> None:
    spec = make_spec(model__name="llama", model__kv_heads=2)
    assert TrainSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ValidationError, match="frozen"):
        spec.precision = "float64"  # type: ignore[misc, assignment]


def test_the_schema_describes_the_fields() -> None:
    schema = json.dumps(TrainSpec.model_json_schema())
    assert "Samples per step over all ranks" in schema
