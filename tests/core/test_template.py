"""Templates: what their open fields take, and which change of a locked field is found."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.spec.template import (
    TemplateKind,
    TemplateSpec,
    changes,
    filled,
    qualified,
    with_code,
)

SPEC: dict[str, Any] = {
    "name": "lab",
    "data": {"dataset": "ann/corpus", "sequence_length": 64},
    "training": {"steps": 10, "learning_rate": 0.001},
}


def template(*fields: dict[str, Any], **changed: Any) -> TemplateSpec:
    return TemplateSpec.model_validate({"name": "lab", "spec": SPEC, "open": fields, **changed})


RATE = {"field": "training.learning_rate", "minimum": 1e-5, "maximum": 0.1}
STRATEGY = {"field": "parallelism.strategy", "choices": ["ddp", "fsdp"]}


def test_open_fields_are_set_and_all_others_stay() -> None:
    lab = template(RATE, STRATEGY)
    values = {"training.learning_rate": 0.01, "parallelism.strategy": "fsdp"}
    spec, refusals = filled(lab, values)
    assert refusals == []
    assert spec == {
        **SPEC,
        "training": {"steps": 10, "learning_rate": 0.01},
        "parallelism": {"strategy": "fsdp"},
    }
    assert lab.spec == SPEC  # the template itself is as it was


@pytest.mark.parametrize(
    ("values", "field", "code", "words"),
    [
        ({"training.steps": 11}, "training.steps", "locked", "Open: parallelism.strategy, train"),
        ({"training": {}}, "training", "locked", "locks this field"),
        ({"training.learning_rate": 0.5}, "training.learning_rate", "not_allowed", "0.5 is more"),
        ({"training.learning_rate": 1e-9}, "training.learning_rate", "not_allowed", "is less than"),
        ({"training.learning_rate": "fast"}, "training.learning_rate", "not_allowed", "not a numb"),
        ({"training.learning_rate": True}, "training.learning_rate", "not_allowed", "not a number"),
        ({"parallelism.strategy": "tensor"}, "parallelism.strategy", "not_allowed", "ddp, fsdp"),
        ({"parallelism.strategy": None}, "parallelism.strategy", "missing", "fill it in"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(
    values: dict[str, Any], field: str, code: str, words: str
) -> None:
    _, refusals = filled(template(RATE, STRATEGY), {"parallelism.strategy": "ddp", **values})
    assert [(one.field, one.code) for one in refusals] == [(field, code)]
    assert words in refusals[0].message
    assert refusals[0].message.startswith(f"{field}: ")


def test_a_field_without_default_must_be_filled_in() -> None:
    _, refusals = filled(template(STRATEGY), {})
    assert [(one.field, one.code) for one in refusals] == [("parallelism.strategy", "missing")]


def test_a_whole_spec_may_differ_in_open_fields_alone() -> None:
    lab = template(RATE, STRATEGY)
    mine = {
        **SPEC,
        "training": {"steps": 10, "learning_rate": 0.02},
        "parallelism": {"strategy": "ddp"},
        "lease": "lease_1",
    }
    values, wrong = changes(lab, mine)
    assert wrong == []
    assert values == {"training.learning_rate": 0.02, "parallelism.strategy": "ddp"}
    for changed, field in (
        ({"data": {**SPEC["data"], "sequence_length": 65}}, "data.sequence_length"),
        ({"data": {"dataset": "ann/corpus"}}, "data.sequence_length"),
        ({"precision": "bfloat16"}, "precision"),
        ({"parallelism": {"strategy": "ddp", "degree": 2}}, "parallelism.degree"),
        ({"name": None}, "name"),
    ):
        _, wrong = changes(lab, {**mine, **changed})
        assert [one.field for one in wrong] == [field]


def test_fields_of_an_agendas_jobs_are_open_one_by_one() -> None:
    agenda = {"name": "lab", "common": {"seed": 1}, "jobs": [{"steps": 1}, {"steps": 2}]}
    lab = template({"field": "jobs.1.steps"}, spec=agenda)
    assert lab.kind is TemplateKind.AGENDA
    spec, refusals = filled(lab, {"jobs.1.steps": 7})
    assert (refusals, spec["jobs"]) == ([], [{"steps": 1}, {"steps": 7}])
    assert [one.field for one in changes(lab, {**spec, "jobs": [{"steps": 3}, {}]})[1]] == [
        "jobs.0.steps"
    ]
    assert [one.field for one in changes(lab, {**spec, "jobs": []})[1]] == ["jobs"]
    lost = template({"field": "jobs.2.steps"}, spec=agenda)
    assert filled(lost, {"jobs.2.steps": 7})[1][0].code == "unknown_field"


@pytest.mark.parametrize(
    "changed",
    [
        {"open": [RATE, RATE]},
        {"open": [RATE, {"field": "training"}]},
        {"open": [{"field": "Training..x"}]},
        {"spec": {**SPEC, "lease": "lease_1"}},
        {"name": "no/slash"},
        {"locked": []},
    ],
)
def test_a_template_that_contradicts_itself_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        template(**{"open": [], **changed})


def test_things_are_named_with_their_owner_and_folders_keep_their_names() -> None:
    plain = {
        "data": {"dataset": "corpus", "mixture": [{"dataset": "books"}], "tokenizer_name": "bpe"},
        "model": {"checkpoint": "hub:a/b"},
        "inputs": [{"model": "tiny"}, {"dataset": "x", "name": "lab/x"}],
        "jobs": [{"data": {"dataset": "python-stdlib"}, "model": {"checkpoint": "bob/tiny"}}],
    }
    named = qualified(plain, "ann")
    assert named["data"] == {
        "dataset": "ann/corpus",
        "mixture": [{"dataset": "ann/books"}],
        "tokenizer_name": "ann/bpe",
    }
    assert named["model"] == {"checkpoint": "hub:a/b"}
    assert named["inputs"] == [
        {"model": "ann/tiny", "name": "tiny"},
        {"dataset": "ann/x", "name": "lab/x"},
    ]
    assert named["jobs"] == plain["jobs"]
    assert qualified(named, "carl") == named
    scripts = {"common": {"script": {"entry": "a.py"}}, "jobs": [{"script": {"code": "b"}}]}
    coded = with_code(scripts, "c")
    assert (coded["common"]["script"]["code"], coded["jobs"][0]["script"]["code"]) == ("c", "b")


LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.booleans())
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


@given(ours=st.dictionaries(st.sampled_from("abc"), TREES, max_size=3), theirs=TREES)
def test_no_difference_of_a_locked_template_is_missed(ours: dict[str, Any], theirs: Any) -> None:
    lab = template(spec=ours)
    assert changes(lab, ours) == ({}, [])
    given_ = theirs if isinstance(theirs, dict) else {"a": theirs}
    assert bool(changes(lab, given_)[1]) == (given_ != ours)
