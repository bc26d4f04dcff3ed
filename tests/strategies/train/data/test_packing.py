"""Packed documents: nothing is lost, and nothing looks across a border.

That layouts agree on them, the matrix tests.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.data.corpus import Corpus
from strategies.plan.data.tokens import Bytes
from strategies.plan.data.windows import PackedWindows
from strategies.plan.planner import Problem, plan
from strategies.plan.spec import DataSpec
from strategies.train.data.batches import HeldOut, TrainingData, open_windows
from strategies.train.engine import Batch
from strategies.train.init import build_model
from strategies.train.models.loss import IGNORED, token_loss_sum
from tests.strategies.support.training_runs import HARDWARE, make_run_plan, make_spec

CPU = torch.device("cpu")
SIZES = st.lists(st.integers(2, 40), min_size=2, max_size=30)


def packed(sizes: list[int], length: int, held_out: float) -> PackedWindows:
    """Documents of these sizes; token n is number n of the row, modulo 256."""
    ends = np.cumsum(np.array(sizes, dtype=np.int64))
    corpus = Corpus((np.arange(ends[-1]) % 256).astype(np.uint8), ends, Bytes())
    spec = DataSpec(dataset="d", sequence_length=length, held_out=held_out, packing=True)
    return PackedWindows(corpus, spec, ends)


@given(SIZES, st.integers(2, 50), st.sampled_from([0.0, 0.1, 0.5]))
def test_every_token_but_the_first_of_a_document_is_predicted_once(
    sizes: list[int], length: int, held_out: float
) -> None:
    windows = packed(sizes, length, held_out)
    count = windows.num_train + windows.num_held_out
    starts, lengths = windows.bounds(np.arange(count))
    labels = windows.num_labels(starts, lengths)
    assert labels.min() >= 1
    found = []
    for start, size, expected in zip(starts, lengths, labels, strict=True):
        places = np.arange(start, start + size)
        documents = windows.documents(places)
        inside = documents[1:] == documents[:-1]
        assert inside.sum() == expected
        found += places[1:][inside].tolist()
    begins = {0, *windows.ends.tolist()}
    assert sorted(found) == [n for n in range(len(windows.tokens)) if n not in begins]


@given(SIZES, st.integers(2, 50))
def test_held_out_documents_are_whole_and_the_last(sizes: list[int], length: int) -> None:
    windows = packed(sizes, length, 0.1)
    train_starts, train_lengths = windows.bounds(np.arange(windows.num_train))
    assert windows.held_out_at in windows.ends
    assert (train_starts + train_lengths).max() == windows.held_out_at
    last, size = windows.bounds(np.array([windows.num_train + windows.num_held_out - 1]))
    assert int(last[0] + size[0]) == len(windows.tokens)


TEXTS = ["the quick brown fox", "jumps", "over the lazy dog and", "sleeps", "well", "held out text"]


def packed_batch(tmp_path: Path) -> tuple[Any, list[Batch], int]:
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    spec = make_spec(
        precision="float64",
        data__sequence_length=64,
        data__packing=True,
        training__global_batch_size=1,
    )
    run_plan = make_run_plan(spec, dataset_path=str(path), dataset_format="jsonl")
    data = TrainingData(open_windows(run_plan, tmp_path), run_plan, batch_rank=0, device=CPU)
    return spec, *data.step(0)


def test_a_sample_of_many_documents_costs_what_each_costs_alone(tmp_path: Path) -> None:
    """Positions are relative, so a document reads the same wherever in a sample it lies."""
    spec, (batch,), valid_tokens = packed_batch(tmp_path)
    model = build_model(spec, device=CPU)
    alone, num_labels = 0.0, 0
    for text in TEXTS[:-1]:
        tokens = torch.tensor([list(text.encode())])
        alone += token_loss_sum(model(tokens[:, :-1]), tokens[:, 1:]).item()
        num_labels += tokens.shape[1] - 1
    together = token_loss_sum(model(batch.inputs_BT, batch.documents_BT), batch.labels_BT)
    assert valid_tokens == num_labels == int((batch.labels_BT != IGNORED).sum())
    assert together.item() == pytest.approx(alone, rel=1e-13)
    mixed = token_loss_sum(model(batch.inputs_BT), batch.labels_BT)
    assert abs(mixed.item() - alone) > 1e-3


def test_held_out_windows_are_packed_too(tmp_path: Path, ragged: dict[str, Any]) -> None:
    run_plan = make_run_plan(make_spec(data__packing=True, data__held_out=0.1), **ragged)
    windows = open_windows(run_plan, tmp_path)
    held_out = HeldOut(windows, run_plan, batch_rank=0, device=CPU)
    assert all(batch.documents_BT is not None for batch in held_out.batches)
    found = sum(int((batch.labels_BT != IGNORED).sum()) for batch in held_out.batches)
    assert found == held_out.valid_tokens
    assert held_out.valid_tokens == len(windows.tokens) - windows.held_out_at - 40  # documents


def test_packing_makes_fuller_samples(tmp_path: Path, ragged: dict[str, Any]) -> None:
    shares = []
    for packing in (False, True):
        run_plan = make_run_plan(make_spec(data__packing=packing), **ragged)
        data = TrainingData(open_windows(run_plan, tmp_path), run_plan, batch_rank=0, device=CPU)
        valid = [data.step(8 * step)[1] for step in range(40)]
        shares.append(sum(valid) / (40 * 8 * 48))
    assert shares[0] < 0.85
    assert shares[1] > 0.97


def test_samples_of_one_token_cannot_be_packed() -> None:
    spec = make_spec(data__packing=True, data__sequence_length=1)
    problem: Problem
    (problem,) = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE).problems
    assert problem.param == "data.sequence_length"
    assert "at least 2" in problem.message
