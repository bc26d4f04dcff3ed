"""Measured speeds of this node's unknown GPUs, kept in speeds.json in the data directory."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.gpus import known_gpu
from strategies.plan.hardware import GpuSpeeds
from worker.gpus.torch_process import ask
from worker.node.attempts import read_model

ASKED = "strategies.train.trust.gpu_speeds"
PATIENCE_S = 60.0  # four products, two copies and the import take ten

log = structlog.get_logger()


class SpeedsFile(BaseModel):
    """Content of speeds.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    by_name: dict[str, GpuSpeeds] = {}


def measured_speeds(
    path: Path, uuids: Mapping[str, list[str]], *, idle: bool
) -> dict[str, GpuSpeeds]:
    """Map the name of each unknown GPU -> its speeds; `uuids` maps name -> GPUs of that name
    that are fit.

    What the file at `path` lacks is measured if the node is `idle`, and kept there.
    """
    kept = read_model(path, SpeedsFile) or SpeedsFile()
    found = {name: kept.by_name[name] for name in uuids if name in kept.by_name}
    for name in uuids:
        if not idle or not uuids[name] or name in found or known_gpu(name) is not None:
            continue
        speeds = measure(uuids[name][:2])
        if speeds is not None:
            found[name] = speeds
            log.info("gpu_measured", name=name, bfloat16=speeds.bfloat16, float32=speeds.float32)
    if found.keys() - kept.by_name.keys():
        write_atomically(path, json_bytes(SpeedsFile(by_name={**kept.by_name, **found})))
    return found


def measure(uuids: list[str]) -> GpuSpeeds | None:
    """Measure the first of these GPUs, and its link to the second, in a process of its own; None
    if that fails."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    try:
        done = ask(ASKED, environment=environment, within_s=PATIENCE_S)
        done.check_returncode()
        return TypeAdapter(GpuSpeeds).validate_json(done.stdout)
    except (subprocess.SubprocessError, ValidationError) as error:
        log.warning("gpu_not_measured", uuids=uuids, error=str(error)[:300])
        return None
