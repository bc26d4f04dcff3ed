"""Context parallelism: each sample is split by tokens, which interact only in attention.

Rings and Ulysses together: USP, Fang and Zhao, arXiv:2405.07719.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from strategies.plan.shapes import tokens_per_sample
from strategies.plan.spec import TrainSpec
from strategies.train.mesh import Mesh
from strategies.train.models.attention import Attention, attend
from strategies.train.models.autocast import as_autocast_wants
from strategies.train.models.network import Network
from strategies.train.models.transformer import Transformer
from strategies.train.parallel.ring_attention import Ring, ring_attend, zigzag
from strategies.train.parallel.ulysses import trade_heads_for_tokens, trade_tokens_for_heads


def split_context(model: Network, spec: TrainSpec, mesh: Mesh) -> Tensor:
    """Make a model attend across ranks; return the positions (T/c,) of this rank's tokens.

    Inputs and labels must come at these positions, document numbers for the whole sample. Called by
    all ranks together, once the model has its weights and its rotary table.
    """
    parallel = ContextAttention(
        mesh,
        ulysses_degree=spec.parallelism.ulysses_degree,
        sequence_length=tokens_per_sample(spec.data),
    )
    attend_across = parallel.attend
    if spec.compile is True:  # the compiler cannot look into sends and receives
        attend_across = torch.compiler.disable(attend_across)  # type: ignore[no-untyped-call]
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend_across
    assert isinstance(model, Transformer)  # rules.images refuses the others
    model.rotation = model.rotation[parallel.positions]
    return parallel.positions


class ContextAttention:
    """Attention over the tokens of c ranks.

    u neighbours trade heads (Ulysses); ranks at the same place of c/u such groups form a ring. For
    c = 4, u = 2: ranks 0, 1 and 2, 3 trade heads, ranks 0, 2 and 1, 3 form rings. A group holds the
    tokens of one rank of the zigzag, each of its ranks an equal run of them.
    """

    def __init__(self, mesh: Mesh, *, ulysses_degree: int, sequence_length: int) -> None:
        self.ring, self.traders = groups(mesh, ulysses_degree)
        degree = mesh.layout.context
        self.ring_positions = zigzag(sequence_length, degree // ulysses_degree).to(mesh.device)
        self.positions = self.ring_positions.view(degree, -1)[mesh.at.context]

    def attend(
        self,
        query_BHTD: Tensor,
        key_BKTD: Tensor,
        value_BKTD: Tensor,
        documents_BT: Tensor | None,
    ) -> Tensor:
        """Replace `attention.attend`: takes T/c tokens, but the documents of all T."""
        query, key, value = map(as_autocast_wants, (query_BHTD, key_BKTD, value_BKTD))  # as sent
        if self.traders is not None:
            query, key, value = trade_tokens_for_heads(query, key, value, self.traders)
        if self.ring is None:
            output = attend(query, key, value, documents_BT)
        else:
            by_rank = None if documents_BT is None else documents_BT[:, self.ring_positions]
            output = ring_attend(query, key, value, by_rank, self.ring)
        if self.traders is not None:
            output = trade_heads_for_tokens(output, self.traders)
        return output


def groups(mesh: Mesh, ulysses_degree: int) -> tuple[Ring | None, ProcessGroup | None]:
    """Return this rank's ring, and the ranks it trades heads with; None for a group of one."""
    ranks = mesh.along("context")
    assert ranks is not None
    if ulysses_degree == 1:
        return Ring(ranks.get_group()), None
    if ulysses_degree == ranks.size():
        return None, ranks.get_group()
    both = mesh.folded("context", ulysses_degree)
    return Ring(both.get_group("outer")), both.get_group("inner")
