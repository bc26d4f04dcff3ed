"""Rules about logits in parts and weights gathered by matrix: the layouts that support them."""

from collections.abc import Iterator

from strategies.plan.catalog import TECHNIQUES, ZERO
from strategies.plan.rules.problem import Problem, ResolvedSpec, largest_divisor
from strategies.plan.shapes import tokens_per_sample
from strategies.plan.spec import Gather, TilingSpec


def tiles_are_of_text(resolved: ResolvedSpec) -> Iterator[Problem]:
    tiling, model = resolved.spec.tiling, resolved.spec.model.name
    if tiling != TilingSpec() and model.reads_images:
        yield Problem(
            code="not_supported_together",
            param="tiling",
            message=f"tiling (loss_parts {tiling.loss_parts}, gather {tiling.gather}) is for text, "
            f"and {model} has neither many logits nor large matrices; leave it out",
        )


def loss_has_parts(resolved: ResolvedSpec) -> Iterator[Problem]:
    parts, layout = resolved.spec.tiling.loss_parts, resolved.layout
    if parts == 1 or resolved.strategy not in TECHNIQUES:
        return
    tokens = resolved.micro_batch_size * tokens_per_sample(resolved.spec.data) // layout.context
    if tokens % parts:
        yield Problem(
            code="not_divisible",
            param="tiling.loss_parts",
            message=f"the {tokens} tokens of a rank's micro-batch cannot be cut in {parts} equal "
            f"parts; the nearest is {largest_divisor(min(parts, tokens), tokens)}",
        )


def matrices_are_gathered(resolved: ResolvedSpec) -> Iterator[Problem]:
    gather, layout = resolved.spec.tiling.gather, resolved.layout
    if gather is Gather.LAYER or resolved.strategy not in TECHNIQUES:
        return
    if layout.shard == 1 or TECHNIQUES[resolved.strategy].engine == ZERO:
        yield Problem(
            code="nothing_to_gather",
            param="tiling.gather",
            message=f"gather {gather} is for weights that fsdp or hsdp shards, and strategy "
            f"{resolved.strategy} with shard degree {layout.shard} does not gather them; take "
            "layer, or strategy fsdp",
        )
    if resolved.spec.adapter is not None:
        yield Problem(
            code="not_supported_together",
            param="tiling.gather",
            message=f"gather {gather} is for whole matrices, and those beside adapters of rank "
            f"{resolved.spec.adapter.rank} are gathered with them, by layer; take layer",
        )
