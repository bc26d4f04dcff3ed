"""The same training as other loops would run it: model, first weights, samples, optimizer, clipping
and learning rate are ours; the loop around them is theirs. Run under torchrun, or alone.

`torchrun --nproc-per-node 2 -m benchmarks.peers --peer accelerate --run-dir D` reads D/plan.json
and writes D/<peer>.json: loss and seconds of every step. The device is the plan's: a CPU, or GPUs.
"""

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from benchmarks.titan import torchtitan
from strategies.plan.layout import Layout
from strategies.plan.learning_rate import learning_rate
from strategies.plan.run_directory import RunDirectory, RunPlan
from strategies.train.data.batches import TrainingData, open_windows
from strategies.train.engine import Batch
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum
from strategies.train.models.network import Network
from strategies.train.parallel.compiling import compile_layers
from strategies.train.precision import AUTOCAST, choose_kernels, compute_in

Step = Callable[[list[Batch], int, float], Tensor]  # batches, valid tokens, learning rate -> loss


def device_of(run_plan: RunPlan) -> torch.device:
    """Return the device of this rank."""
    if run_plan.plan.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def backend_of(run_plan: RunPlan) -> str:
    return "gloo" if run_plan.plan.device == "cpu" else "nccl"


def build(run_plan: RunPlan, *, rounds_itself: bool = True) -> Network:
    """Return our model with its first weights, on its device; its layers compiled if ours are.

    In half precision it rounds itself, by autocast, unless the loop does.
    """
    spec, device = run_plan.spec, device_of(run_plan)
    model = build_model(spec, device=device)
    if spec.compile is True:
        compile_layers(model, device)
    if rounds_itself:
        compute_in(spec.precision, model, device)
    return model


def is_half(run_plan: RunPlan) -> bool:
    return run_plan.spec.precision in AUTOCAST


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
    model = build(run_plan)
    optimizer = optimizer_of(model, run_plan)

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        set_rate(optimizer, rate)
        total = torch.zeros((), device=device_of(run_plan))
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
    dist.init_process_group(backend_of(run_plan))
    model = build(run_plan)
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
    dist.init_process_group(backend_of(run_plan))
    model = build(run_plan, rounds_itself=False)
    mesh = init_device_mesh(run_plan.plan.device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if is_half(run_plan):  # inputs: the rotary table stays in float32
        policy = MixedPrecisionPolicy(
            param_dtype=AUTOCAST[run_plan.spec.precision],
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    first, last = model.embedding, [part for part in (model.norm, model.head) if part]
    assert first is not None
    for layer in model.layers.values():
        shard(layer)
    if not model.tied:
        shard(first)
        shard(last, reshard_after_forward=False)
    shard(model)
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

    on_cpu = run_plan.plan.device == "cpu"
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="bf16" if is_half(run_plan) else "no")
    model = build(run_plan, rounds_itself=False)
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
    loop = Fabric(
        accelerator=run_plan.plan.device,
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        precision="bf16-mixed" if is_half(run_plan) else "32-true",
    )
    loop.launch()
    model = build(run_plan, rounds_itself=False)
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
    os.environ["DS_ACCELERATOR"] = run_plan.plan.device
    import deepspeed as ds

    ds.init_distributed(backend_of(run_plan))
    model = build(run_plan)
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
    peer.__name__: peer for peer in (plain, ddp, fsdp2, accelerate, fabric, deepspeed, torchtitan)
}


def train(
    run_plan: RunPlan, step: Step, *, reads_to: torch.device
) -> Iterator[tuple[float, float]]:
    """Yield loss and seconds of each step, with the reading of samples and loss included.

    Samples are read to a device, if not the step itself brings them there. On a GPU the loss is
    read after the next step is issued, so that its queue never runs empty.
    """
    rank, device = int(os.environ.get("RANK", "0")), device_of(run_plan)
    layout = Layout(replicate=int(os.environ.get("WORLD_SIZE", "1")))
    windows = open_windows(run_plan, Path(run_plan.dataset_path or "").parent)
    data = TrainingData(windows, run_plan, batch_rank=layout.batch_rank(rank), device=reads_to)
    samples, unread, began = 0, deque[Tensor](), time.perf_counter()
    for number in range(1, run_plan.spec.training.steps + 1):
        batches, valid_tokens = data.step(samples)
        unread.append(step(batches, valid_tokens, learning_rate(run_plan.spec.training, number)))
        samples += run_plan.spec.training.global_batch_size
        is_last = number == run_plan.spec.training.steps
        while len(unread) > (device.type == "cuda" and not is_last):
            loss, now = float(unread.popleft()), time.perf_counter()
            yield loss, now - began
            began = now


def main() -> None:
    """Run one peer once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=sorted(PEERS), required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    run_plan = RunDirectory(arguments.run_dir).read_plan()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if run_plan.plan.device == "cuda":
        torch.cuda.set_device(device_of(run_plan))
    choose_kernels(run_plan.spec)
    peer = PEERS[arguments.peer]
    reads_to = torch.device("cpu") if peer is torchtitan else device_of(run_plan)
    steps = list(train(run_plan, peer(run_plan), reads_to=reads_to))
    if os.environ.get("RANK", "0") == "0":
        (arguments.run_dir / f"{arguments.peer}.json").write_text(json.dumps(steps))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
