"""Memory of a run that its plan says does not fit, phase by phase beside the plan."""

from pathlib import Path

import pytest
import torch

from strategies.plan.layout import Layout
from strategies.plan.planner import plan
from strategies.plan.run_directory import RankMemory, RunPlan
from strategies.train.mesh import Mesh
from strategies.train.watching.phase_peaks import PhasePeaks
from strategies.train.watching.phases import Phase, phase
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import HARDWARE, Options, make_spec

SMALL = HARDWARE.model_copy(update={"memory_gib": 0.01})
# Large beside the 10 MiB that MKL keeps on some CPUs once it has multiplied.
MODEL: Options = {"name": "llama", "layers": 2, "width": 512, "heads": 4}
PHASES = ["setup", "forward", "backward", "optimizer"]


def unfit(**fields: object) -> RunPlan:
    spec = make_spec(model=MODEL, training__steps=3, data__sequence_length=64)
    planned = plan(spec, nodes=1, ranks_per_node=1, hardware=SMALL)
    assert not planned.fits
    return RunPlan.model_validate(
        {"spec": spec, "plan": planned, "sample_bytes": 0, "preflight": False, **fields}
    )


@pytest.mark.gloo
def test_every_phase_is_measured_beside_its_plan(
    pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    run = pool.train(unfit(**ragged), tmp_path / "run")
    (found,) = run.directory.memory()
    assert (found.rank, found.step, found.phase) == (0, 3, "optimizer")
    assert list(found.planned_gib) == list(found.used_gib) == PHASES
    for name in PHASES[1:]:
        assert found.used_gib[name] == pytest.approx(found.planned_gib[name], rel=0.15), name


def test_what_was_reached_is_on_disk_when_memory_runs_out(tmp_path: Path) -> None:
    path, run_plan = tmp_path / "memory-rank-0.json", unfit()
    peaks = PhasePeaks(path, run_plan.plan, Mesh(Layout(), 0, torch.device("cpu")))
    held = []
    with peaks.watching():
        held.append(torch.ones(1 << 20))
    in_the_middle = []

    def run_out() -> None:
        with peaks.watching(), phase(Phase.FORWARD):
            held.append(torch.ones(2 << 20))
            in_the_middle.append(RankMemory.model_validate_json(path.read_bytes()))
            raise MemoryError

    with pytest.raises(MemoryError):
        run_out()
    found = RankMemory.model_validate_json(path.read_bytes())
    assert (found.step, found.phase) == (1, "forward")
    assert in_the_middle[0].used_gib["forward"] * 2**30 >= 12 << 20
    assert found.used_gib["setup"] * 2**30 >= 4 << 20
    assert "backward" not in found.used_gib
    assert found.planned_gib == run_plan.plan.needed_by_phase_gib[0]


def test_a_run_that_fits_is_not_measured(tmp_path: Path) -> None:
    run_plan = unfit()
    fits = run_plan.plan.model_copy(update={"fits": True})
    path = tmp_path / "memory-rank-0.json"
    peaks = PhasePeaks(path, fits, Mesh(Layout(), 0, torch.device("cpu")))
    with peaks.watching(), phase(Phase.FORWARD):
        torch.ones(10)
    assert not path.exists()
