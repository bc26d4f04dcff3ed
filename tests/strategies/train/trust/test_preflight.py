"""A preflight proves healthy ranks healthy, and names the sick one."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from strategies.plan.durable_files import json_bytes
from strategies.plan.run_directory import ExitCode
from strategies.plan.trust.preflight_report import Report, Verdict
from strategies.train.trust.collectives import (
    COLLECTIVES,
    EXACT,
    PERIOD,
    check,
    prepare,
    quick_list,
    summands,
)
from strategies.train.trust.preflight import Findings, RankTimes, slow_ranks, timings
from strategies.train.trust.preflight_display import show
from strategies.train.trust.transport import nccl_logging, read_nccl_log
from tests.strategies.support.training_runs import Started, WarmRanks, make_run_plan, make_spec

SICK_RANKS = "sick_ranks.py"
KILLED = -9
RANKS = [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4))]
DEADLINE_S = 120.0


def reports(folder: Path) -> dict[int, Report]:
    """By rank, of those that lived to write one."""
    return {
        int(path.stem): Report.model_validate_json(path.read_bytes())
        for path in folder.glob("*.json")
    }


def examined(
    warm: WarmRanks, out: Path, sickness: str = "", *, ranks: int, **options: object
) -> tuple[list[int], dict[int, Report]]:
    """Exit codes and reports of a preflight."""
    arguments = {"out": str(out), "sickness": sickness, **options}
    codes = Started(warm, warm.fork(SICK_RANKS, "examined", ranks, DEADLINE_S, arguments)).wait()
    return codes, reports(out)


@pytest.mark.gloo
@pytest.mark.parametrize("ranks", RANKS)
def test_healthy_ranks_give_every_number_of_every_collective(
    warm: WarmRanks, tmp_path: Path, ranks: int
) -> None:
    codes, found = examined(warm, tmp_path, ranks=ranks, checks="full", timeout_s=20)
    # Tests share their cores with others: what is slow here is not asked.
    assert set(codes) <= {Verdict.HEALTHY, Verdict.SLOW_RANK}, warm.said()
    report = found[0]
    assert report.findings == [str(slow) for slow in report.slow]
    assert len(report.timings) == 102
    assert {row.check.collective for row in report.timings} == {
        "all_reduce", "ring by hand", "reduce", "reduce_scatter", "broadcast", "all_gather",
        "scatter", "all_to_all", "p2p ring",
    }  # fmt: skip
    assert all(row.right for row in report.timings)
    assert [found[rank].timings for rank in range(ranks)] == [report.timings] * ranks


@pytest.mark.gloo
class TestASickRank:
    def test_that_is_busy_is_slow(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "busy", ranks=2, timeout_s=20)
        assert codes == [Verdict.SLOW_RANK] * 2, warm.said()
        assert [slow.rank for slow in found[0].slow if "own work" in slow.what] == [1]
        expected = "rank 1 is slow: its own work between two collectives takes it"
        assert any(finding.startswith(expected) for finding in found[0].findings)

    def test_with_a_slow_link_is_slow(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "slow_link", ranks=4, timeout_s=20)
        assert codes == [Verdict.SLOW_RANK] * 4, warm.said()
        assert 1 in [slow.rank for slow in found[0].slow if "neighbour" in slow.what]

    @pytest.mark.slow
    def test_that_died_is_named(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "dies_between", ranks=3)
        assert codes == [Verdict.RANKS_MISSING, KILLED, Verdict.RANKS_MISSING], warm.said()
        for report in (found[0], found[2]):
            assert report.missing is not None
            assert report.missing.ranks == [1]
            assert "never entered broadcast (float32, 16 KiB); it entered" in report.missing.why
            assert "reduce_scatter (mean, bfloat16, 16 KiB) last" in report.missing.why

    @pytest.mark.slow
    def test_that_dies_in_a_collective_is_named(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "dies_inside", ranks=2)
        assert codes == [Verdict.RANKS_MISSING, KILLED], warm.said()
        assert found[0].missing is not None
        assert found[0].missing.ranks == [1]
        entered = "entered all_gather (bfloat16, 16 KiB) and never came out of it"
        assert found[0].missing.why.endswith(entered)

    @pytest.mark.slow
    def test_that_hangs_is_named(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "hangs", ranks=2)
        assert codes == [Verdict.RANKS_MISSING, KILLED], warm.said()
        assert found[0].missing is not None
        assert found[0].missing.ranks == [1]

    def test_that_died_and_kept_the_list_is_named(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "dies_between", ranks=2, sick=0)
        assert codes == [KILLED, Verdict.RANKS_MISSING], warm.said()
        assert found[1].missing is not None
        assert found[1].missing.ranks == [0]
        assert "which keeps the list of the ranks, is gone" in found[1].missing.why

    def test_with_a_wrong_number_is_named_with_it(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "wrong_value", ranks=2, timeout_s=20)
        assert codes == [Verdict.WRONG_VALUES] * 2, warm.said()
        (wrong,) = found[0].wrong
        assert (wrong.check.collective, wrong.check.operation) == ("reduce_scatter", "mean")
        assert (wrong.rank, wrong.index, wrong.got - wrong.expected) == (1, 5, 1)
        assert [row.right for row in found[0].timings].count(False) == 1

    def test_whose_sums_have_other_bits_is_named(self, warm: WarmRanks, tmp_path: Path) -> None:
        codes, found = examined(warm, tmp_path, "other_bits", ranks=2, timeout_s=20)
        assert codes == [Verdict.WRONG_VALUES] * 2, warm.said()
        assert [(one.rank, one.dtype) for one in found[0].other_bits] == [(1, "float32")]

    @pytest.mark.parametrize(
        "sickness", ["other_order", pytest.param("other_dtype", marks=pytest.mark.slow)]
    )
    def test_that_is_out_of_step_is_named(
        self, warm: WarmRanks, tmp_path: Path, sickness: str
    ) -> None:
        codes, found = examined(warm, tmp_path, sickness, ranks=3, timeout_s=20)
        assert codes == [Verdict.RANKS_MISSING] * 3, warm.said()
        came = {
            "other_dtype": "reduce_scatter (mean, float64, 16 KiB)",
            "other_order": "p2p ring (float32, 16 KiB)",
        }
        for report in found.values():
            assert report.missing is not None
            assert report.missing.ranks == [1]
            assert f"came to {came[sickness]}" in report.missing.why


@pytest.mark.gloo
def test_a_backend_that_adds_up_for_a_mean_is_found(warm: WarmRanks, tmp_path: Path) -> None:
    arguments = {"out": str(tmp_path)}
    started = Started(warm, warm.fork(SICK_RANKS, "sum_for_mean", 2, DEADLINE_S, arguments))
    assert started.wait() == [Verdict.WRONG_VALUES] * 2, warm.said()
    found = reports(tmp_path)[0]
    wrong = {(one.check.collective, one.check.operation) for one in found.wrong}
    assert wrong == {("reduce_scatter", "mean")}
    assert {one.rank for one in found.wrong} == {0, 1}


@pytest.mark.gloo
@pytest.mark.parametrize("ranks", RANKS)
def test_the_ring_by_hand_is_an_all_reduce_of_any_size(warm: WarmRanks, ranks: int) -> None:
    pids = warm.fork(SICK_RANKS, "rings", ranks, DEADLINE_S, {})
    assert Started(warm, pids).wait() == [0] * ranks, warm.said()


@pytest.mark.gloo
class TestBeforeTraining:
    def test_the_ranks_prove_themselves_once(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = make_spec(training__steps=2, training__warmup_steps=0, parallelism__strategy="ddp")
        run = warm.train(make_run_plan(spec, ranks=2, preflight=True, **ragged), tmp_path / "run")
        first, *later = run.lines
        assert (first["event"], first["step"]) == ("preflight", 0)
        assert 0 < first["preflight_ms"] < 5000
        assert [line["step"] for line in later if "loss" in line] == [1, 2]
        report = Report.model_validate_json(run.directory.preflight.read_bytes())
        assert (len(report.ranks), len(report.timings), report.findings) == (2, 8, [])
        one = make_run_plan(make_spec(training__steps=1, training__warmup_steps=0), **ragged)
        alone = warm.train(one.model_copy(update={"preflight": True}), tmp_path / "alone")
        assert "event" not in alone.lines[0]

    def test_a_wrong_rank_ends_the_attempt_by_name(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
    ) -> None:
        run_plan = make_run_plan(
            make_spec(parallelism__strategy="ddp"), ranks=2, preflight=True, **ragged
        )
        (tmp_path / "plan.json").write_bytes(json_bytes(run_plan))
        arguments = {"run_dir": str(tmp_path), "sickness": "wrong_value"}
        started = Started(warm, warm.fork(SICK_RANKS, "train_run", 2, DEADLINE_S, arguments))
        assert started.wait() == [ExitCode.PREFLIGHT_FAILED] * 2, warm.said()
        for rank in range(2):
            error = warm.error(rank)
            assert error["type"] == "PreflightFailed"
            assert re.fullmatch(
                r"preflight: rank 1 received \d+ instead of \d+ at index 5 of "
                r"reduce_scatter \(mean, bfloat16, 16 KiB\)",
                error["message"],
            )
        assert not (tmp_path / "metrics.jsonl").exists()

    @pytest.mark.parametrize(
        ("sickness", "timeout_s"),
        [("sleeps_inside", 2), pytest.param("dies_inside", 3, marks=pytest.mark.slow)],
    )
    def test_a_rank_that_hangs_or_dies_ends_the_attempt_by_name_before_the_backends_timeout(
        self, warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path, sickness: str, timeout_s: int
    ) -> None:
        run_plan = make_run_plan(
            make_spec(parallelism__strategy="ddp"),
            ranks=2,
            preflight=True,
            collective_timeout_s=timeout_s,
            **ragged,
        )
        (tmp_path / "plan.json").write_bytes(json_bytes(run_plan))
        arguments = {"run_dir": str(tmp_path), "sickness": sickness}
        started = Started(warm, warm.fork(SICK_RANKS, "train_run", 2, DEADLINE_S, arguments))
        assert started.wait() == [ExitCode.PREFLIGHT_FAILED, KILLED], warm.said()
        message = warm.error(0)["message"]
        assert message.startswith("preflight: rank 1 (")
        assert message.endswith("entered all_gather (bfloat16, 16 KiB) and never came out of it")
        if sickness == "sleeps_inside":
            assert "A collective is overdue" in (warm.logs / "rank-0" / "stderr.log").read_text()


def test_the_quick_form_has_every_collective_of_torch_and_every_operation_but_min() -> None:
    listed = quick_list()
    assert {one.collective for one in listed} == set(COLLECTIVES) - {"ring by hand"}
    assert {one.operation for one in listed} == {"sum", "max", "mean", None}
    assert {one.dtype for one in listed} == {"float32", "bfloat16", "int64"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 64, 127, 128])
def test_every_sum_and_mean_is_exact_even_in_bfloat16(ranks: int) -> None:
    numbers_RP = summands(ranks, 256)
    assert numbers_RP.shape == (ranks, PERIOD)
    assert numbers_RP.min() >= 0
    assert numbers_RP.sum(0).max() <= 256
    assert torch.equal(numbers_RP.sum(0) % ranks, torch.zeros(PERIOD, dtype=torch.int64))
    running_RP = numbers_RP.cumsum(0)
    assert torch.equal(running_RP.bfloat16().long(), running_RP)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_no_two_ranks_contribute_the_same(ranks: int) -> None:
    for numbers_RP in (summands(ranks, 256), summands(ranks, EXACT)):
        assert len({tuple(row.tolist()) for row in numbers_RP}) == ranks


def test_a_minus_zero_is_not_a_zero() -> None:
    prepared = prepare(
        check("broadcast", None, "float32", 4000), rank=0, ranks=2, device=torch.device("cpu")
    )
    assert prepared.expected is not None
    prepared.exchange.received.copy_(prepared.expected)
    assert prepared.first_wrong() is None
    place = int((prepared.expected == 0).nonzero()[0, 0])
    prepared.exchange.received[place] = -0.0
    assert prepared.first_wrong() == place


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md there: an all-reduce moves 2 (n - 1) / n of its bytes over each link."""
    for collective, operation, factor in (
        ("all_reduce", "sum", 1.5),
        ("reduce_scatter", "sum", 0.75),
        ("all_gather", None, 0.75),
        ("all_to_all", None, 0.75),
        ("scatter", None, 0.75),
        ("broadcast", None, 1.0),
        ("reduce", "sum", 1.0),
        ("p2p ring", None, 1.0),
    ):
        one = check(collective, operation, "float32", 4096)
        prepared = prepare(one, rank=0, ranks=4, device=torch.device("cpu"))
        assert prepared.bus_bytes == 4096 * factor
    measured = RankTimes(own_s=0.0, taken_s=[9.0, 0.002, 0.004], bus_bytes=6e6)
    (row,) = timings([one], [Findings(rank=0, measured=[measured])])
    assert (row.p50_ms, row.p95_ms, row.bus_gb_per_s) == (3.0, 4.0, 2.0)  # the first warms up


@pytest.mark.parametrize(("link_ms", "slow"), [
    ([1, 1, 1, 1], []),
    ([9, 9, 1, 1], [1]),
    ([1, 9, 1, 9], []),  # two machines of two ranks each: every rank has one near neighbour
    ([9, 1, 1, 9], [0]),
    ([2.5, 2.5, 1, 1], []),
])  # fmt: skip
def test_a_slow_rank_is_one_with_two_slow_links(link_ms: list[float], slow: list[int]) -> None:
    measured = [RankTimes(own_s=0.001, taken_s=[0.001], bus_bytes=1.0)]
    everyone = [
        Findings(rank=rank, measured=measured, alone_s=[0.001], link_s=ms / 1e3)
        for rank, ms in enumerate(link_ms)
    ]
    assert [found.rank for found in slow_ranks(everyone)] == slow


def test_the_report_is_shown_as_a_table_a_chart_and_sentences() -> None:
    one = check("all_reduce", "sum", "float32", 2**20)
    measured = RankTimes(own_s=0.0, taken_s=[0.001, 0.002], bus_bytes=2.0**20)
    everyone = [Findings(rank=rank, measured=[measured]) for rank in range(2)]
    report = Report(
        device="cpu", backend="gloo", torch="2.13.0", ranks=["rank 0", "rank 1"], seconds=1.0,
        timings=list(timings([one], everyone)), transport="gloo over TCP (lo)", warnings=["Slow."],
    )  # fmt: skip
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        show(report, console)
    text = capture.get()
    assert "all_reduce  sum        float32  1 MiB  yes   2.000   2.000     0.524" in text
    assert "all_reduce sum         " + "█" * 44 + " 0.524" in text
    assert "healthy: 2 ranks, cpu, gloo, torch 2.13.0, 1 checks in 1.0 s" in text
    assert text.rstrip().endswith("transport: gloo over TCP (lo)\nNote: Slow.")


def test_a_report_from_before_transports_were_read_is_still_read() -> None:
    old = Report(device="cpu", backend="gloo", torch="2.13.0", ranks=[], seconds=1.0, timings=[])
    stored = old.model_dump(exclude={"transport", "warnings"})
    assert Report.model_validate(stored) == old


def test_nccl_logs_to_a_file_that_lasts_as_long_as_the_preflight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    with nccl_logging() as log:
        assert log is not None
        assert os.environ["NCCL_DEBUG_FILE"] == str(log)
        assert read_nccl_log(log) is None
        log.write_text("h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
        found = read_nccl_log(log)
        assert found is not None
        assert found.paths == ["P2P/CUMEM"]
    assert not log.exists()
    with nccl_logging() as log:  # somebody else's log
        assert log is None
