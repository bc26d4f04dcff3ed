"""Training with one thing broken: what the matrix must notice.

A mutant lives in the ranks of one run. None of them raises: each is a mistake that trains on, only
not the same model.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from strategies.train.gradients import own_part
from strategies.train.models.loss import IGNORED, token_loss_sum
from strategies.train.parallel.attention_block import Sight

Change = Callable[[Any], Any]  # from what there is to what takes its place


@dataclass(frozen=True)
class Mutant:
    """One thing broken: in each place, `change` puts something else.

    `needs` is what must be in use for it to matter, in the words of layouts.words.
    """

    places: tuple[str, ...]  # "module:name", the module one of strategies
    needs: tuple[str, ...]
    change: Change

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Break it, until the context ends."""
        with ExitStack() as stack:
            for place in self.places:
                module, _, path = place.partition(":")
                owner, _, name = f"strategies.{module}:{path}".rpartition(
                    "." if "." in path else ":"
                )
                target = resolve_name(owner)
                stack.enter_context(patch.object(target, name, self.change(getattr(target, name))))
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(*places: str, needs: tuple[str, ...] = ()) -> Callable[[Change], Change]:
    """Register a change under the name of its function."""

    def register(change: Change) -> Change:
        MUTANTS[change.__name__] = Mutant(places, needs, change)
        return change

    return register


# Sums, means and when they are made


@mutant("train.parallel.ddp:Replication.__init__", needs=("ddp",))
def ddp_takes_the_mean_of_ranks(make: Any) -> Any:
    def changed(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.loss_factor = 1

    return changed


@mutant("train.parallel.fsdp:Sharding.finish", needs=("shard",))
def fsdp_takes_the_mean_of_ranks(finish: Any) -> Any:
    def changed(self: Any, model: Any) -> None:
        finish(self, model)
        self.loss_factor = 1 / self.ranks.size()

    return changed


@mutant(
    "train.parallel.ddp:Replication.micro_batch",
    needs=(
        "replicate",
        "accumulation=4",
    ),
)
def no_sync_covers_the_last_micro_batch(micro_batch: Any) -> Any:
    return lambda self, *, last: self.module.no_sync()


@mutant(
    "train.parallel.ddp:Replication.micro_batch",
    needs=(
        "replicate",
        "accumulation=4",
    ),
)
def only_the_first_micro_batch_is_synchronised(micro_batch: Any) -> Any:
    def changed(self: Any, *, last: bool) -> Any:
        self.seen = getattr(self, "seen", 0) + 1
        first = self.seen % 4 == 1
        return nullcontext() if first else self.module.no_sync()

    return changed


@mutant("train.parallel.fsdp:Sharding.micro_batch", needs=("shard",))
def sharded_gradients_are_never_reduced(micro_batch: Any) -> Any:
    return lambda self, *, last: micro_batch(self, last=False)


@mutant(
    "train.parallel.fsdp:shard_mesh",
    needs=(
        "replicate",
        "shard",
    ),
)
def hsdp_forgets_its_replicas(shard_mesh: Any) -> Any:
    return lambda ranks: ranks.along("shard", "context")


@mutant("train.mesh:Mesh.along", needs=("context",))
def context_ranks_keep_their_gradients(along: Any) -> Any:
    def changed(self: Any, *axes: str) -> DeviceMesh | None:
        return along(self, *(axis for axis in axes if axis != "context" or len(axes) == 1))  # type: ignore[no-any-return]

    return changed


@mutant("train.engines.spmd:SpmdEngine.forward_backward", needs=("accumulation=4",))
def only_the_last_micro_batch_leaves_a_gradient(forward_backward: Any) -> Any:
    def changed(self: Any, micro_batches: Any, divisor: float) -> Any:
        early = sum(self.evaluate(b, token_loss_sum) for b in micro_batches[:-1]) / divisor
        return early + forward_backward(self, micro_batches[-1:], divisor)

    return changed


@mutant("train.parallel.ddp:Replication.__init__", needs=("ddp",))
def gradients_travel_as_float32(make: Any) -> Any:
    """Seven digits survive: what only float64 can tell from rounding."""

    def send(ranks: int, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        half = (bucket.buffer() / ranks).float()
        future = dist.all_reduce(half, async_op=True).get_future()  # type: ignore[union-attr]
        return future.then(lambda done: done.value()[0].double())  # type: ignore[no-any-return]

    def changed(self: Any, model: Any, ranks: DeviceMesh, *how: Any, **named: Any) -> None:
        make(self, model, ranks, *how, **named)
        self.module.register_comm_hook(ranks.size(), send)

    return changed


# What a loss is divided by, and who counts it


@mutant("train.data.batches:TrainingData.step", needs=("batch",))
def a_loss_is_divided_by_its_own_ranks_tokens(step: Any) -> Any:
    def changed(self: Any, samples_seen: int) -> Any:
        batches, valid_tokens = step(self, samples_seen)
        own = sum(int((batch.labels_BT != IGNORED).sum()) for batch in batches)
        return batches, OnlyDivides(valid_tokens, by=own * self.order.batch_degree)

    return changed


class OnlyDivides(int):
    """A number of tokens that is honest in the metrics, and wrong where a loss is divided by it."""

    by: int

    def __new__(cls, value: int, *, by: int) -> "OnlyDivides":
        self = super().__new__(cls, value)
        self.by = by
        return self

    def __truediv__(self, other: float) -> float:
        return self.by / other


@mutant("train.engines.torch_engine:TorchEngine.counted_once", needs=("tensor",))
def every_tensor_rank_counts_the_loss(counted_once: Any) -> Any:
    return lambda self, share: share


@mutant(
    "train.engines.spmd:SpmdEngine.evaluate",
    "train.engines.pipeline:PipelineEngine.evaluate",
    needs=("tensor",),
)
def every_tensor_rank_counts_the_evaluation(evaluate: Any) -> Any:
    def changed(self: Any, batch: Any, measure: Any) -> Any:
        with patch.object(type(self), "counted_once", lambda self, share: share):
            return evaluate(self, batch, measure)

    return changed


@mutant(
    "train.engines.pipeline:PipelineEngine.make_schedule",
    needs=(
        "pipeline",
        "accumulation=4",
    ),
)
def the_pipeline_takes_the_mean_of_micro_batches(make_schedule: Any) -> Any:
    def changed(self: Any) -> Any:
        schedule = make_schedule(self)
        schedule.scale_grads = True
        return schedule

    return changed


# Clipping


@mutant("train.engines.torch_engine:clip_gradients", needs=("split",))
def every_rank_clips_by_its_own_norm(clip: Any) -> Any:
    class Alone:
        world_size = 1

        def __init__(self, ranks: Any) -> None:
            self.device = ranks.device

        def sum(self, values: Tensor) -> Tensor:
            return values

    return lambda weights, max_norm, ranks, **scale: clip(weights, max_norm, Alone(ranks), **scale)


@mutant("train.engines.spmd:weights_of", "train.engines.pipeline:weights_of", needs=("copies",))
def the_norm_counts_every_copy(weights_of: Any) -> Any:
    return lambda named, ranks: [w._replace(copies=1) for w in weights_of(named, ranks)]


@mutant("train.engines.spmd:weights_of", "train.engines.pipeline:weights_of", needs=("shard",))
def the_norm_takes_shards_for_copies(weights_of: Any) -> Any:
    def changed(named: Any, ranks: Any) -> Any:
        stage_size = ranks.layout.stage_size
        return [weight._replace(copies=stage_size) for weight in weights_of(named, ranks)]

    return changed


@mutant("train.gradients:norm_of", needs=("split",))
def the_norm_is_added_up_in_float32(norm_of: Any) -> Any:
    def in_float32(tensors: Any, device: Any) -> Any:
        return norm_of([tensor.float() for tensor in tensors], device).float().double()

    return in_float32


@mutant(
    "train.engines.pipeline:held_twice",
    needs=(
        "pipeline",
        "tied=True",
    ),
)
def the_norm_counts_a_tied_matrix_twice(held_twice: Any) -> Any:
    return lambda weight: weight


# Tied embeddings


@mutant(
    "train.engines.pipeline:add_up_both_ends",
    needs=(
        "pipeline",
        "tied=True",
    ),
)
def the_ends_of_a_pipeline_keep_their_gradients(add_up_both_ends: Any) -> Any:
    return lambda matrices, line, other_end: None


# Who sees which samples and tokens


@mutant("train.data.batches:own_numbers", needs=("batch",))
def all_ranks_train_on_the_same_samples(own_numbers: Any) -> Any:
    return lambda layout, batch_rank, *sizes: own_numbers(layout, 0, *sizes)


@mutant("train.data.batches:own_numbers", needs=("batch",))
def ranks_overlap_by_one_sample(own_numbers: Any) -> Any:
    def changed(layout: Any, batch_rank: int, *sizes: int) -> Any:
        return [own - (batch_rank > 0) for own in own_numbers(layout, batch_rank, *sizes)]

    return changed


@mutant("train.data.batches:HeldOut.__init__", needs=("batch",))
def all_ranks_evaluate_the_same_samples(make: Any) -> Any:
    def changed(self: Any, windows: Any, run_plan: Any, *, batch_rank: int, device: Any) -> None:
        make(self, windows, run_plan, batch_rank=0, device=device)

    return changed


@mutant("train.parallel.context:split_context", needs=("context",))
def context_ranks_turn_all_tokens_by_the_first_positions(split_context: Any) -> Any:
    def changed(model: Any, *arguments: Any) -> Tensor:
        table = model.rotation
        positions: Tensor = split_context(model, *arguments)
        model.rotation = table[: len(positions)]
        return positions

    return changed


# Attention over ranks


@mutant(
    "train.parallel.ring_attention:merge",
    needs=(
        "context",
        "ring",
    ),
)
def ring_attention_merges_blocks_by_their_mean(merge: Any) -> Any:
    def changed(output: Tensor, log_sum: Tensor, block: Tensor, block_log_sum: Tensor) -> None:
        if log_sum.isneginf().all():
            merge(output, log_sum, block, block_log_sum)
        else:
            output.add_(block).div_(2)
            log_sum.copy_(torch.logaddexp(log_sum, block_log_sum))

    return changed


@mutant(
    "train.parallel.ring_attention:part_of",
    needs=(
        "context",
        "ring",
    ),
)
def ring_attention_looks_into_the_future(part_of: Any) -> Any:
    return lambda rank, origin, tokens: part_of(rank, origin, tokens)._replace(causal=False)


@mutant(
    "train.parallel.ring_attention:sight_of",
    needs=(
        "context",
        "ring",
        "packed=True",
    ),
)
def ring_attention_looks_across_documents(sight_of: Any) -> Any:
    def changed(part: Any, *place: Any) -> Any:
        mask = sight_of(part, *place).mask_B1TS
        everything = torch.ones_like(mask)
        return Sight(mask_B1TS=everything.tril() if part.causal else everything)

    return changed


@mutant("train.parallel.context:trade_heads_for_tokens", needs=("ulysses",))
def heads_come_home_to_the_wrong_rank(trade_back: Any) -> Any:
    return lambda output, group: trade_back(output.roll(1, dims=1), group)


@mutant("train.parallel.ulysses:Trade.backward", needs=("ulysses",))
def traded_gradients_stay_where_they_are(backward: Any) -> Any:
    return staticmethod(lambda ctx, grad: (grad, None))


# Weights in parts


@mutant("train.init:own_region", needs=("tensor",))
def every_rank_takes_the_first_slice_of_a_weight(own_region: Any) -> Any:
    def changed(weight: Tensor) -> tuple[slice, ...]:
        return tuple(slice(0, n) for n in own_part(weight).shape)

    return changed


@mutant("train.init:first_values", needs=("parts",))
def first_weights_depend_on_the_rank(first_values: Any) -> Any:
    def changed(*of: Any, seed: int, **how: Any) -> Tensor:
        values: Tensor = first_values(*of, seed=seed + dist.get_rank(), **how)
        return values

    return changed


@mutant(
    "train.gradients:settled",
    needs=(
        "tensor",
        "sequence_parallel",
    ),
)
def gradients_of_norms_are_left_partial(settled: Any) -> Any:
    def changed(parameter: Any) -> Any:
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or any(p.is_shard() for p in parameter.placements):
            return settled(parameter)
        parameter.grad = DTensor.from_local(
            gradient.to_local(), parameter.device_mesh, parameter.placements, run_check=False
        )
        return parameter.grad

    return changed


# The update


@mutant("train.engines.torch_engine:set_learning_rate")
def the_learning_rate_is_that_of_the_step_before(set_rate: Any) -> Any:
    rates = [0.0]

    def changed(optimizer: Any, rate: float) -> None:
        rates.append(rate)
        set_rate(optimizer, rates[-2])

    return changed


# ZeRO


@mutant("train.engines.zero:ZeroEngine.forward_backward", needs=("zero",))
def zero_takes_the_mean_of_ranks(forward_backward: Any) -> Any:
    def changed(self: Any, micro_batches: Any, divisor: float) -> Any:
        ranks = dist.get_world_size()
        return forward_backward(self, micro_batches, divisor * ranks) * ranks

    return changed


@mutant("train.engines.zero:ZeroEngine.forward_backward", needs=("zero", "accumulation=4"))
def zero_updates_by_the_last_micro_batch(forward_backward: Any) -> Any:
    def changed(self: Any, micro_batches: Any, divisor: float) -> Any:
        early = sum(self.evaluate(b, token_loss_sum) for b in micro_batches[:-1]) / divisor
        return early + forward_backward(self, micro_batches[-1:], divisor)

    return changed
