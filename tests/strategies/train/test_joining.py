"""How ranks join on GPUs: the settings that leave the naming of a lost peer to the deadline."""

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.train import mesh
from tests.strategies.support.training_runs import make_spec

A100X2 = Hardware(
    class_name="a100x2", device="cuda", slots=2, memory_gib=39.6, model="NVIDIA A100-SXM4-40GB"
)


def test_on_gpus_neither_watchdog_ends_a_rank_before_the_deadline_has_named_its_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda kind, **how: joined.append((kind, how)))
    monkeypatch.setattr(mesh.Mesh, "__post_init__", lambda _: None, raising=False)
    monkeypatch.setattr(mesh.Mesh, "set_timeout", lambda *_: None)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in (*mesh.NCCL_ENVIRONMENT, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"):
        monkeypatch.setenv(name, "")  # put back as it was at the end
        monkeypatch.delenv(name)

    spec = make_spec(parallelism__strategy="ddp", precision="bfloat16")
    found = mesh.join(plan(spec, nodes=1, ranks_per_node=2, hardware=A100X2), timeout_s=300)

    assert found.device == torch.device("cuda", 1)
    [(kind, how)] = joined
    assert (kind, how["device_id"]) == ("nccl", torch.device("cuda", 1))
    assert how["timeout"] > timedelta(seconds=300)
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["TORCH_NCCL_RETHROW_CUDA_ERRORS"] == "0"
    assert float(os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) > how["timeout"].total_seconds()
