"""Unknown GPUs are measured once, in a process of its own, when the node is idle."""

from pathlib import Path

import pytest
import torch

from strategies.plan.gpus import known_gpu
from strategies.train.trust.gpu_speeds import measure
from worker.gpus.speeds import measured_speeds

TOMORROW = "A GPU of tomorrow"


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a build of torch for CPUs")
def test_an_unknown_gpu_is_measured_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    known, unknown = {"NVIDIA A100-SXM4-40GB": ["GPU-1"]}, {TOMORROW: ["GPU-2"]}
    assert measured_speeds(path, {**known, **unknown}, idle=False) == {}
    assert measured_speeds(path, {TOMORROW: []}, idle=True) == {}
    assert measured_speeds(path, known, idle=True) == {}
    found = measured_speeds(path, {**known, **unknown}, idle=True)
    assert found.keys() == {TOMORROW}
    speeds = found[TOMORROW]
    assert speeds.source == f"measured on this node with torch {torch.__version__}"
    assert speeds.memory_gb_per_s is not None
    assert (speeds.float16, speeds.link_gb_per_s) == (None, None)
    written = path.read_bytes()
    assert measured_speeds(path, unknown, idle=True) == found
    assert path.read_bytes() == written


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_known_gpu_reaches_its_data_sheet() -> None:
    """Dense products of 8,192 reach 60 to 105 % of the peak on every GPU since Volta."""
    speeds, sheet = measure(torch.device("cuda")), known_gpu(torch.cuda.get_device_name())
    if sheet is None:
        pytest.skip("the data sheet of this GPU is not known")
    assert 0.6 < speeds.float32 / sheet.float32 < 1.05
    for measured, told in (
        (speeds.tf32, sheet.tf32),
        (speeds.float16, sheet.float16),
        (speeds.bfloat16, sheet.bfloat16),
    ):
        assert (measured is None) == (told is None)
        assert measured is None or told is None or 0.5 < measured / told < 1.05
