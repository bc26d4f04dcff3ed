"""Which attempts do a preflight, and which need not: the ranks passed one within the hour."""

from pathlib import Path

import pytest

from core.spec.spec import Launcher
from core.states import INFRASTRUCTURE, Outcome
from strategies.plan.durable_files import json_bytes
from strategies.plan.run_directory import RunPlan
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, make_order
from worker.node.attempts import Attempt, NodeFolder, StartFile
from worker.node.proven import FRESH_S, distrust, needs_preflight, note_end

BOOT = "boot-1"
BEGAN_S = 5000.0


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    folder = NodeFolder(tmp_path)
    folder.create()
    return folder


def ended(folder: NodeFolder, *, epoch: int = 1, preflight: bool = True, step: int = 3) -> Attempt:
    """An attempt of two ranks that came to `step`."""
    order = make_order(epoch=epoch)
    attempt = folder.begin(order)
    start = StartFile(
        job_id=order.job_id,
        epoch=epoch,
        node="n1",
        trainer="fake_trainer",
        launcher=Launcher.WARM,
        ranks=2,
        threads=1,
    )
    attempt.start_file.write_bytes(json_bytes(start))
    run_plan = RunPlan(spec=order.spec, plan=order.plan, preflight=preflight)
    attempt.plan.write_bytes(json_bytes(run_plan))
    attempt.metrics.write_text(f'{{"step": 0, "event": "preflight"}}\n{{"step": {step}}}\n')
    return attempt


def needed(
    folder: NodeFolder, *, ranks: int = 2, later_s: float = 60.0, boot_id: str = BOOT
) -> bool:
    plan = make_order(ranks=ranks).plan
    return needs_preflight(folder, plan, now=BEGAN_S + later_s, boot_id=boot_id)


def test_ranks_that_passed_need_none_for_an_hour(folder: NodeFolder) -> None:
    assert needed(folder)
    note_end(ended(folder), Outcome.SUCCEEDED, began_s=BEGAN_S, boot_id=BOOT)
    assert not needed(folder)
    assert not needed(folder, later_s=FRESH_S - 1)
    assert needed(folder, later_s=FRESH_S)
    assert needed(folder, ranks=4)
    assert needed(folder, boot_id="boot-2")


def test_an_attempt_that_skipped_it_or_never_stepped_proves_nothing(folder: NodeFolder) -> None:
    skipped, idle = ended(folder, preflight=False), ended(folder, epoch=2, step=0)
    for attempt in (skipped, idle):
        note_end(attempt, Outcome.USER_ERROR, began_s=BEGAN_S, boot_id=BOOT)
    assert needed(folder)


@pytest.mark.parametrize("outcome", INFRASTRUCTURE)
def test_a_failure_of_the_node_ends_the_trust(folder: NodeFolder, outcome: Outcome) -> None:
    note_end(ended(folder), Outcome.USER_ERROR, began_s=BEGAN_S, boot_id=BOOT)
    assert not needed(folder)
    note_end(ended(folder, epoch=2), outcome, began_s=BEGAN_S, boot_id=BOOT)
    assert needed(folder)


def test_a_damaged_file_counts_as_none(folder: NodeFolder) -> None:
    note_end(ended(folder), Outcome.SUCCEEDED, began_s=BEGAN_S, boot_id=BOOT)
    (folder.path / "proven.json").write_text("{")
    assert needed(folder)
    distrust(ended(folder, epoch=2))
    assert not (folder.path / "proven.json").exists()


@pytest.mark.gloo
def test_the_second_attempt_on_a_node_skips_it(api: FakeApi, node: Node) -> None:
    node.start()
    asked = []
    for job in ("job_a", "job_b"):
        key = api.order(make_order(job, steps=3, launcher=Launcher.WARM))
        assert api.wait_for_exit(key).outcome is Outcome.SUCCEEDED
        asked.append(node.attempt(key).read_plan().preflight)
    assert asked == [True, False]
    assert node.stop() == 0
