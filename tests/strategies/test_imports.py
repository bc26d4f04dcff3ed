"""What the API, the scheduler and the worker import of strategies stays light."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.strategies.support.training_runs import (
    REPOSITORY,
    Run,
    WarmRanks,
    make_run_plan,
    make_spec,
)

TORCH_FREE = [
    "plan.catalog",
    "plan.built_in.datasets",
    "plan.built_in.digits",
    "plan.data.rows",
    "plan.built_in.stdlib_text",
    "plan.hugging_face.hf_config",
    "plan.hugging_face.hf_names",
    "plan.hardware",
    "plan.image_shapes",
    "plan.layout",
    "plan.estimates.activations",
    "plan.estimates.advice",
    "plan.estimates.cost",
    "plan.estimates.flops",
    "plan.gpus",
    "plan.known_models",
    "plan.estimates.memory",
    "plan.planner",
    "plan.seats",
    "plan.estimates.timeline",
    "plan.estimates.traffic",
    "plan.rules",
    "plan.durable_files",
    "plan.run_directory",
    "plan.shapes",
    "plan.spec",
    "plan.stages",
    "plan.trust.certificate",
    "plan.promise",
    "plan.trust.scaling",
]


# In one process, where each is imported by a fork that has imported no other; what all import
# of pydantic is there before.
IMPORT_EACH = """
import importlib, json, os, sys
import pydantic
pydantic.create_model("Any", number=(int, 0))
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        print(json.dumps([name, sorted({"torch", "numpy"} & sys.modules.keys())]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_importing_one_brings_in_neither_torch_nor_numpy() -> None:
    names = [f"strategies.{module}".rstrip(".") for module in [*TORCH_FREE, ""]]
    found = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, *names],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    brought_in = dict(json.loads(line) for line in found.stdout.splitlines())
    assert brought_in == {name: [] for name in names}


@pytest.mark.gloo
def test_preloading_leaves_one_thread(warm: WarmRanks) -> None:
    """A process that forks ranks must own one thread."""
    number = str(warm.process.pid)
    assert os.listdir(f"/proc/{number}/task") == [number]


def test_preloading_on_a_node_with_gpus_asks_neither_nvml_nor_cuda_for_them() -> None:
    """NVML's first call starts a thread, after which no rank could be forked.

    A rank must find all it needs loaded.
    """
    code = (
        "import os; os.environ['DS_ACCELERATOR'] = 'cuda'; os.environ['OMP_NUM_THREADS'] = '1'\n"
        "import pynvml, torch\n"
        "def ask(*_): raise SystemExit('a GPU was asked for')\n"
        "pynvml.nvmlInit = pynvml.nvmlInitWithFlags = ask\n"
        "torch.cuda.device_count = torch.cuda.is_available = torch.cuda._lazy_init = ask\n"
        "torch.cuda.nccl.version = lambda: (2, 29, 7)\n"
        "from strategies.train import main; main.preload()\n"
        "from deepspeed.accelerator import cuda_accelerator, get_accelerator\n"
        "import sys, threading\n"
        "print(get_accelerator().device_name(), cuda_accelerator.pynvml,"
        " sys.modules['pynvml'] is pynvml)\n"
        "print(threading.active_count(), len(os.listdir('/proc/self/task')),"
        " 'torch._dynamo' in sys.modules, 'strategies.train.parallel.ddp' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert found.stdout == "cuda None True\n1 1 True True\n", found.stderr


@pytest.mark.gloo
def test_a_forked_rank_imports_nothing_more(
    warm: WarmRanks, ragged: dict[str, Any], tmp_path: Path
) -> None:
    spec = make_spec(training__steps=2, training__warmup_steps=0, parallelism__strategy="ddp")
    run = Run(tmp_path / "run")
    run.directory.path.mkdir()
    run_plan = make_run_plan(spec, ranks=2, sample_bytes=3, preflight=True, **ragged)
    run.directory.plan.write_text(run_plan.model_dump_json())
    started = warm.start("train_without_imports", ranks=2, run_dir=str(run.directory.path))
    assert started.wait() == [0, 0], warm.said()
