"""Record of ranks of this node that have passed a preflight lately, so that it need not be
repeated.

An attempt that did a preflight and reached its first step has passed it. The record is deleted when
an attempt fails through the node's fault, and ignored after the machine restarts.
"""

from pathlib import Path

from core.states import INFRASTRUCTURE, Outcome
from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.planner import Plan
from strategies.plan.run_directory import RunPlan
from worker.node.attempts import Attempt, NodeFolder, StateFile, read_model

FILE = "proven.json"
FRESH_S = 3600.0


class PreflightRecord(StateFile):
    """Content of proven.json, in the node's folder."""

    boot_id: str
    passed_at: dict[int, float]
    """Time of the last pass by number of ranks, on the boot clock of `boot_id`."""


def needs_preflight(folder: NodeFolder, plan: Plan, *, now: float, boot_id: str) -> bool:
    """Return True unless as many ranks have passed a preflight within the hour.

    Always True for several nodes: this one knows nothing of the network to the others.
    """
    proven = read_model(folder.path / FILE, PreflightRecord)
    if proven is None or proven.boot_id != boot_id or plan.nodes > 1:
        return True
    return now - proven.passed_at.get(plan.world_size, -FRESH_S) >= FRESH_S


def note_end(attempt: Attempt, outcome: Outcome, *, began_s: float, boot_id: str) -> None:
    """Record an attempt's result about its node. Raises OSError of the disk."""
    if outcome in INFRASTRUCTURE:
        distrust(attempt)
        return
    start = attempt.start()
    if start is None or start.script:
        return
    path = file_of(attempt)
    run_plan = read_model(attempt.plan, RunPlan)
    if run_plan is None or not run_plan.preflight or attempt.last_step() == 0:
        return
    before = read_model(path, PreflightRecord)
    passed_at = {} if before is None or before.boot_id != boot_id else before.passed_at
    passed_at = {**passed_at, run_plan.plan.world_size: began_s}
    write_atomically(path, json_bytes(PreflightRecord(boot_id=boot_id, passed_at=passed_at)))


def distrust(attempt: Attempt) -> None:
    """Delete this node's record, because an attempt has failed through its fault."""
    file_of(attempt).unlink(missing_ok=True)


def file_of(attempt: Attempt) -> Path:
    """Return the path of proven.json of the attempt's node."""
    return attempt.path.parents[1] / FILE
