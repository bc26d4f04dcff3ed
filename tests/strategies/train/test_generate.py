"""The end of a run: weights as one file, and a sample of text."""

from pathlib import Path

import torch
from safetensors import safe_open

from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Bytes, Characters
from strategies.plan.spec import TrainSpec
from strategies.train.generate import TOP_K, export_weights, generate, sample_text
from strategies.train.init import build_model
from tests.strategies.support.training_runs import make_spec

CPU = torch.device("cpu")


def test_weights_are_exported_by_name_with_their_spec(tmp_path: Path) -> None:
    spec = make_spec()
    weights = dict(build_model(spec, device=CPU).named_parameters())
    path = tmp_path / "model.safetensors"
    detached = {name: tensor.detach() for name, tensor in weights.items()}
    export_weights(path, detached, spec, Characters("to be, or not"))
    with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
        assert TrainSpec.model_validate_json(file.metadata()["spec"]) == spec
        assert tokenizer_from(file.metadata()["tokenizer"]).decode([1, 4, 5]) == ",no"
        assert set(file.keys()) == set(weights)
        for name, tensor in weights.items():
            assert torch.equal(file.get_tensor(name), tensor)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_sample_begins_with_its_prompt_and_repeats_for_the_same_weights() -> None:
    spec = make_spec()
    weights = dict(build_model(spec, device=CPU).named_parameters())
    first = sample_text(weights, spec, Bytes(), prompt="class ", num_tokens=60)
    assert first.startswith("class ")
    assert len(first.encode(errors="replace")) >= 60
    assert sample_text(weights, spec, Bytes(), prompt="class ", num_tokens=60) == first


def test_it_runs_on_beyond_the_sequence_length_and_draws_from_the_likeliest() -> None:
    model = build_model(make_spec(data__sequence_length=8), device=CPU)
    text = generate(model, [97, 98, 99], num_tokens=30, vocabulary=256, seed=1)
    assert len(text) == 33
    assert text[:3] == [97, 98, 99]
    for i in range(3, 33):
        with torch.inference_mode():
            likeliest = model(torch.tensor([text[max(0, i - 8) : i]]))[0, -1].topk(TOP_K)
        assert text[i] in likeliest.indices.tolist()


def test_an_empty_prompt_begins_with_a_line_break() -> None:
    spec = make_spec()
    weights = dict(build_model(spec, device=CPU).named_parameters())
    assert sample_text(weights, spec, Bytes(), prompt="", num_tokens=5).startswith("\n")


def test_only_characters_of_the_text_are_drawn_and_unknown_ones_of_a_prompt_are_left_out() -> None:
    spec = make_spec(data__tokenizer="characters", data__vocabulary_size=40)
    weights = dict(build_model(spec, device=CPU).named_parameters())
    tokenizer = Characters("to be, or not")
    sample = sample_text(weights, spec, tokenizer, prompt="Not tobe", num_tokens=50)
    assert sample.startswith("ot tobe")
    assert set(sample) <= set("to be, or not")
    assert len(sample) == 57
    assert len(sample_text(weights, spec, tokenizer, prompt="", num_tokens=5)) == 6
