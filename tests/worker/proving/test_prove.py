"""`trainyard prove`: the sixteen checks on GPUs, some of them on CPU slots, and the runner."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from strategies.plan.spec import TrainSpec
from strategies.plan.trust.experiment import Fault
from strategies.plan.trust.proof import CheckName, Proof, read_document
from worker.agent.inventory import take_inventory
from worker.agent.spawners import Spawners
from worker.gpus.node_gpus import NodeGpus
from worker.node.attempts import Attempt, NodeFolder
from worker.node.process_tree import attempts_of_processes
from worker.proving import command
from worker.proving.all_checks import CHECKS
from worker.proving.bench import TRAINER, Bench, Run, spec_of
from worker.proving.finding import CheckFailed, Finding, passed
from worker.proving.runner import Check, run_check
from worker.scripts.sandbox import find_level

ON_GPU = torch.cuda.is_available()
BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """This machine's GPUs, or two CPU slots."""
    folder = NodeFolder(tmp_path_factory.mktemp("prove"))
    folder.create()
    node_gpus = NodeGpus(folder.gpus, limit=None, wake=lambda: None)
    inventory = take_inventory(node_gpus.look(held=(), roots=()), None, find_level())
    spawners = Spawners(TRAINER, warm_allowed=True)
    ranks = len(inventory.gpus) if ON_GPU else 2
    found = Bench(folder, inventory, "cuda" if ON_GPU else "cpu", ranks, spawners, node_gpus)
    yield found
    found.clear()
    spawners.close()
    node_gpus.close()


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA GPU")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_this_node_passes(bench: Bench, check: Check) -> None:
    result = run_check(check, bench)
    if result.verdict == "skipped":
        pytest.skip(result.sentence)
    assert result.verdict == "passed", result


@pytest.mark.gloo
@pytest.mark.timeout(900)
@pytest.mark.skipif(ON_GPU, reason="the GPUs take the same checks")
@pytest.mark.slow
@pytest.mark.parametrize("name", CheckName)
def test_cpu_slots_pass(bench: Bench, name: CheckName) -> None:
    result = run_check(BY_NAME[name], bench)
    assert result.verdict == ("skipped" if name == "schedules" else "passed"), result


def test_every_check_has_a_place_and_ten_minutes_are_enough_for_all() -> None:
    assert [check.name for check in CHECKS] == list(CheckName)
    assert sum(check.limit_s for check in CHECKS) <= 600


@pytest.mark.parametrize("module", ["this", "no_such_module"])
def test_compiling_once_takes_none_of_the_checks_time(bench: Bench, module: str) -> None:
    bench.ends_at = 1000.0
    began = time.monotonic()
    bench.compile_once(module)
    assert 0 < bench.ends_at - 1000.0 <= time.monotonic() - began


def result_of(bench: Bench, look: object, limit_s: float = 60) -> tuple[str, str]:
    result = run_check(Check(CheckName.EQUALITY, look, limit_s), bench)  # type: ignore[arg-type]
    return result.verdict, result.sentence


def test_a_check_that_needs_more_ranks_is_skipped_with_the_reason(bench: Bench) -> None:
    def look(bench: Bench) -> Finding:
        bench.require_ranks(4096)
        raise AssertionError

    verdict, sentence = result_of(bench, look)
    assert verdict == "skipped"
    assert sentence.startswith("It needs 4096 ")


@pytest.mark.parametrize("error", [CheckFailed("rank 1 is odd"), ZeroDivisionError("oh")])
def test_a_check_that_raises_has_failed_and_says_why(bench: Bench, error: Exception) -> None:
    def look(bench: Bench) -> Finding:
        raise error

    verdict, sentence = result_of(bench, look)
    assert verdict == "failed"
    assert str(error)[1:] in sentence


@pytest.mark.gloo
def test_a_training_that_outlives_its_check_is_ended_with_all_its_ranks(bench: Bench) -> None:
    def look(bench: Bench) -> Finding:
        bench.train(spec_of(training__steps=100_000), ranks=1)
        return passed("never")

    began = bench.number
    verdict, sentence = result_of(bench, look, limit_s=0.4)
    assert bench.number == began + 1
    assert (verdict, sentence) == ("failed", "Not finished within 2 s; it was ended.")
    assert bench.folder.all_attempts() == []
    assert not list(attempts_of_processes(bench.folder.attempts))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_trainings_too(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def prove(*_: Any, **__: Any) -> Proof:
        try:
            os.kill(os.getpid(), number)
            threading.Event().wait(10)
        finally:
            ended.append("the trainings")
        raise AssertionError("the signal did nothing")

    monkeypatch.setattr(command, "prove", prove)
    before = signal.getsignal(number)
    assert command.run(only=["precision"]) == command.INTERRUPTED
    assert ended == ["the trainings"]
    assert signal.getsignal(number) is before


def test_trainings_run_side_by_side_as_cores_and_memory_allow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    most: list[int] = []

    def start(spec: TrainSpec, *, ranks: int, fault: Fault | None) -> Run:
        assert (ranks, fault) == (2, None)
        running.append("a training")
        most.append(len(running))
        return Run(Attempt(bench.folder.attempts / "fake.1"), bench.plan(spec, ranks=ranks))

    def wait(run: Run) -> Run:
        running.pop()
        return run

    monkeypatch.setattr(bench, "start", start)
    monkeypatch.setattr(bench, "wait", wait)
    asked = {f"number {i}": spec_of(parallelism__strategy="ddp") for i in range(9)}

    def at_once(*, num_cores: int, memory: float) -> int:
        monkeypatch.setattr("worker.proving.bench.cores", lambda: num_cores)
        needed_gib = bench.plan(asked["number 0"], ranks=2).needed_gib
        hardware = bench.hardware.model_copy(update={"memory_gib": memory * needed_gib})
        monkeypatch.setattr(Bench, "hardware", hardware)
        most.clear()
        assert [name for name, _ in bench.run_all(asked, ranks=2)] == list(asked)
        return max(most)

    assert at_once(num_cores=16, memory=100) == 4
    assert at_once(num_cores=16, memory=3.5) == 3
    assert at_once(num_cores=2, memory=100) == 1
    assert at_once(num_cores=64, memory=100) == 9


@pytest.mark.slow
def test_a_program_that_fails_is_told_by_its_last_lines(bench: Bench) -> None:
    def look(bench: Bench) -> Finding:
        bench.measure("strategies.no_such_module")
        return passed("never")

    verdict, sentence = result_of(bench, look)
    assert verdict == "failed"
    assert "No module named strategies.no_such_module" in sentence


def test_the_command_writes_a_proof_that_can_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("TRAINYARD_"):
            monkeypatch.delenv(name)
    out = tmp_path / "proof.json"
    assert command.run(only=["hand-over"], ranks=1, on="cpu", as_json=True, out=out) == 0
    said = capsys.readouterr()
    assert said.out == out.read_text()
    proof = read_document(said.out)
    assert [check.name for check in proof.checks] == ["hand-over"]
    assert proof.machine.device == "cpu"
    assert f"SHA-256 {proof.sha256}" in said.err
    assert command.check_file(out) == 0
    changed = json.loads(said.out)
    changed["content"]["checks"][0]["verdict"] = "skipped"
    out.write_text(json.dumps(changed))
    assert command.check_file(out) == 1
    assert "this proof was changed" in capsys.readouterr().err


def test_an_unknown_check_and_a_missing_gpu_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.run(only=["speling"]) == command.BAD_INPUT
    assert "there are: inventory, collectives" in capsys.readouterr().err
    if not ON_GPU:
        assert command.run(only=["hand-over"], on="gpu") == command.BAD_INPUT
        assert "no GPU" in capsys.readouterr().err
