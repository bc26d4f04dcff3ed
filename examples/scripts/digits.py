"""Recognise handwritten digits: the first exercise, on one rank or on several.

    python digits.py                                     # here
    torchrun --nproc-per-node 2 digits.py                # here, data parallel
    trainyard submit --script digits.py --ranks 2 --wall-time 10min -- --steps 200

The 1,797 images of 8 x 8 pixels come with scikit-learn, so nothing is downloaded. Every rank takes
its share of each batch, and DDP averages the gradients: any number of ranks has the same loss.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from trainyard.run import log
except ImportError:  # not a job, and no client installed

    def log(step, **values):
        print(step, values)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    # 1. Who am I, and where do I compute?
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    has_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if has_gpu else "cpu")
    if ranks > 1:
        dist.init_process_group("nccl" if has_gpu else "gloo")

    # 2. Data and model, the same on every rank.
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(labels, device=device)
    train, test = slice(0, 1500), slice(1500, None)
    torch.manual_seed(arguments.seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)

    # 3. Go on where an earlier attempt was stopped.
    output = Path(os.environ.get("TRAINYARD_OUTPUT", "."))
    before = Path(os.environ.get("TRAINYARD_RESUME", "."), "checkpoint.pt")
    first = 1
    if "TRAINYARD_RESUME" in os.environ and before.exists():
        state = torch.load(before, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
        print(f"goes on at step {first}")
    parallel = DistributedDataParallel(model) if ranks > 1 else model

    # 4. Be told when to stop. Ranks must stop at the same step, so they agree in every step.
    asked_to_stop = False

    def stop(number, frame):
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGTERM, stop)

    for step in range(first, arguments.steps + 1):
        # 5. One batch for all ranks, of which each takes every `ranks`-th image.
        chosen = torch.Generator().manual_seed(arguments.seed * 1_000_003 + step)
        batch = torch.randperm(1500, generator=chosen)[: arguments.batch_size][rank::ranks]
        loss = nn.functional.cross_entropy(parallel(images[train][batch]), labels[train][batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # 6. The mean over all ranks, and whether anybody was asked to stop.
        told = torch.tensor([loss.detach().item(), float(asked_to_stop)], dtype=torch.float64)
        if ranks > 1:
            told = told.to(device)
            dist.all_reduce(told)
        log(step=step, loss=told[0].item() / ranks)
        leaves = told[1].item() > 0 or step == arguments.steps
        if rank == 0 and (leaves or step % 100 == 0):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, output / "checkpoint.new")
            os.replace(output / "checkpoint.new", output / "checkpoint.pt")
        if leaves:
            break

    # 7. How good is it?
    if rank == 0:
        with torch.no_grad():
            right = (model(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
        log(step=step, accuracy=right)
        print(f"after {step} steps {right:.1%} of the test images are recognised")
    if ranks > 1:
        dist.barrier()  # DDP keeps gloo's threads: they let go of the last sum before Python ends
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
