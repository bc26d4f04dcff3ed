"""Tensor parallelism: every matrix of a layer is split over ranks; so are the embedding, the head
and the loss, along the vocabulary. Sequence parallelism: between matrices, tokens are split too.

Shoeybi et al., arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198; torch's DTensor moves the
numbers.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from strategies.train.adapters.adapters import Lora
from strategies.train.models.activated_linear import ActivatedPart, Down, is_plain
from strategies.train.models.attention import Attention
from strategies.train.models.linear_cross_entropy import Words
from strategies.train.models.network import Network
from strategies.train.models.transformer import Head
from strategies.train.parallel.columns import Columns, split_columns

READERS = (
    "attention.query",
    "attention.key",
    "attention.value",
    "feed_forward.gate",
    "feed_forward.up",
)
"""First matrices of each pair."""


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
    for layer in model.layers.values():
        modules = dict(layer.named_modules())
        styles: dict[str, ParallelStyle] = {
            "attention.output": RowwiseParallel(output_layouts=between)
        }
        part = layer.feed_forward
        if together:
            columns = Columns(
                ranks.get_group(), splits_tokens=sequence_parallel, gathers_again=gathers_again
            )
            for reader in (layer.attention, part):
                assert isinstance(reader, Attention | ActivatedPart)
                reader.products = columns
            for name in READERS:
                if (matrix := modules.get(name)) is not None:
                    split_columns(matrix, ranks)
        else:
            styles |= dict.fromkeys(READERS, ColwiseParallel())
            # The features of all tokens are gathered once for all matrices that read them.
            styles["attention"] = PrepareModuleInput(
                input_layouts=(between, None, None), desired_input_layouts=(whole, None, None)
            )
            styles["feed_forward"] = PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(whole,)
            )
        if isinstance(part, ActivatedPart) and is_plain(part.down):
            split_sum(part, part.down, ranks, between)
        else:
            styles["feed_forward.down"] = RowwiseParallel(output_layouts=between)
        for name in ("attention.query_norm", "attention.key_norm"):
            styles[name] = SequenceParallel(sequence_dim=2, use_local_output=True)  # by heads
        for name in ("attention_norm", "feed_forward_norm"):
            if sequence_parallel:
                styles[name] = SequenceParallel(use_local_output=True)
        styles = {name: style for name, style in styles.items() if name in modules}
        parallelize_module(layer, ranks, styles)
        for name, lora in modules.items():
            if isinstance(lora, Lora):
                matrix = name.replace(".lora.", ".")
                by_columns = isinstance(styles[matrix], ColwiseParallel)
                split_adapter(lora, ranks, by_columns=by_columns)
    ends: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=between),
    }
    if sequence_parallel:
        ends["norm"] = SequenceParallel(use_local_output=True)
    here = {name: style for name, style in ends.items() if getattr(model, name) is not None}
    if here:
        parallelize_module(model, ranks, here)
    if isinstance(model.head, Head):
        split_words(model.head, ranks, between)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)  # torch makes the new parameters trainable


def split_sum(part: ActivatedPart, down: Down, ranks: DeviceMesh, between: Placement) -> None:
    """Give every rank some columns of a part's last matrix; the part adds up what they return."""
    down.weight = nn.Parameter(distribute_tensor(down.weight, ranks, [Shard(1)]))
    part.register_forward_hook(partial(sum_of_parts, ranks, between))


def sum_of_parts(
    ranks: DeviceMesh, between: Placement, _: nn.Module, __: tuple[Any, ...], part_BTC: Tensor
) -> Tensor:
    """Return the sum over ranks, of all tokens or of this rank's: a forward hook."""
    whole = DTensor.from_local(part_BTC, ranks, [Partial()], run_check=False)
    return whole.redistribute(placements=[between]).to_local()


def split_words(head: Head, ranks: DeviceMesh, between: Placement) -> None:
    """Give every rank the part of the head for some words, and the features of all tokens."""
    words = -(-head.out_features // ranks.size())
    head.weight = nn.Parameter(distribute_tensor(head.weight, ranks, [Shard(0)]))
    head.words = Words(words * ranks.get_local_rank(), ranks.get_group())
    head.register_forward_pre_hook(partial(of_all_tokens, ranks, between))


def of_all_tokens(
    ranks: DeviceMesh, between: Placement, _: nn.Module, given: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the features of all tokens, whose gradient is a sum over ranks: a forward pre-hook."""
    x_BTC, *others = given
    whole = DTensor.from_local(x_BTC, ranks, [between], run_check=False)
    whole = whole.redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[Partial()]), *others


def split_adapter(lora: Lora, ranks: DeviceMesh, *, by_columns: bool) -> None:
    """Split an adapter like its matrix: B beside columns, A beside rows; the other stays whole."""
    whole = Replicate()
    for name, placement in (
        ("a", whole if by_columns else Shard(1)),
        ("b", Shard(0) if by_columns else whole),
    ):
        parts = distribute_tensor(getattr(lora, name), ranks, [placement])
        setattr(lora, name, nn.Parameter(parts))
