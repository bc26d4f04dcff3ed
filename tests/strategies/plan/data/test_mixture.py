"""A mixture gives every dataset its share of the samples, in an order that no layout changes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.plan.data.corpus import open_corpus
from strategies.plan.data.mixture import MixedWindows
from strategies.plan.data.windows import cut
from strategies.plan.planner import plan
from strategies.plan.run_directory import MixedDataset
from strategies.plan.spec import DataSpec
from strategies.train.data.sampling import windows_of
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, make_run_plan, make_spec

LENGTH = 8
SHARES = [0.5, 0.3, 0.2]


def spec(**changes: Any) -> DataSpec:
    told = {"dataset": "a", "tokenizer": "bytes", "sequence_length": LENGTH, **changes}
    return DataSpec.model_validate(told)


def rows(letter: str, count: int) -> bytes:
    texts = [letter * (5 + number % 30) for number in range(count)]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def mixed(folder: Path, *, packing: bool) -> MixedWindows:
    parts = []
    for letter, count in (("a", 300), ("b", 40), ("c", 7)):
        path = folder / f"{letter}.jsonl"
        path.write_bytes(rows(letter, count))
        asked = spec(packing=packing)
        parts.append(cut(open_corpus(path, "jsonl", asked, folder / letter), asked))
    return MixedWindows(parts, SHARES)


@pytest.mark.parametrize("packing", [False, True])
def test_a_pass_has_every_window_and_the_shares(tmp_path: Path, packing: bool) -> None:
    windows = mixed(tmp_path, packing=packing)
    order = windows_of(np.arange(windows.num_train), windows.num_train, "1")
    starts, lengths = windows.bounds(order)
    letters = Counter(chr(token) for token in windows.tokens[starts])
    for letter, share in zip("abc", SHARES, strict=True):
        assert letters[letter] / windows.num_train == pytest.approx(
            share, abs=1.5 / windows.num_train
        )
    seen = set(zip(starts.tolist(), lengths.tolist(), strict=True))
    assert len(seen) == sum(part.num_train for part in windows.parts)
    for start, length in seen:  # no window reaches into another dataset
        assert len(set(windows.tokens[start + np.arange(length)])) == 1


@pytest.mark.parametrize("packing", [False, True])
def test_labels_and_documents_are_those_of_the_parts(tmp_path: Path, packing: bool) -> None:
    windows = mixed(tmp_path, packing=packing)
    first = 0
    evaluated = windows.num_train
    for number, part in enumerate(windows.parts):
        own = np.arange(part.num_train)
        starts, lengths = part.bounds(own)
        begin = int(windows.first_train[number])
        found_starts, found_lengths = windows.bounds(begin + own)
        assert np.array_equal(found_starts, starts + first)
        assert np.array_equal(found_lengths, lengths)
        labels = windows.num_labels(found_starts, found_lengths)
        assert np.array_equal(labels, part.num_labels(starts, lengths))
        held_out = part.bounds(part.num_train + np.arange(part.num_held_out))
        there = windows.bounds(evaluated + np.arange(part.num_held_out))
        assert np.array_equal(there[0], held_out[0] + first)
        documents = part.documents(starts[:5, None] + np.arange(3))
        mixed_documents = windows.documents(found_starts[:5, None] + np.arange(3))
        assert (documents is None) == (mixed_documents is None) == (not packing)
        if documents is not None:
            assert np.array_equal(documents, mixed_documents)
        first += len(part.tokens)
        evaluated += part.num_held_out


def test_what_cannot_be_mixed_is_refused_by_the_plan() -> None:
    for data, code in (
        (
            {"mixture": [{"dataset": "b", "share": 0.6}, {"dataset": "c", "share": 0.4}]},
            "out_of_range",
        ),
        ({"mixture": [{"dataset": "python-stdlib", "share": 0.5}]}, "named_twice"),
        (
            {
                "mixture": [{"dataset": "b", "share": 0.5}],
                "tokenizer": "characters",
                "vocabulary_size": 90,
            },
            "no_common_tokens",
        ),
    ):
        asked = make_spec()
        told = {**asked.data.model_dump(), **data, "dataset": "python-stdlib"}
        asked = asked.model_copy(update={"data": DataSpec.model_validate(told)})
        found = plan(asked, nodes=1, ranks_per_node=1, hardware=HARDWARE)
        assert code in {problem.code for problem in found.problems}, code


@pytest.mark.gloo
def test_the_curve_of_a_mixture_does_not_depend_on_the_layout(pool: Pool, tmp_path: Path) -> None:
    for letter, count in (("a", 200), ("b", 50)):
        (tmp_path / f"{letter}.jsonl").write_bytes(rows(letter, count))
    losses = []
    for ranks, strategy in ((1, "single"), (2, "ddp")):
        asked = make_spec(
            data__dataset="a",
            data__mixture=[{"dataset": "b", "share": 0.4}],
            data__sequence_length=LENGTH,
            training__steps=8,
            parallelism__strategy=strategy,
        )
        run_plan = make_run_plan(
            asked,
            ranks=ranks,
            dataset_path=str(tmp_path / "a.jsonl"),
            dataset_format="jsonl",
            mixture=(MixedDataset(path=str(tmp_path / "b.jsonl"), format="jsonl"),),
        )
        losses.append(pool.train(run_plan, tmp_path / strategy).series("loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert len(losses[0]) == 8
