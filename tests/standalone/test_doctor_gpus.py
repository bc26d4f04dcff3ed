"""`trainyard doctor --node` about GPUs: torch's build, devices, limits, compilers."""

import resource
from pathlib import Path

import pytest
import torch

from core.states import GpuHealth
from standalone.doctor_gpus import (
    about_compiler,
    about_gpus,
    about_locked_memory,
    about_sight,
    about_torch,
    about_uvm,
)
from strategies.plan.torch_builds import Capability
from worker.gpus.amd import count_amd_gpus
from worker.gpus.nvml import Device, Fault, Reading
from worker.gpus.torch_build import TorchBuild, installed_build

A100, V100 = (8, 0), (7, 0)
PYPI = TorchBuild(version="2.13.0+cu130", cuda="13.0", nccl="2.29.7", num_gpus=4)
CU126 = TorchBuild(version="2.13.0+cu126", cuda="12.6", nccl="2.29.3", num_gpus=4)
CPU = TorchBuild(version="2.13.0+cpu")
ROCM = TorchBuild(version="2.13.0+rocm7.2", hip="7.2.26015")


@pytest.mark.parametrize(
    ("build", "driver", "gpus", "level", "todo"),
    [
        (PYPI, "580.65.06", [A100] * 4, "ok", ""),
        (PYPI, "550.54.15", [A100] * 4, "fail", "torch==2.13.0+cu126"),
        (PYPI, "580.65.06", [V100] * 4, "fail", "torch==2.13.0+cu126"),
        (CU126, "550.54.15", [V100] * 4, "ok", ""),
        (CPU, "550.54.15", [A100] * 4, "fail", "torch==2.13.0+cu126"),
        (CPU, "", [], "ok", ""),
        (ROCM, "", [], "fail", "torch==2.13.0+cpu"),
        ("torch cannot be imported: No module named 'torch'", "", [], "fail", "'.[train]'"),
    ],
)
def test_torch_is_compared_with_the_driver_and_the_gpus(
    build: TorchBuild | str, driver: str, gpus: list[Capability], level: str, todo: str
) -> None:
    found = about_torch(build, driver, gpus)
    assert found.level == level
    assert todo in found.todo
    assert bool(found.todo) == (level != "ok")


def test_versions_are_named() -> None:
    found = about_torch(PYPI, "580.65.06", [A100])
    assert found.found == "2.13.0+cu130 for CUDA 13.0, NCCL 2.29.7"


def test_each_gpu_that_is_not_fit_is_told_with_its_reason() -> None:
    lost = Device("GPU-2", fault=Fault(GpuHealth.LOST, "Reboot the node."))
    fit = Device("GPU-1", name="NVIDIA A100-SXM4-40GB", memory_gib=40)
    whole, broken, silent = about_gpus(Reading((fit, lost), num_silent=1), "580.65.06")
    assert (whole.level, broken.level, silent.level) == ("ok", "warn", "warn")
    assert whole.found == "1 fit for jobs (NVIDIA A100-SXM4-40GB), driver 580.65.06"
    assert (broken.found, broken.todo) == ("GPU-2: lost", "Reboot the node.")
    [none] = about_gpus(Reading(), "")
    assert (none.level, none.found) == ("ok", "none: CPU slots are offered")
    [dead] = about_gpus(Reading(error="The driver was updated. Reboot the node."), "")
    assert (dead.level, "Reboot" in dead.todo) == ("fail", True)


def test_gpus_that_torch_does_not_see_are_counted() -> None:
    assert about_sight(PYPI, 4).level == "ok"
    assert about_sight(PYPI, 5).level == "warn"
    blind = PYPI.model_copy(update={"num_gpus": 0, "error": "CUDA unknown error"})
    found = about_sight(blind, 4)
    assert (found.level, found.found) == ("fail", "torch sees 0 of 4 GPUs: CUDA unknown error")


def test_a_missing_uvm_names_the_command(tmp_path: Path) -> None:
    found = about_uvm(tmp_path)
    assert (found.level, "nvidia-modprobe -u -c 0" in found.todo) == ("warn", True)
    (tmp_path / "nvidia-uvm").touch()
    assert about_uvm(tmp_path).level == "ok"


def test_limited_locked_memory_names_the_unit() -> None:
    found = about_locked_memory(8 << 20, is_needed=True)
    assert (found.level, "LimitMEMLOCK=infinity" in found.todo) == ("warn", True)
    assert about_locked_memory(8 << 20, is_needed=False).level == "ok"
    assert about_locked_memory(resource.RLIM_INFINITY, is_needed=True).level == "ok"


def test_a_missing_compiler_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    found = about_compiler(has_gpus=True)
    assert (found.level, "a C compiler (gcc)" in found.found) == ("warn", True)
    assert "apt install gcc" in found.todo


def test_gpus_of_amd_are_counted_and_cpu_sockets_are_not(tmp_path: Path) -> None:
    for number, simd_count in enumerate((0, 480, 480)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(
            f"cpu_cores_count {64 if simd_count == 0 else 0}\nsimd_count {simd_count}\n"
        )
    assert count_amd_gpus(tmp_path) == 2
    assert count_amd_gpus(tmp_path / "missing") == 0


def test_the_installed_torch_is_asked_in_a_process_of_its_own() -> None:
    found = installed_build()
    assert isinstance(found, TorchBuild)
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)
