"""Builds of torch: for each (driver, build, capability) whether it runs, and what to install."""

from pathlib import Path

import pytest

from strategies.plan.torch_builds import TORCH, Capability, command, judge_build

P100, V100, T4, A100, L40S, H100 = (6, 0), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0)
B200, RTX_5090, SPARK = (10, 0), (12, 0), (12, 1)
CU130, CU126, CPU = (f"torch=={TORCH}+{tag} " for tag in ("cu130", "cu126", "cpu"))
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("driver", "cuda", "gpus", "why", "todo"),
    [
        # no driver: the CPU is used, whatever torch was built for
        ("", None, [], "", ""),
        ("", "13.0", [], "", ""),
        # PyPI's build
        ("580.65.06", "13.0", [A100], "", ""),
        ("595.10", "13.0", [T4, A100, L40S, H100, B200, RTX_5090, SPARK], "", ""),
        ("580.65.06", "13.2", [H100], "", ""),
        ("575.57.08", "13.0", [A100], "needs driver 580 or newer; this is 575.57.08", CU126),
        ("535.183.01", "13.0", [H100], "needs driver 580 or newer", CU126),
        ("550.54.15", "13.0", [V100], "needs driver 580 or newer", CU126),
        ("580.65.06", "13.0", [V100], "no kernels for GPUs of compute capability 7.0", CU126),
        ("580.65.06", "13.0", [P100, P100], "capability 6.0", CU126),
        ("580.65.06", "13.2", [P100], "capability 6.0", CU126),
        ("570.86.15", "13.0", [B200], "needs driver 580", "Update the driver to 580 or newer"),
        # CUDA 12.6 by minor version compatibility
        ("525.60.13", "12.6", [A100], "", ""),
        ("560.35.03", "12.6", [P100, V100, T4, A100, L40S, H100], "", ""),
        ("580.65.06", "12.6", [V100], "", ""),
        ("515.105.01", "12.6", [A100], "needs driver 525", "Update the driver to 525 or newer"),
        ("470.256.02", "13.0", [V100], "needs driver 580", "Update the driver to 525 or newer"),
        ("580.65.06", "12.6", [RTX_5090], "capability 12.0", CU130),
        ("570.86.15", "12.6", [B200], "capability 10.0", "Update the driver to 580"),
        # CPU build on a node with GPUs
        ("580.65.06", None, [A100], "built for CPUs only", CU130),
        ("550.54.15", None, [A100], "built for CPUs only", CU126),
        # another CUDA 12, whose kernels are not in the table
        ("550.54.15", "12.9", [A100], "", ""),
        ("520.61.05", "12.9", [A100], "needs driver 525", "Update the driver"),
        # old and new GPUs in one machine
        ("580.65.06", "13.0", [P100, B200], "capability 6.0", "No build has kernels for all"),
    ],
)
def test_a_build_is_judged_by_driver_and_gpus(
    driver: str, cuda: str | None, gpus: list[Capability], why: str, todo: str
) -> None:
    found = judge_build(cuda=cuda, hip=None, driver=driver, capabilities=gpus)
    assert bool(found.why) == bool(why)
    assert bool(found.todo) == bool(todo)
    assert why in found.why
    assert todo in found.todo


def test_a_build_for_rocm_is_refused() -> None:
    found = judge_build(cuda=None, hip="7.2.26015", driver="", capabilities=[])
    assert "ROCm 7.2.26015, which Trainyard does not support" in found.why
    assert CPU in found.todo


def test_an_unknown_cuda_asks_for_the_newest_known_driver() -> None:
    found = judge_build(cuda="14.1", hip=None, driver="570.1", capabilities=[H100])
    assert "needs driver 580" in found.why


def test_the_page_and_the_constraints_name_the_same_builds() -> None:
    assert f"torch=={TORCH}\n" in (ROOT / "constraints.txt").read_text()
    page = (ROOT / "docs" / "gpus.md").read_text()
    for tag in ("cu130", "cu126", "cpu"):
        assert command(tag) in page
