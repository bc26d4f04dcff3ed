"""Rules about logits in parts and weights gathered by matrix: the layouts that support them."""

from collections.abc import Iterator

from strategies.plan.catalog import TECHNIQUES, ZERO
from strategies.plan.rules.problem import Asked, Problem, largest_divisor
from strategies.plan.shapes import tokens_per_sample
from strategies.plan.spec import Gather, TilingSpec


def tiles_are_of_text(asked: Asked) -> Iterator[Problem]:
    tiling, model = asked.spec.tiling, asked.spec.model.name
    if tiling != TilingSpec() and model.reads_images:
        yield Problem(
            code="not_supported_together",
            param="tiling",
            message=f"tiling (loss_parts {tiling.loss_parts}, gather {tiling.gather}) is for text, "
            f"and {model} has neither many logits nor large matrices; leave it out",
        )


def loss_has_parts(asked: Asked) -> Iterator[Problem]:
    parts, layout = asked.spec.tiling.loss_parts, asked.layout
    if parts == 1 or asked.strategy not in TECHNIQUES:
        return
    tokens = asked.micro_batch_size * tokens_per_sample(asked.spec.data) // layout.context
    if layout.pipeline > 1 or layout.tensor > 1:
        yield Problem(
            code="not_supported_together",
            param="tiling.loss_parts",
            message=f"loss_parts {parts} needs head and loss in one place, and pipeline degree "
            f"{layout.pipeline} with tensor degree {layout.tensor} splits them (a tensor degree "
            "divides the logits by itself); take 1",
        )
    elif TECHNIQUES[asked.strategy].engine == ZERO:
        yield Problem(
            code="not_supported_together",
            param="tiling.loss_parts",
            message=f"loss_parts {parts} cannot run inside DeepSpeed's {asked.strategy}; take "
            "strategy fsdp, which shards the same state, or 1",
        )
    if tokens % parts:
        yield Problem(
            code="not_divisible",
            param="tiling.loss_parts",
            message=f"the {tokens} tokens of a rank's micro-batch cannot be cut in {parts} equal "
            f"parts; the nearest is {largest_divisor(min(parts, tokens), tokens)}",
        )


def matrices_are_gathered(asked: Asked) -> Iterator[Problem]:
    gather, layout = asked.spec.tiling.gather, asked.layout
    if gather is Gather.LAYER or asked.strategy not in TECHNIQUES:
        return
    if layout.shard == 1 or TECHNIQUES[asked.strategy].engine == ZERO:
        yield Problem(
            code="nothing_to_gather",
            param="tiling.gather",
            message=f"gather {gather} is for weights that fsdp or hsdp shards, and strategy "
            f"{asked.strategy} with shard degree {layout.shard} does not gather them; take layer, "
            "or strategy fsdp",
        )
    if asked.spec.adapter is not None:
        yield Problem(
            code="not_supported_together",
            param="tiling.gather",
            message=f"gather {gather} is for whole matrices, and those beside adapters of rank "
            f"{asked.spec.adapter.rank} are gathered with them, by layer; take layer",
        )
