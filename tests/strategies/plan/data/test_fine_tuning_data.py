"""Texts, instructions and conversations: which tokens a row has, and which of them are learned."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from strategies.plan.data.hf_tokenizer import HuggingFace
from strategies.plan.data.reading import whole_lines
from strategies.plan.data.rows import Chat, Completion, Message, Text, WrongRow, row_from
from strategies.plan.data.stored_tokenizer import tokenizer_from
from strategies.plan.data.tokens import Bytes
from strategies.plan.planner import plan
from strategies.plan.run_directory import RunPlan
from strategies.train.data.batches import BadData, HeldOut, TrainingData, open_windows
from strategies.train.models.loss import IGNORED
from tests.strategies.support.hf_models import (
    CHATML,
    MARKED_CHATML,
    make_model,
    make_tokenizer,
    planned,
)
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, Run, make_run_plan, make_spec

pytestmark = pytest.mark.gloo

CPU = torch.device("cpu")
CHAT: list[dict[str, str]] = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "what is two and two"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "and the sum of two?"},
    {"role": "assistant", "content": " two"},
]


def learned_text(tokenizer: HuggingFace, row: Any) -> tuple[str, str]:
    """A row as it is written, and what of it is learned."""
    tokens, learned = tokenizer.encode_row(row)
    return tokenizer.decode(tokens.tolist()), tokenizer.decode(tokens[learned].tolist())


def test_a_marked_template_gives_tokens_and_mask_of_transformers(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, template=MARKED_CHATML)
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        CHAT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    tokens, learned = HuggingFace.of(tmp_path).encode_row(row_from({"messages": CHAT}))
    assert tokens.tolist() == theirs["input_ids"]
    assert learned.tolist() == [bool(flag) for flag in theirs["assistant_masks"]]


def test_any_other_template_gives_its_tokens_and_the_answers_are_learned(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, template=CHATML)
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(CHAT, tokenize=True)
    tokenizer, row = HuggingFace.of(tmp_path), row_from({"messages": CHAT})
    assert tokenizer.encode_row(row).tokens.tolist() == theirs["input_ids"]
    assert learned_text(tokenizer, row)[1] == "four<|im_end|>\n two<|im_end|>\n"


def test_without_a_template_roles_stand_in_lines_of_their_own(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, begins=True)
    written, learned = learned_text(HuggingFace.of(tmp_path), row_from({"messages": CHAT[1:3]}))
    assert written == "<s><|user|>\nwhat is two and two\n<|assistant|>\nfour\n</s>"
    assert learned == "four\n</s>"
    tokens, flags = Bytes().encode_row(row_from({"messages": CHAT[1:3]}))
    assert Bytes().decode(tokens[flags].tolist()) == "four\n"


def test_texts_begin_and_end_and_only_completions_are_learned(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, begins=True)
    tokenizer = HuggingFace.of(tmp_path)
    assert learned_text(tokenizer, Text("two")) == ("<s>two</s>", "two</s>")
    row = Completion("what is the sum?", " four")
    assert learned_text(tokenizer, row) == ("<s>what is the sum? four</s>", " four</s>")
    make_tokenizer(tmp_path)
    assert learned_text(HuggingFace.of(tmp_path), Text("two")) == ("two</s>", "two</s>")


def test_a_token_across_the_border_is_learned(tmp_path: Path) -> None:
    """As transformers has it for what a template marks."""
    assert make_tokenizer(tmp_path).tokenize("the") == ["t", "he"]
    row = Completion("th", "e sum")
    assert learned_text(HuggingFace.of(tmp_path), row) == ("the sum</s>", "he sum</s>")


def test_a_stored_tokenizer_is_restored(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, template=CHATML)
    tokenizer = HuggingFace.of(tmp_path)
    again = tokenizer_from(tokenizer.stored())
    assert again.size == tokenizer.size == 280
    text = "the sum of two, d\u00e9j\u00e0 vu"
    assert again.decode(again.encode(text).tolist()) == text
    assert again.encode_row(row_from({"messages": CHAT})).tokens.dtype == np.uint16


def test_tokens_take_the_bytes_that_the_vocabulary_needs() -> None:
    assert HuggingFace({}, 65_536).dtype == np.uint16
    assert HuggingFace({}, 151_665).dtype == np.uint32


def test_a_checkpoint_without_a_usable_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer.json"):
        HuggingFace.of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        HuggingFace.of(tmp_path)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "is not an object"),
        ({"txt": "a"}, "is not an object with"),
        ({"text": 5}, 'has no "text" that is a string'),
        ({"prompt": "a"}, 'has no "completion"'),
        ({"prompt": "a", "completion": ""}, "empty completion"),
        ({"text": "a", "messages": []}, "has text and messages"),
        ({"messages": "hello"}, "not a list"),
        ({"messages": [{"content": "a"}]}, 'message 1 without a "role"'),
        ({"messages": [{"role": "user", "content": 5}]}, 'message 1 that has no "content"'),
        ({"messages": [{"role": "user", "content": "a"}]}, "no message of the assistant"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "no message of the assistant"),
    ],
)
def test_wrong_rows_are_told_apart(document: object, words: str) -> None:
    with pytest.raises(WrongRow, match=words):
        row_from(document)


def test_a_template_that_refuses_or_rewrites_is_told(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, template="{{ raise_exception('roles must alternate') }}")
    chat = Chat((Message("user", "a"), Message("assistant", "b"), Message("assistant", "c")))
    with pytest.raises(WrongRow, match="roles must alternate"):
        HuggingFace.of(tmp_path).encode_row(chat)
    make_tokenizer(tmp_path, template="{{ messages | length }}{{ messages[-1]['content'] }}")
    with pytest.raises(WrongRow, match="message 2 that the chat template changes once"):
        HuggingFace.of(tmp_path).encode_row(chat)


def instructions(folder: Path, rows: list[object], **changes: Any) -> RunPlan:
    """A plan to train on some rows, by bytes."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = make_spec(
        data__sequence_length=16, training__global_batch_size=1, data__held_out=0, **changes
    )
    return make_run_plan(spec, dataset_path=str(path), dataset_format="jsonl")


ROWS: list[object] = [
    {"prompt": "a" * 40, "completion": "B" * 5},
    {"prompt": "cc", "completion": "D" * 30},
    {"text": "EEEE"},
    {"messages": [{"role": "user", "content": "f"}, {"role": "assistant", "content": "GG"}]},
]


@pytest.mark.parametrize("packing", [False, True])
def test_every_learned_byte_is_a_label_once_and_no_other_is(packing: bool, tmp_path: Path) -> None:
    run_plan = instructions(tmp_path, ROWS, data__packing=packing)
    windows = open_windows(run_plan, tmp_path)
    data = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
    found, counted = bytearray(), 0
    for number in range(windows.num_train):
        (batch,), valid_tokens = data.step(number)
        labels = batch.labels_BT
        assert valid_tokens > 0, "a window without a label"
        found += bytes(labels[labels != IGNORED].tolist())
        counted += valid_tokens
    assert counted == len(found)
    assert sorted(found) == sorted(b"BBBBB" + b"D" * 30 + b"EEE" + b"GG\n")


def test_held_out_labels_are_counted(tmp_path: Path) -> None:
    run_plan = instructions(tmp_path, ROWS)
    spec = run_plan.spec.model_copy(
        update={"data": run_plan.spec.data.model_copy(update={"held_out": 0.5})}
    )
    run_plan = run_plan.model_copy(update={"spec": spec})
    held_out = HeldOut(open_windows(run_plan, tmp_path), run_plan, batch_rank=0, device=CPU)
    assert held_out.valid_tokens == len(b"EEE" + b"GG\n")


def test_a_row_that_loses_its_labels_is_named(tmp_path: Path) -> None:
    run_plan = instructions(tmp_path, [*ROWS, {"prompt": "", "completion": "x"}])
    with pytest.raises(BadData, match="line 5 has no token to learn"):
        open_windows(run_plan, tmp_path)


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer."""
    folder = make_model("qwen2", tmp_path / "model", vocabulary=288)
    make_tokenizer(folder, template=CHATML)
    return folder


def chats(folder: Path) -> dict[str, str]:
    path = folder / "chats.jsonl"
    lines = []
    for number in range(40):
        answer = {"role": "assistant", "content": "two " * (number % 5 + 1)}
        lines.append(json.dumps({"messages": [*CHAT[: 1 + number % 2], CHAT[1], answer]}))
    path.write_text("\n".join(lines) + "\n")
    return {"dataset_path": str(path), "dataset_format": "jsonl"}


def tune(tuned: Path, pool: Pool, folder: Path, *, ranks: int = 1, **changes: Any) -> Run:
    """Train the checkpoint on packed conversations."""
    fields: dict[str, Any] = {**chats(folder), "prompt": "what is", "sample_bytes": 4}
    run_plan = planned(
        tuned,
        ranks=ranks,
        fields=fields,
        data__tokenizer="huggingface",
        data__vocabulary_size=288,
        data__sequence_length=48,
        data__packing=True,
        data__held_out=0.1,
        training__global_batch_size=4,
        precision="float64",
        **changes,
    )
    return pool.train(run_plan, folder / f"{ranks}-ranks")


def test_a_chat_model_is_tuned_and_saved_with_its_tokenizer(
    tuned: Path, pool: Pool, tmp_path: Path
) -> None:
    one = tune(tuned, pool, tmp_path)
    assert one.result.sample is not None
    assert one.result.sample.startswith("what is")
    folder = one.directory.artifacts
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(
        CHAT[1:2], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = AutoModelForCausalLM.from_pretrained(folder).generate(**asked, max_new_tokens=2)
    assert written.shape[1] == asked["input_ids"].shape[1] + 2


@pytest.mark.slow  # test_pretrained.py has two ranks follow one, test_matrix.py when packed
def test_two_ranks_tune_a_chat_model_alike(tuned: Path, pool: Pool, tmp_path: Path) -> None:
    one = tune(tuned, pool, tmp_path)
    two = tune(tuned, pool, tmp_path, ranks=2, parallelism__strategy="tensor")
    assert two.series("loss") == pytest.approx(one.series("loss"), rel=1e-13)
    assert two.series("eval_loss") == pytest.approx(one.series("eval_loss"), rel=1e-13)


def test_a_plain_text_is_tokenised_as_a_whole(tuned: Path, tmp_path: Path) -> None:
    pieces = ["the su", "m of\n two\n an", "d two", "\nis"]
    assert list(whole_lines(iter(pieces))) == ["the sum of\n two\n", " and two\n", "is"]
    path = tmp_path / "text"
    path.write_text("".join(pieces) * 30)
    run_plan = planned(
        tuned,
        fields={"dataset_path": str(path)},
        data__tokenizer="huggingface",
        data__vocabulary_size=288,
    )
    windows = open_windows(run_plan, tmp_path)
    whole = AutoTokenizer.from_pretrained(tuned)(path.read_text())["input_ids"]
    assert windows.tokens.tolist() == whole


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(
    tuned: Path, tmp_path: Path
) -> None:
    run_plan = planned(
        tuned,
        fields=chats(tmp_path),
        data__tokenizer="huggingface",
        data__vocabulary_size=270,
    )
    with pytest.raises(BadData, match="280 possible tokens"):
        open_windows(run_plan, tmp_path)


def test_the_tokenizer_needs_a_checkpoint_and_its_size() -> None:
    spec = make_spec(data__tokenizer="huggingface")
    found = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE).problems
    assert {problem.param for problem in found} == {"data.tokenizer", "data.vocabulary_size"}
