"""A small network by DeepSpeed's ZeRO: each rank saves its own part of the optimizer's state.

torchrun --nproc-per-node 2 deepspeed_digits.py --steps 100

`save_checkpoint` writes a file of every rank, on every node. On Trainyard the parts of all nodes
become one checkpoint, and all of them are in $TRAINYARD_RESUME on each node after a stop.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from trainyard.run import log

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.device_count() else "cpu")

import deepspeed

# DeepSpeed is told that it can compile nothing: on a CPU it would build collectives of its own.
if not torch.cuda.device_count():
    deepspeed.ops.__compatible_ops__ = {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    arguments = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.device_count() else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=model,
        config=config,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dist_init_required=False,
    )

    # Go on where an earlier attempt was stopped.
    before = Path(os.environ.get("TRAINYARD_RESUME", "nowhere"), "zero")
    first = 1
    if before.exists():
        engine.load_checkpoint(str(before))
        first = engine.global_steps + 1
        print(f"rank {rank} goes on at step {first}", flush=True)

    # Ranks must stop at the same step, so they agree in every step.
    asked_to_stop = False

    def stop(number, frame):
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    for step in range(first, arguments.steps + 1):
        draw = torch.Generator().manual_seed(step)  # the same batch on all ranks
        x = torch.randn(32, 16, generator=draw).to(engine.device)
        y = x[:, :4].argmax(dim=1)
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        told = torch.tensor([float(asked_to_stop)], device=engine.device)
        dist.all_reduce(told)
        log(step=step, loss=loss.item())
        if told.item() > 0 or step == arguments.steps:
            engine.save_checkpoint(str(Path(os.environ.get("TRAINYARD_OUTPUT", "."), "zero")))
            print(f"rank {rank} has saved step {step}", flush=True)
            break
        time.sleep(arguments.pause)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
