"""What a run costs: parameters, and bytes per rank by term. Pure arithmetic, torch-free.

Terms marked exact follow from the code alone; the others are estimates, with their source.
"""

from pydantic import BaseModel, ConfigDict

from strategies.catalog import BYTES_PER_NUMBER, VOCABULARY
from strategies.spec import ModelName, ModelSpec, TrainSpec

GIB = 2**30
# Resident memory of one rank before the model: 338 MB under torchrun on CPU (measured).
PROCESS_GIB = {"cpu": 0.35, "cuda": 0.6}
FFN_MULTIPLE = 32


class MemoryTerm(BaseModel):
    """One line of a plan's memory table, per rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    gib: float
    exact: bool
    source: str


def ffn_width(model: ModelSpec) -> int:
    """Inner width of the feed-forward part, given or by the model's default."""
    if model.ffn_width is not None:
        return model.ffn_width
    if model.name is ModelName.GPT:
        return 4 * model.width
    return -(-8 * model.width // (3 * FFN_MULTIPLE)) * FFN_MULTIPLE


def kv_heads(model: ModelSpec) -> int:
    """Heads of keys and values."""
    return model.heads if model.kv_heads is None else model.kv_heads


def count_parameters(model: ModelSpec, *, vocabulary: int) -> int:
    """Numbers that are trained. Input and output embeddings are separate; Linear has no bias."""
    width, inner = model.width, ffn_width(model)
    kv_width = width // model.heads * kv_heads(model)
    attention = 2 * width * width + 2 * width * kv_width  # query and output, key and value
    if model.name is ModelName.GPT:
        feed_forward, norm = 2 * width * inner, 2 * width  # up and down; LayerNorm has a bias
    else:
        feed_forward, norm = 3 * width * inner, width  # gate, up and down; RMSNorm has none
    return model.layers * (attention + feed_forward + 2 * norm) + norm + 2 * vocabulary * width


def saved_features_per_token(model: ModelSpec) -> int:
    """Numbers that one layer keeps per token for its backward pass, attention scores not stored.

    Derived from what autograd saves: residual input and its norm, query, key, value, attention
    output, second residual and its norm, then the feed-forward part.
    """
    kv_width = model.width // model.heads * kv_heads(model)
    attention = 6 * model.width + 2 * kv_width
    if model.name is ModelName.GPT:
        return attention + 2 * ffn_width(model)  # before and after GELU
    return attention + 4 * ffn_width(model)  # gate, SiLU(gate), up, their product


def memory_terms(spec: TrainSpec, *, micro_batch_size: int, device: str) -> list[MemoryTerm]:
    """Memory per rank, by term, of a rank that holds the whole model (single and ddp)."""
    size = BYTES_PER_NUMBER[spec.precision]
    vocabulary = VOCABULARY[spec.data.tokenizer]
    parameters = count_parameters(spec.model, vocabulary=vocabulary)
    tokens = micro_batch_size * spec.data.sequence_length
    activations = tokens * spec.model.layers * saved_features_per_token(spec.model) * size
    logits = 3 * tokens * vocabulary * size  # logits, log-probabilities, their gradient

    def term(name: str, num_bytes: float, exact: bool, source: str) -> MemoryTerm:
        return MemoryTerm(name=name, gib=num_bytes / GIB, exact=exact, source=source)

    return [
        term("weights", parameters * size, True, f"{parameters:,} x {size} bytes"),
        term("gradients", parameters * size, True, "one per weight; DDP's buckets are the same"),
        term("optimizer", 2 * parameters * size, True, "AdamW: two averages per weight"),
        term("activations", activations, False, "numbers that autograd keeps, layer by layer"),
        term("logits", logits, False, "logits, log-probabilities and their gradient"),
        term("process", PROCESS_GIB[device] * GIB, False, "Python, torch and its libraries"),
    ]
