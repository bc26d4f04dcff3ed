"""What a run costs: bytes per rank, by term. Pure arithmetic, torch-free.

Terms marked exact follow from the code alone; the others are estimates, with their source.
"""

from pydantic import BaseModel, ConfigDict

from strategies.catalog import BYTES_PER_NUMBER
from strategies.rules.problem import Asked
from strategies.shapes import count_parameters, ffn_width, kv_heads, vocabulary_size
from strategies.spec import ModelName, ModelSpec

GIB = 2**30
# Resident memory of one rank before the model: 338 MB under torchrun on CPU (measured).
PROCESS_GIB = {"cpu": 0.35, "cuda": 0.6}


class MemoryTerm(BaseModel):
    """One line of a plan's memory table, per rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    gib: float
    exact: bool
    source: str


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


def memory_terms(asked: Asked) -> list[MemoryTerm]:
    """Memory per rank, by term, of the rank that needs the most."""
    spec, layout = asked.spec, asked.layout
    size = BYTES_PER_NUMBER[spec.precision]
    vocabulary = vocabulary_size(spec.data)
    whole = count_parameters(spec.model, vocabulary=vocabulary)
    held = -(-whole // (layout.tensor * layout.pipeline))
    shards = layout.shard * layout.context if layout.shard > 1 else 1
    parameters = -(-held // shards)
    layers = -(-spec.model.layers // layout.pipeline)
    in_flight = min(layout.pipeline, asked.gradient_accumulation_steps)
    tokens = asked.micro_batch_size * spec.data.sequence_length // layout.context
    features = saved_features_per_token(spec.model) * size / layout.tensor
    activations = tokens * layers * in_flight * features
    process = PROCESS_GIB[asked.hardware.device] * GIB
    logits = 3 * tokens * vocabulary * size / layout.tensor  # and log-probabilities, gradient

    def term(name: str, num_bytes: float, exact: bool, source: str) -> MemoryTerm:
        return MemoryTerm(name=name, gib=num_bytes / GIB, exact=exact, source=source)

    exact = parameters == whole
    terms = [
        term("weights", parameters * size, exact, f"{parameters:,} x {size} bytes"),
        term("gradients", parameters * size, exact, "one per weight; DDP's buckets are the same"),
        term("optimizer", 2 * parameters * size, exact, "AdamW: two averages per weight"),
        term("activations", activations, False, "numbers that autograd keeps, layer by layer"),
        term("logits", logits, False, "logits, log-probabilities and their gradient"),
        term("process", process, False, "Python, torch and its libraries"),
    ]
    if shards > 1:
        layer = held / layers * size
        terms.insert(3, term("gathered", 2 * layer, False, "a layer's weights and its gradient"))
    return terms
