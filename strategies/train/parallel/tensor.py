"""Tensor parallelism: every matrix of a layer is split over ranks; so are the embedding, the head
and the loss, along the vocabulary. Sequence parallelism: between matrices, tokens are split too.

Shoeybi et al., arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198; torch's DTensor holds the
parts, and moves the numbers of adapters and of matrices that are gathered one by one.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from strategies.train.adapters.adapters import Lora
from strategies.train.models.activated_linear import ActivatedPart, is_plain
from strategies.train.models.attention import Attention
from strategies.train.models.linear_cross_entropy import Words
from strategies.train.models.network import Network
from strategies.train.models.transformer import Head
from strategies.train.parallel.columns import Columns
from strategies.train.parallel.exchange import Exchange

READERS = (
    "attention.query",
    "attention.key",
    "attention.value",
    "feed_forward.gate",
    "feed_forward.up",
)
"""First matrices of each pair."""
ENDS = ("attention.output", "feed_forward.down")
"""Last matrix of each pair."""
NORMS_OF_HEADS = ("attention.query_norm", "attention.key_norm")
NORMS_OF_TOKENS = ("attention_norm", "feed_forward_norm")


def split_matrices(
    model: Network,
    ranks: DeviceMesh,
    *,
    sequence_parallel: bool,
    together: bool,
    gathers_again: bool,
) -> None:
    """Split a model on the meta device.

    Columns first, then rows, so that a pair of matrices costs one reduction each way. Matrices that
    read the same features are multiplied `together` (see `Columns`), or each by itself.
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    between = Shard(1) if sequence_parallel else Replicate()
    whole = Replicate()
    exchange = Exchange(ranks.get_group(), splits_tokens=sequence_parallel)
    for layer in model.layers.values():
        modules = dict(layer.named_modules())
        styles: dict[str, ParallelStyle] = {}
        if together:
            for part in (layer.attention, layer.feed_forward):
                assert isinstance(part, Attention | ActivatedPart)
                part.products = Columns(exchange, gathers_again)
            for name in READERS:
                if (matrix := modules.get(name)) is not None:
                    spread(matrix, ranks, Shard(0))
        else:
            styles |= dict.fromkeys(READERS, ColwiseParallel())
            # The features of all tokens are gathered once for all matrices that read them.
            styles["attention"] = PrepareModuleInput(
                input_layouts=(between, None, None), desired_input_layouts=(whole, None, None)
            )
            styles["feed_forward"] = PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(whole,)
            )
        for name in ENDS:
            if is_plain(matrix := modules[name]):
                spread(matrix, ranks, Shard(1))
                modules[name.partition(".")[0]].register_forward_hook(partial(sum_of, exchange))
            else:
                styles[name] = RowwiseParallel(output_layouts=between)
        norms = [*NORMS_OF_HEADS, *(NORMS_OF_TOKENS if sequence_parallel else ())]
        for name in norms:  # each rank sees other heads, or other tokens: the gradients add up
            if (norm := modules.get(name)) is not None:
                spread(norm, ranks, Replicate())
        styles = {name: style for name, style in styles.items() if name in modules}
        parallelize_module(layer, ranks, styles)
        for name, lora in modules.items():
            if isinstance(lora, Lora):
                matrix = name.replace(".lora.", ".")
                by_columns = isinstance(styles[matrix], ColwiseParallel)
                split_adapter(lora, ranks, by_columns=by_columns)
    if model.embedding is not None:
        by_words = RowwiseParallel(input_layouts=whole, output_layouts=between)
        parallelize_module(model, ranks, {"embedding": by_words})
    if sequence_parallel and model.norm is not None:
        spread(model.norm, ranks, Replicate())
    if isinstance(model.head, Head):
        split_words(model.head, ranks, exchange)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)  # torch makes the new parameters trainable


def spread(module: nn.Module, ranks: DeviceMesh, placement: Placement) -> None:
    """Give every rank its part of a module's own parameters, or a copy of them (Replicate)."""
    for name, whole in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(distribute_tensor(whole, ranks, [placement])))


def sum_of(exchange: Exchange, _: nn.Module, __: tuple[Any, ...], part_BTC: Tensor) -> Tensor:
    """Return the sum over ranks of what a part of a layer gives: a forward hook."""
    return exchange.sum(part_BTC)


def split_words(head: Head, ranks: DeviceMesh, exchange: Exchange) -> None:
    """Give every rank the part of the head for some words, and the features of all tokens."""
    words = -(-head.out_features // ranks.size())
    spread(head, ranks, Shard(0))
    head.words = Words(words * ranks.get_local_rank(), ranks.get_group())
    head.register_forward_pre_hook(partial(of_all_tokens, exchange))


def of_all_tokens(exchange: Exchange, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the features of all tokens to the head: a forward pre-hook."""
    x_BTC, *others = given
    return exchange.whole(x_BTC), *others


def split_adapter(lora: Lora, ranks: DeviceMesh, *, by_columns: bool) -> None:
    """Split an adapter like its matrix: B beside columns, A beside rows; the other stays whole."""
    whole = Replicate()
    for name, placement in (
        ("a", whole if by_columns else Shard(1)),
        ("b", Shard(0) if by_columns else whole),
    ):
        parts = distribute_tensor(getattr(lora, name), ranks, [placement])
        setattr(lora, name, nn.Parameter(parts))
