"""Ranks' shares of a step, what is held out, and datasets that cannot be trained on.

The order of samples: test_sampling.py; tokenizers: test_tokens.py; packing: test_packing.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strategies.plan.layout import Layout
from strategies.plan.run_directory import RunPlan
from strategies.train.data.batches import AHEAD, BadData, HeldOut, TrainingData, open_windows
from strategies.train.engine import Batch
from tests.strategies.support.training_runs import make_run_plan, make_spec

CPU = torch.device("cpu")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)))
    return path


def text_plan(path: Path, *, ranks: int = 1, **changes: Any) -> RunPlan:
    if ranks > 1:
        changes["parallelism__strategy"] = "ddp"
    spec = make_spec(data__sequence_length=16, **changes)
    return make_run_plan(spec, ranks=ranks, dataset_path=str(path))


def global_step(
    run_plan: RunPlan, samples_seen: int, tmp_path: Path
) -> list[tuple[list[int], list[int]]]:
    """All samples of a step, in the order of their numbers, whatever the layout."""
    windows = open_windows(run_plan, tmp_path)
    layout, micro = run_plan.plan.layout, run_plan.plan.micro_batch_size
    per_rank: list[list[Batch]] = []
    for rank in range(layout.batch_degree):
        data = TrainingData(windows, run_plan, batch_rank=rank, device=CPU)
        batches, valid_tokens = data.step(samples_seen)
        assert valid_tokens == 8 * 16
        assert all(batch.inputs_BT.shape == (micro, 16) for batch in batches)
        per_rank.append(batches)
    return [
        (inputs.tolist(), labels.tolist())
        for together in zip(*per_rank, strict=True)
        for batch in together
        for inputs, labels in zip(batch.inputs_BT, batch.labels_BT, strict=True)
    ]


@pytest.mark.parametrize("samples_seen", [0, 8, 296, 296_000])
def test_every_layout_sees_the_same_samples_in_the_same_order(
    text: Path, samples_seen: int, tmp_path: Path
) -> None:
    one = global_step(text_plan(text), samples_seen, tmp_path)
    assert len(one) == 8
    for ranks, accumulation in ((1, 4), (2, 1), (2, 2), (4, 2), (8, 1)):
        run_plan = text_plan(text, ranks=ranks, training__gradient_accumulation_steps=accumulation)
        assert global_step(run_plan, samples_seen, tmp_path) == one


def test_labels_are_the_next_byte_and_held_out_text_is_never_trained_on(
    text: Path, tmp_path: Path
) -> None:
    run_plan = text_plan(text, data__held_out=0.1)
    content = text.read_bytes()
    windows = open_windows(run_plan, tmp_path)
    data = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
    kept = content[: 5000 - 500]
    for step in range(2 * windows.num_train // 8):
        (batch,), _ = data.step(8 * step)
        for inputs, labels in zip(batch.inputs_BT.tolist(), batch.labels_BT.tolist(), strict=True):
            assert bytes([*inputs, labels[-1]]) in kept
            assert inputs[1:] == labels[:-1]
    held_out = HeldOut(windows, run_plan, batch_rank=0, device=CPU)
    for batch in held_out.batches:
        for inputs, labels in zip(batch.inputs_BT.tolist(), batch.labels_BT.tolist(), strict=True):
            assert labels[0] == -100 or bytes([*inputs, labels[-1]]) in content[4500:]
    assert held_out.valid_tokens == windows.num_held_out * 16 == (499 // 16) * 16


def test_working_ahead_changes_nothing(text: Path, tmp_path: Path) -> None:
    run_plan = text_plan(text)
    windows = open_windows(run_plan, tmp_path)
    steady = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
    for samples_seen in range(0, AHEAD + 64, 8):
        (batch,), _ = steady.step(samples_seen)
        if samples_seen > AHEAD - 32:
            fresh = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
            ((other,), _) = fresh.step(samples_seen)
            assert torch.equal(batch.inputs_BT, other.inputs_BT)


def test_reading_a_step_before_it_is_asked_for_changes_nothing(text: Path, tmp_path: Path) -> None:
    run_plan = text_plan(text)
    windows = open_windows(run_plan, tmp_path)
    ahead, plain = (TrainingData(windows, run_plan, batch_rank=0, device=CPU) for _ in range(2))
    for prepared, samples_seen in ((0, 0), (8, 8), (16, 320), (16, 16)):
        ahead.prepare(prepared)
        (batch,), valid_tokens = ahead.step(samples_seen)
        (other,), valid = plain.step(samples_seen)
        assert torch.equal(batch.inputs_BT, other.inputs_BT)
        assert torch.equal(batch.labels_BT, other.labels_BT)
        assert valid_tokens == valid


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_copies_that_are_under_way_keep_their_numbers(text: Path, tmp_path: Path) -> None:
    """While a GPU is busy, many steps' batches wait in its queue, in a few pinned buffers."""
    run_plan = text_plan(text)
    windows = open_windows(run_plan, tmp_path)
    there = TrainingData(windows, run_plan, batch_rank=0, device=torch.device("cuda"))
    here = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
    busy = torch.ones(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    found = []
    for step in range(30):
        busy = busy @ busy
        found.append(there.step(8 * step)[0][0])
    assert not torch.cuda.current_stream().query()  # nothing has waited
    for step, batch in enumerate(found):
        ((wanted,), _) = here.step(8 * step)
        assert torch.equal(batch.inputs_BT.cpu(), wanted.inputs_BT)
        assert torch.equal(batch.labels_BT.cpu(), wanted.labels_BT)


def test_documents_are_not_mixed_and_their_ends_are_masked(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    documents = ["a" * 40, "b" * 5, "", "c", "é" * 3, "d" * 17]
    path.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in documents))
    spec = make_spec(data__sequence_length=16, data__held_out=0.2)
    fields = {"dataset_path": str(path), "dataset_format": "jsonl"}
    run_plan = make_run_plan(spec, **fields)
    windows = open_windows(run_plan, tmp_path)
    starts, lengths = windows.bounds(np.arange(windows.num_train + windows.num_held_out))
    found = [
        bytes(windows.tokens[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]
    assert found == [b"a" * 17, b"a" * 17, b"a" * 8, b"b" * 5, "é".encode() * 3, b"d" * 17]
    assert (windows.num_train, windows.num_held_out) == (5, 1)
    data = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
    (batch,), valid_tokens = data.step(0)
    assert int((batch.labels_BT != -100).sum()) == valid_tokens
    for inputs, labels in zip(batch.inputs_BT.tolist(), batch.labels_BT.tolist(), strict=True):
        valid = sum(label != -100 for label in labels)
        assert all(label == -100 for label in labels[valid:])
        assert inputs[1:valid] == labels[: valid - 1]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_evaluation_covers_the_same_windows_on_any_number_of_ranks(
    ranks: int, text: Path, tmp_path: Path
) -> None:
    run_plan = text_plan(text, ranks=ranks, data__held_out=0.3)
    windows = open_windows(run_plan, tmp_path)
    parts = [HeldOut(windows, run_plan, batch_rank=r, device=CPU) for r in range(ranks)]
    assert len({len(part.batches) for part in parts}) == 1
    rows = [
        tuple(row)
        for part in parts
        for batch in part.batches
        for row, labels in zip(batch.inputs_BT.tolist(), batch.labels_BT.tolist(), strict=True)
        if labels[0] != -100
    ]
    content = text.read_bytes()[3500:]
    assert sorted(rows) == sorted(
        tuple(content[i * 16 : i * 16 + 16]) for i in range(windows.num_held_out)
    )
    valid = sum(int((b.labels_BT != -100).sum()) for part in parts for b in part.batches)
    assert {part.valid_tokens for part in parts} == {valid}


def test_a_large_held_out_part_is_sampled_evenly(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 400)
    run_plan = text_plan(path, data__held_out=0.5)
    windows = open_windows(run_plan, tmp_path)
    held_out = HeldOut(windows, run_plan, batch_rank=0, device=CPU)
    assert windows.num_held_out > 3000
    assert held_out.valid_tokens == 256 * 16


def test_ranks_take_disjoint_samples_that_fill_the_step(text: Path, tmp_path: Path) -> None:
    run_plan = text_plan(text, ranks=4)
    assert run_plan.plan.layout == Layout(replicate=4)
    windows = open_windows(run_plan, tmp_path)
    rows = [
        tuple(row)
        for rank in range(4)
        for batch in TrainingData(windows, run_plan, batch_rank=rank, device=CPU).step(0)[0]
        for row in batch.inputs_BT.tolist()
    ]
    assert len(set(rows)) == 8


def refusal(tmp_path: Path, content: bytes, format: str = "text", **changes: Any) -> str:
    """What a run on this dataset would end with, before it began."""
    path = tmp_path / "refused"
    path.write_bytes(content)
    spec = make_spec(data__sequence_length=16, **changes)
    run_plan = make_run_plan(spec, dataset_path=str(path), dataset_format=format)
    with pytest.raises(BadData) as caught:
        TrainingData(open_windows(run_plan, tmp_path), run_plan, batch_rank=0, device=CPU)
    return str(caught.value)


CHARACTERS = {"data__tokenizer": "characters", "data__vocabulary_size": 65}


@pytest.mark.parametrize(
    ("content", "changes", "said"),
    [
        (b"", {}, "dataset ragged is empty (0 bytes)"),
        (b"x" * 33, {}, "33 bytes; sequence_length 16 needs at least 34 (2 windows of 17)"),
        (b"x" * 16, {"data__held_out": 0}, "16 bytes; sequence_length 16 needs at least 17"),
        ("é!".encode() * 10, CHARACTERS, "20 characters; sequence_length 16 needs at least 34"),
        (b"x" * 90, CHARACTERS, "1 different character; at least 2"),
        (b"plain \xff text", CHARACTERS, "byte 6 of 12 (0xff) is not valid UTF-8"),
        (b"half \xc3", CHARACTERS, "byte 5 of 6 (0xc3) is not valid UTF-8"),
        (bytes(range(97, 117)) * 9, {**CHARACTERS, "data__vocabulary_size": 19}, "20 different"),
        (b"x" * 90, {"data__packing": True}, "is one text of 90 bytes, so there is nothing"),
    ],
)
def test_a_text_that_cannot_be_trained_on_is_refused_with_numbers(
    tmp_path: Path, content: bytes, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, content, **changes)


def lines(*texts: object) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lines("", "x", "y"), "no document of at least 2 tokens"),
        (lines("some text", "x"), "has 1 document of at least 2 tokens, 9 bytes in all"),
        (lines("some text", "x"), "held_out 0.02 takes 1, so no text is left"),
        (lines("some", "text") + b"oops\n", "line 3 is not JSON"),
        (lines("some") + b'"text"\n', 'line 2 is not an object with "text", or'),
        (lines("some", 5), 'line 2 has no "text" that is a string'),
        (lines("some") + b'{"text": "\xff"}\n', "line 2 is not JSON: 'utf-8' codec can't decode"),
    ],
)
def test_documents_that_cannot_be_trained_on_are_refused_with_numbers(
    tmp_path: Path, content: bytes, said: str, packing: bool
) -> None:
    assert said in refusal(tmp_path, content, "jsonl", data__packing=packing)


def test_a_missing_file_is_bad_data(tmp_path: Path) -> None:
    run_plan = make_run_plan(make_spec(), dataset_path=str(tmp_path / "none"))
    with pytest.raises(BadData, match=r"cannot be read: .*No such file"):
        open_windows(run_plan, tmp_path)
