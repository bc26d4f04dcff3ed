"""The same training as other loops would run it: model, first weights, samples, optimizer, clipping
and learning rate are ours; the loop around them is theirs. Run under torchrun, or alone.

`torchrun --nproc-per-node 2 -m benchmarks.peers --peer accelerate --run-dir D` reads D/plan.json
and writes D/<peer>.json: loss and seconds of every step.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from strategies.plan.layout import Layout
from strategies.plan.learning_rate import learning_rate
from strategies.plan.run_directory import RunDirectory, RunPlan
from strategies.train.data.batches import TrainingData, open_windows
from strategies.train.engine import Batch
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum

CPU = torch.device("cpu")
Step = Callable[[list[Batch], int, float], Tensor]  # batches, valid tokens, learning rate -> loss


def optimizer_of(model: nn.Module, run_plan: RunPlan) -> AdamW:
    """Return AdamW with our weight decay: matrices decay, vectors do not."""
    training = run_plan.spec.training
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(
        groups,
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        weight_decay=training.weight_decay,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def plain(run_plan: RunPlan) -> Step:
    """Return a step of plain PyTorch on one rank, without any library."""
    model = build_model(run_plan.spec, device=CPU)
    optimizer = optimizer_of(model, run_plan)

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        set_rate(optimizer, rate)
        total = torch.zeros(())
        for batch in batches:
            loss = token_loss_sum(model(batch.inputs_BT), batch.labels_BT) / valid_tokens
            torch.autograd.backward(loss)
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), run_plan.spec.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def ddp(run_plan: RunPlan) -> Step:
    """Return a step of PyTorch's DistributedDataParallel, written by hand."""
    dist.init_process_group("gloo")
    model = build_model(run_plan.spec, device=CPU)
    replicated = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = optimizer_of(model, run_plan)

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        (batch,) = batches
        set_rate(optimizer, rate)
        loss = token_loss_sum(replicated(batch.inputs_BT), batch.labels_BT) / valid_tokens
        torch.autograd.backward(loss * dist.get_world_size())
        nn.utils.clip_grad_norm_(model.parameters(), run_plan.spec.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        return total

    return step


def fsdp2(run_plan: RunPlan) -> Step:
    """Return a step of PyTorch's fully_shard, written by hand.

    Units are those of torchtitan's Llama: the embedding, each layer, and norm and head together,
    which stay gathered between the passes.
    """
    dist.init_process_group("gloo")
    model = build_model(run_plan.spec, device=CPU)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    first, last = model.embedding, [part for part in (model.norm, model.head) if part]
    assert first is not None
    for unit in (first, *model.layers.values()):
        fully_shard(unit, mesh=mesh)
    fully_shard(last, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    optimizer = optimizer_of(model, run_plan)

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        (batch,) = batches
        set_rate(optimizer, rate)
        loss = token_loss_sum(model(batch.inputs_BT), batch.labels_BT) / valid_tokens
        torch.autograd.backward(loss * dist.get_world_size())
        nn.utils.clip_grad_norm_(model.parameters(), run_plan.spec.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        return total

    return step


def accelerate(run_plan: RunPlan) -> Step:
    """Return a step of Hugging Face Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = build_model(run_plan.spec, device=CPU)
    prepared, optimizer = accelerator.prepare(model, optimizer_of(model, run_plan))

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        (batch,) = batches
        set_rate(optimizer, rate)
        loss = token_loss_sum(prepared(batch.inputs_BT), batch.labels_BT) / valid_tokens
        accelerator.backward(loss * accelerator.num_processes)
        accelerator.clip_grad_norm_(model.parameters(), run_plan.spec.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        total: Tensor = accelerator.reduce(loss.detach(), reduction="sum")
        return total

    return step


def fabric(run_plan: RunPlan) -> Step:
    """Return a step of Lightning Fabric."""
    from lightning_fabric import Fabric

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    loop = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    loop.launch()
    model = build_model(run_plan.spec, device=CPU)
    prepared, optimizer = loop.setup(model, optimizer_of(model, run_plan))

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        (batch,) = batches
        set_rate(optimizer, rate)
        loss = token_loss_sum(prepared(batch.inputs_BT), batch.labels_BT) / valid_tokens
        loop.backward(loss * ranks)
        loop.clip_gradients(prepared, optimizer, max_norm=run_plan.spec.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        total = loop.all_reduce(loss.detach(), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    return step


def deepspeed(run_plan: RunPlan) -> Step:
    """Return a step of DeepSpeed at ZeRO stage 0: data parallel."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed as ds

    ds.init_distributed("gloo")
    model = build_model(run_plan.spec, device=CPU)
    plan = run_plan.plan
    engine, optimizer, _, _ = ds.initialize(
        model=model,
        optimizer=optimizer_of(model, run_plan),
        config={
            "train_micro_batch_size_per_gpu": plan.micro_batch_size,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": run_plan.spec.training.max_grad_norm,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        (batch,) = batches
        set_rate(optimizer, rate)
        loss = token_loss_sum(engine(batch.inputs_BT), batch.labels_BT) / valid_tokens
        engine.backward(loss * dist.get_world_size())
        engine.step()
        total = loss.detach()
        dist.all_reduce(total)
        return total

    return step


PEERS: dict[str, Callable[[RunPlan], Step]] = {
    peer.__name__: peer for peer in (plain, ddp, fsdp2, accelerate, fabric, deepspeed)
}


def train(run_plan: RunPlan, step: Step) -> Iterator[tuple[float, float]]:
    """Yield loss and seconds of each step, with the reading of samples and loss included."""
    rank = int(os.environ.get("RANK", "0"))
    layout = Layout(replicate=int(os.environ.get("WORLD_SIZE", "1")))
    windows = open_windows(run_plan, Path(run_plan.dataset_path or "").parent)
    data = TrainingData(windows, run_plan, batch_rank=layout.batch_rank(rank), device=CPU)
    samples = 0
    for number in range(1, run_plan.spec.training.steps + 1):
        began = time.perf_counter()
        batches, valid_tokens = data.step(samples)
        loss = step(batches, valid_tokens, learning_rate(run_plan.spec.training, number))
        samples += run_plan.spec.training.global_batch_size
        yield float(loss), time.perf_counter() - began


def main() -> None:
    """Run one peer once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=sorted(PEERS), required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    run_plan = RunDirectory(arguments.run_dir).read_plan()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    steps = list(train(run_plan, PEERS[arguments.peer](run_plan)))
    if os.environ.get("RANK", "0") == "0":
        (arguments.run_dir / f"{arguments.peer}.json").write_text(json.dumps(steps))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
