"""Text from a trained model: the same with kept keys and values as without."""

from typing import Any

import pytest
import torch

from strategies.plan.data.tokens import Bytes, Characters
from strategies.train.generate import TOP_K, CachingReader, generate, sample_text, window_start
from strategies.train.init import build_model
from strategies.train.models.transformer import Transformer
from tests.strategies.support.training_runs import make_spec

CPU = torch.device("cpu")
GROUPED = {"model": {"name": "llama", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2}}


def model_of(**changes: Any) -> Transformer:
    model = build_model(make_spec(precision="float64", **changes), device=CPU)
    assert isinstance(model, Transformer)
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, GROUPED, {**GROUPED, "model__query_key_norms": True}],
    ids=["gpt", "llama", "llama with norms"],
)
def test_kept_keys_and_values_change_no_logit_at_any_position(changes: Any) -> None:
    """Over a text of three sequences, whose older half is forgotten several times."""
    length, text = 12, torch.randint(256, (36,), generator=torch.manual_seed(3)).tolist()
    plain = model_of(data__sequence_length=length, **changes)
    reader = CachingReader(model_of(data__sequence_length=length, **changes))
    for position in range(4, 37):
        start = window_start(position, length)
        seen = text[start:position]
        assert len(seen) >= min(position, length // 2)
        with torch.inference_mode():
            kept = reader.read(seen, start)
            afresh = plain(torch.tensor([seen]))[0, -1]
        torch.testing.assert_close(kept, afresh, rtol=0, atol=1e-12)


def test_only_a_new_token_is_computed() -> None:
    model, computed = model_of(data__sequence_length=8), list[int]()
    model.layers["0"].register_forward_hook(lambda *found: computed.append(found[2].shape[1]))
    generate(model, [1, 2, 3], num_tokens=12, vocabulary=256, seed=1)
    # After 8 tokens the older 4 are forgotten, and the rest is read together.
    assert computed == [3, 1, 1, 1, 1, 1, 5, 1, 1, 1, 5, 1]


def test_it_runs_on_beyond_the_sequence_length_and_draws_from_the_likeliest() -> None:
    text = generate(
        model_of(data__sequence_length=8), [97, 98, 99], num_tokens=30, vocabulary=256, seed=1
    )
    plain = model_of(data__sequence_length=8)
    assert len(text) == 33
    assert text[:3] == [97, 98, 99]
    for i in range(3, 33):
        with torch.inference_mode():
            likeliest = plain(torch.tensor([text[window_start(i, 8) : i]]))[0, -1].topk(TOP_K)
        assert text[i] in likeliest.indices.tolist()


def sample(changes: Any, tokenizer: Any, prompt: str, num_tokens: int) -> str:
    spec = make_spec(**changes)
    weights = {n: p.detach() for n, p in build_model(spec, device=CPU).named_parameters()}
    return sample_text(weights, spec, tokenizer, prompt=prompt, num_tokens=num_tokens, device=CPU)


def test_a_sample_begins_with_its_prompt_and_repeats_for_the_same_weights() -> None:
    first = sample({}, Bytes(), "class ", 60)
    assert first.startswith("class ")
    assert len(first.encode(errors="replace")) >= 60
    assert sample({}, Bytes(), "class ", 60) == first


def test_an_empty_prompt_begins_with_a_line_break() -> None:
    assert sample({}, Bytes(), "", 5).startswith("\n")


def test_only_characters_of_the_text_are_drawn_and_unknown_ones_of_a_prompt_are_left_out() -> None:
    fields = {"data__tokenizer": "characters", "data__vocabulary_size": 40}
    tokenizer = Characters("to be, or not")
    text = sample(fields, tokenizer, "Not tobe", 50)
    assert text.startswith("ot tobe")
    assert set(text) <= set("to be, or not")
    assert len(text) == 57
    assert len(sample(fields, tokenizer, "", 5)) == 6
