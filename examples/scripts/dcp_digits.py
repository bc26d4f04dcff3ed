"""A small network on sharded weights: each rank saves its own part of a checkpoint.

torchrun --nproc-per-node 2 dcp_digits.py --steps 100

The weights are split by FSDP2 (`fully_shard`) and saved by torch.distributed.checkpoint: a file of
every rank, on every node. On Trainyard the parts of all nodes become one checkpoint, and all of
them are in $TRAINYARD_RESUME on each node after a stop.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from trainyard.run import log


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    # 1. The same numbers everywhere; then each rank keeps its part of them.
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    mesh = torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    # 2. Go on where an earlier attempt was stopped.
    output = Path(os.environ.get("TRAINYARD_OUTPUT", "."), "sharded")
    before = Path(os.environ.get("TRAINYARD_RESUME", "nowhere"), "sharded")
    first = 1
    if before.exists():
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": torch.zeros(1)}
        dcp.load(state, checkpoint_id=before)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        first = int(state["step"]) + 1
        print(f"rank {rank} goes on at step {first}", flush=True)

    # 3. Ranks must stop at the same step, so they agree in every step.
    asked_to_stop = False

    def stop(number, frame):
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    for step in range(first, arguments.steps + 1):
        draw = torch.Generator().manual_seed(step)  # the same batch on all ranks
        x = torch.randn(32, 16, generator=draw)
        y = x[:, :4].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told = torch.tensor([float(asked_to_stop)])
        dist.all_reduce(told)
        log(step=step, loss=loss.item())
        if told.item() > 0 or step == arguments.steps:
            # 4. Every rank writes its own file.
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": torch.tensor([float(step)])}
            dcp.save(state, checkpoint_id=output)
            print(f"rank {rank} has saved step {step}", flush=True)
            break
        time.sleep(arguments.pause)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
