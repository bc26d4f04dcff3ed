"""`python -m benchmarks.optimizer`: an AdamW update in our Triton kernel against torch's fused one,
on a GPU, for models of 124 million and 1 billion parameters. Goal: at least 0.95 of its speed.
"""

import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.ratios import Ratio, ratio
from strategies.plan.shapes import ffn_width
from strategies.plan.spec import ModelName, ModelSpec, OptimizerName, TrainingSpec
from strategies.train.optimizers.optimizer import build_optimizer

PAIRS, UPDATES, WARM_UP = 20, 20, 5
BYTES_MOVED = 28  # per parameter: weight, gradient and two averages read, all but one written
VOCABULARY = 50_304
MODELS = {
    "124M": ModelSpec(name=ModelName.GPT, layers=12, width=768, heads=12, tied_embeddings=True),
    "1B": ModelSpec(name=ModelName.GPT, layers=20, width=2048, heads=16, tied_embeddings=True),
}


def main() -> None:
    """Measure and print a table."""
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA GPU, and the kernel runs on nothing else")
    sys.stdout.write(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n"
        "| model | torch fused / Triton (goal >= 0.95) | torch fused | Triton |\n"
        "|---|---|---|---|\n"
    )
    for name, model in MODELS.items():
        speed, torch_ms, triton_ms = measured(model)
        gigabytes = BYTES_MOVED * count(model) / 1e9
        told = (f"{ms:.3f} ms, {gigabytes / ms * 1e3:,.0f} GB/s" for ms in (torch_ms, triton_ms))
        sys.stdout.write(f"| {name} | {speed} | {' | '.join(told)} |\n")


def measured(model: ModelSpec) -> tuple[Ratio, float, float]:
    """Return torch's time / ours, pair by pair, and the median time of an update of torch's
    optimizer and of ours, in ms."""
    optimizers = [optimizer_of(model, n) for n in (OptimizerName.ADAMW, OptimizerName.ADAMW_TRITON)]
    times: list[list[float]] = [[], []]
    for _ in range(PAIRS):
        for optimizer, its in zip(optimizers, times, strict=True):
            its.append(update_ms(optimizer))
    medians = [sorted(its)[PAIRS // 2] for its in times]
    return ratio(*times), medians[0], medians[1]


def update_ms(optimizer: Optimizer) -> float:
    """Return the time of one update, in ms, in a loop in which the host may run ahead."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for _ in range(WARM_UP):
        optimizer.step()
    begin.record()
    for _ in range(UPDATES):
        optimizer.step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / UPDATES  # type: ignore[no-any-return]


def optimizer_of(model: ModelSpec, name: OptimizerName) -> Optimizer:
    """Return an optimizer over random weights, with gradients, of a model's shapes."""
    parameters = []
    for shape in shapes(model):
        parameter = nn.Parameter(torch.randn(shape, device="cuda"))
        parameter.grad = torch.randn_like(parameter)
        parameters.append(parameter)
    training = TrainingSpec(steps=1, global_batch_size=1, learning_rate=1e-4, optimizer=name)
    return build_optimizer(parameters, training)


def shapes(model: ModelSpec) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a GPT's weights, as far as they matter to an optimizer."""
    width, inner = model.width, ffn_width(model)
    yield VOCABULARY, width
    for _ in range(model.layers):
        yield from ((width, width),) * 4
        yield from ((inner, width), (width, inner))
        yield from ((width,),) * 4
    yield from ((width,),) * 2


def count(model: ModelSpec) -> int:
    """Return the number of parameters."""
    return sum(torch.Size(shape).numel() for shape in shapes(model))


if __name__ == "__main__":
    main()
