"""A streamed corpus: one order for all ranks, of which the first step needs one chapter only."""

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from strategies.plan.data import streamed
from strategies.plan.data.reading import BadData
from strategies.plan.data.streamed import StreamedWindows, is_streamed
from strategies.plan.data.streaming import Chapters
from strategies.plan.planner import plan
from strategies.plan.run_directory import RunPlan
from strategies.plan.spec import DataSpec, Sampling
from strategies.train.data.batches import HeldOut, TrainingData, open_windows
from strategies.train.data.sampling import Mark
from strategies.train.models.loss import IGNORED
from tests.strategies.plan.data.test_indexed import sharded, texts
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, make_run_plan, make_spec

CPU = torch.device("cpu")
LENGTH, BATCH = 32, 8
Rows = list[dict[str, Any]]


def lines(count: int, seed: int = 5) -> Rows:
    """Documents that are one window each and all different."""
    chosen = random.Random(seed)
    return [
        {"text": f"{number:05} " + "".join(chosen.choices("abcdé", k=chosen.randint(2, 12)))}
        for number in range(count)
    ]


def plan_of(folder: Path, *, ranks: int = 1, **changes: Any) -> RunPlan:
    if ranks > 1:
        changes["parallelism__strategy"] = "ddp"
    spec = make_spec(
        **{
            "data__sampling": "streamed",
            "data__sequence_length": LENGTH,
            "training__global_batch_size": BATCH,
            "model__layers": 1,
            **changes,
        }
    )
    return make_run_plan(spec, ranks=ranks, dataset_path=str(folder), dataset_format="jsonl")


def opened(run_plan: RunPlan, cache: Path) -> StreamedWindows:
    windows = open_windows(run_plan, cache)
    assert isinstance(windows, StreamedWindows)
    return windows


def batches(
    run_plan: RunPlan, cache: Path, steps: range, mark: Mark | None = None
) -> list[list[str]]:
    """The texts of each step, over all ranks in the order of the samples' numbers."""
    windows = opened(run_plan, cache)
    ranks = [
        TrainingData(windows, run_plan, batch_rank=rank, device=CPU)
        for rank in range(run_plan.plan.layout.batch_degree)
    ]
    found = []
    for data in ranks:
        data.begin_at(mark or Mark())
    for step in steps:
        shares = [data.step(step * BATCH)[0] for data in ranks]
        found.append(
            [
                text_of(inputs.tolist(), labels.tolist())
                for together in zip(*shares, strict=True)
                for batch in together
                for inputs, labels in zip(batch.inputs_BT, batch.labels_BT, strict=True)
            ]
        )
    return found


def text_of(inputs: Sequence[int], labels: Sequence[int]) -> str:
    learned = [label for label in labels if label != IGNORED]
    return bytes([inputs[0], *learned]).decode()


def written(rows: Rows) -> list[str]:
    return [row["text"] for row in rows]


def counted_chapters(cache: Path) -> int:
    (stream,) = (path for path in (cache / "streams").iterdir() if path.is_dir())
    return len([path for path in stream.iterdir() if path.name.isdigit()])


def test_a_pass_has_every_line_once_and_the_next_one_in_another_order(tmp_path: Path) -> None:
    rows = lines(900)
    folder = sharded(tmp_path / "shards", rows, [0, 1, 300, 300, 901])
    run_plan = plan_of(folder, data__held_out=0.1)
    windows = opened(run_plan, tmp_path)
    found = [text for step in batches(run_plan, tmp_path, range(230)) for text in step]
    trained_on = sorted({*found})
    num_trained_on = len(trained_on)
    assert trained_on == written(rows)[:num_trained_on]  # the last ones are held out
    assert 0.85 < num_trained_on / 900 < 0.92
    first, second = found[:num_trained_on], found[num_trained_on : 2 * num_trained_on]
    assert max(Counter(first).values()) == max(Counter(second).values()) == 1
    assert first != second
    places = [written(rows).index(text) for text in first[:50]]
    assert max(places) > 750  # a chapter is from all over the corpus
    assert min(places) < 50
    held_out = HeldOut(windows, run_plan, batch_rank=0, device=CPU)
    evaluated = {
        text_of(inputs.tolist(), labels.tolist())
        for batch in held_out.batches
        for inputs, labels in zip(batch.inputs_BT, batch.labels_BT, strict=True)
        if (labels != IGNORED).any()
    }
    assert len(evaluated) > 50
    assert evaluated <= {*written(rows)[num_trained_on:]}


def test_shards_ranks_and_the_state_of_the_index_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = lines(400)
    one = sharded(tmp_path / "one", rows, [0, 400])
    many = sharded(tmp_path / "many", rows, [0, 3, 200, 399, 400])
    for path in (*one.iterdir(), *many.iterdir()):  # `sharded` writes them in two ways
        content = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    expected = batches(plan_of(one), tmp_path / "a", range(60))
    assert batches(plan_of(one), tmp_path / "a", range(60)) == expected  # all counted
    assert batches(plan_of(many), tmp_path / "b", range(60)) == expected
    assert batches(plan_of(many, ranks=2), tmp_path / "b", range(60)) == expected
    monkeypatch.setattr(Chapters, "count_ahead", lambda *_: None)
    assert batches(plan_of(many), tmp_path / "c", range(60)) == expected
    assert batches(plan_of(one, training__seed=2), tmp_path / "a", range(60)) != expected


def test_the_first_step_needs_one_chapter_and_a_resumed_run_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chapters, "count_ahead", lambda *_: None)
    folder = sharded(tmp_path / "shards", lines(2000), [0, 900, 2000])
    run_plan = plan_of(folder)
    windows = opened(run_plan, tmp_path / "a")
    data = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
    data.step(0)
    assert windows.num_chapters == 16
    assert counted_chapters(tmp_path / "a") == 2  # and the one that is evaluated
    whole = batches(run_plan, tmp_path / "a", range(400))
    assert counted_chapters(tmp_path / "a") == 17
    for step in (100, 200, 399):  # in the first pass, and in the second
        data.step(step * BATCH)
        mark = data.mark(step * BATCH)
        assert mark is not None
        assert step * BATCH - 200 < mark.first_sample <= step * BATCH
        cache = tmp_path / f"at {step}"
        end = min(400, step + 3)
        assert batches(run_plan, cache, range(step, end), mark) == whole[step:end]
        assert counted_chapters(cache) <= 4


def test_the_next_chapters_are_counted_meanwhile_by_a_process_that_ends_with_the_run(
    tmp_path: Path,
) -> None:
    folder = sharded(tmp_path / "shards", lines(2000), [0, 900, 2000])
    windows = opened(plan_of(folder), tmp_path)
    (process,) = windows.chapters.background
    assert process.wait(60) == 0
    assert counted_chapters(tmp_path) == 9  # eight that come first, and the evaluated one
    assert not [*tmp_path.rglob("*.tmp")]
    path = next(iter(windows.chapters.folder.glob("0*")))
    command = [*process.args[:3], str(windows.chapters.folder), "1", path.name]  # type: ignore[index]
    (path / "ends").unlink()
    path.rename(path.with_suffix(".tmp"))  # half-counted by a process that is gone
    repository = Path(__file__).parents[4]
    assert subprocess.run(command, cwd=repository).returncode == 0
    assert not path.exists()  # its parent is another
    command[4] = str(os.getpid())
    assert subprocess.run(command, cwd=repository).returncode == 0
    assert (path / "ends").exists()


def test_a_bad_line_is_named_when_its_chapter_comes(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "shards", lines(600), [0, 200, 600])
    path = folder / "00001.jsonl"
    content = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*content[:250], '{"txt": "wrong"}\n', *content[250:]]))
    with pytest.raises(BadData, match=r'^00001\.jsonl line 251 is not an object with "text"'):
        batches(plan_of(folder), tmp_path, range(75))


@pytest.mark.parametrize("packing", [False, True])
def test_prompts_are_not_learned_and_nothing_is_lost(tmp_path: Path, packing: bool) -> None:
    rows: Rows = [
        {"prompt": "what is " * (n % 3), "completion": f"it is {n}"} if n % 2 else {"text": f"t{n}"}
        for n in range(500)
    ]
    folder = sharded(tmp_path / "shards", rows, [0, 250, 500])
    run_plan = plan_of(folder, data__packing=packing, data__held_out=0)
    windows = opened(run_plan, tmp_path)
    assert windows.num_held_out == 0
    valid = 0
    for number in range(windows.num_chapters):
        chapter = windows.chapter(number)
        assert chapter is not None
        some = torch.arange(chapter.num_train).numpy()
        valid += int(chapter.num_labels(*chapter.bounds(some)).sum())
    # Every learned token but the first of a document, and of a window of those cut apart, is one.
    learned = [row.get("completion", row.get("text", "")) for row in rows]
    firsts = sum("prompt" not in row or not row["prompt"] for row in rows)
    cut_off = 0.05 if packing else 0.01
    assert valid == pytest.approx(sum(map(len, learned)) - firsts, rel=cut_off)
    data = TrainingData(windows, run_plan, batch_rank=0, device=CPU)
    for step in range(10):
        found, told = data.step(step * BATCH)
        assert told == sum(int((batch.labels_BT != IGNORED).sum()) for batch in found)


def test_auto_streams_what_is_large_and_made_of_plain_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(**changes: Any) -> DataSpec:
        return DataSpec.model_validate({"dataset": "mine", "sequence_length": 8, **changes})

    folder = sharded(tmp_path / "shards", texts(50), [0, 20, 50])
    assert not is_streamed(asked(), "jsonl", folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(streamed, "STREAMED_FROM", size)
    assert not is_streamed(asked(), "jsonl", folder)
    monkeypatch.setattr(streamed, "STREAMED_FROM", size - 1)
    assert is_streamed(asked(), "jsonl", folder)
    assert not is_streamed(asked(sampling="global"), "jsonl", folder)
    assert not is_streamed(asked(tokenizer="characters"), "jsonl", folder)
    assert not is_streamed(asked(mixture=[{"dataset": "other", "share": 0.1}]), "jsonl", folder)
    assert not is_streamed(asked(), "text", folder)
    packed = folder / "00002.jsonl.zst"
    packed.write_bytes(zstandard.compress(b'{"text": "packed"}\n' * 3))
    assert not is_streamed(asked(), "jsonl", folder)
    assert is_streamed(asked(sampling="streamed"), "jsonl", folder)
    with pytest.raises(BadData, match="not made of documents, so it cannot be streamed"):
        is_streamed(asked(sampling="streamed"), "text", folder)


def test_compressed_files_are_chapters_and_one_alone_is_refused(tmp_path: Path) -> None:
    rows = lines(300)
    folder = tmp_path / "packed"
    folder.mkdir()
    for number in range(3):
        some = "".join(json.dumps(row) + "\n" for row in rows[100 * number : 100 * (number + 1)])
        (folder / f"{number}.jsonl.zst").write_bytes(zstandard.compress(some.encode()))
    run_plan = plan_of(folder, data__held_out=0.3)
    found = [text for step in batches(run_plan, tmp_path, range(25)) for text in step]
    assert sorted(found) == written(rows)[:200]
    for path in sorted(folder.iterdir())[1:]:
        path.unlink()
    with pytest.raises(BadData, match=r"has 1 file, which cannot be divided; held_out 0\.3 leaves"):
        open_windows(run_plan, tmp_path)


def test_a_spec_of_before_keeps_its_order() -> None:
    old = make_spec(data__sampling="global")
    assert old.data.model_dump(mode="json")["sampling"] == "global"
    new = make_spec()
    assert new.data.sampling is Sampling.AUTO
    assert "sampling" not in new.data.model_dump(mode="json")  # older workers do not know `auto`


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__tokenizer": "characters", "data__vocabulary_size": 9}, "reads the whole text"),
        ({"data__mixture": [{"dataset": "more", "share": 0.2}]}, "the sizes of all datasets"),
    ],
)
def test_what_has_to_be_known_as_a_whole_is_not_streamed(
    changes: dict[str, Any], message: str
) -> None:
    spec = make_spec(data__sampling="streamed", **changes)
    found = plan(spec, nodes=1, ranks_per_node=1, hardware=HARDWARE)
    assert [(one.code, one.param) for one in found.problems] == [("not_streamed", "data.sampling")]
    assert message in found.problems[0].message


@pytest.mark.gloo
def test_the_curve_is_the_same_on_two_ranks_and_for_a_resumed_run(
    pool: Pool, tmp_path: Path
) -> None:
    folder = sharded(tmp_path / "shards", texts(300), [0, 100, 101, 300])
    changes: dict[str, Any] = {"precision": "float64", "training__steps": 12}
    curve = pool.train(plan_of(folder, **changes), tmp_path / "one").series("loss")
    assert len(curve) == 12
    two = plan_of(folder, ranks=2, checkpoint__every_steps=8, **changes)
    saved = pool.train(two, tmp_path / "two")
    assert saved.series("loss") == pytest.approx(curve, rel=1e-12)
    (tmp_path / "resumed").mkdir()
    resumed = two.model_copy(
        update={"resume_from": str(saved.directory.checkpoints / "step-000008")}
    )
    assert pool.train(resumed, tmp_path / "resumed").series("loss") == pytest.approx(
        curve[8:], rel=1e-12
    )
