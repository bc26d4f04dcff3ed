"""Widths that a spec implies, and the number of parameters. Torch-free."""

from strategies.plan import image_shapes
from strategies.plan.spec import (
    AdapterSpec,
    AdapterTarget,
    DataSpec,
    FrozenBase,
    ModelName,
    ModelSpec,
    TrainSpec,
)

FFN_MULTIPLE = 32
BYTES = 256  # tokens, if each byte is one
NF4_BLOCK = 64  # numbers that share a scale (QLoRA, arXiv:2305.14314, section 3)
NF4_BLOCKS_TOGETHER = 256  # scales that share one
ADAM_8BIT_BLOCK = 256  # numbers of an average that share a scale, in bitsandbytes
ADAM_8BIT_LEAST = 4096  # numbers of the smallest tensor whose averages are kept in 8 bits


def vocabulary_size(data: DataSpec) -> int:
    """Return the number of tokens that the model distinguishes: given, or by the tokenizer.

    `rules.data` asks for the number if it does not follow from the tokenizer.
    """
    return BYTES if data.vocabulary_size is None else data.vocabulary_size


def tokens_per_sample(data: DataSpec) -> int:
    """Return the number of tokens per sample, over which the loss averages; an image counts as
    one."""
    return data.sequence_length or 1


def ffn_width(model: ModelSpec) -> int:
    """Return the inner width of the feed-forward part, given or by the model's default."""
    if model.ffn_width is not None:
        return model.ffn_width
    if model.name is ModelName.GPT:
        return 4 * model.width
    return -(-8 * model.width // (3 * FFN_MULTIPLE)) * FFN_MULTIPLE


def heads(model: ModelSpec) -> int:
    """Return the number of query heads, which every text model has."""
    return model.heads or 1


def kv_heads(model: ModelSpec) -> int:
    """Return the number of heads of keys and values."""
    return heads(model) if model.kv_heads is None else model.kv_heads


def head_width(model: ModelSpec) -> int:
    """Return the number of features of each head, given or its share of the width."""
    return model.width // heads(model) if model.head_width is None else model.head_width


def query_width(model: ModelSpec) -> int:
    """Return the number of features of all query heads: the width of what attention mixes."""
    return heads(model) * head_width(model)


def kv_width(model: ModelSpec) -> int:
    """Return the number of features of all heads of keys, and of values."""
    return kv_heads(model) * head_width(model)


def parameters_of(spec: TrainSpec) -> int:
    """Return the count of the model's numbers, adapters excluded."""
    if spec.model.name.reads_images:
        return image_shapes.count_parameters(spec.model, spec.data)
    return count_parameters(spec.model, vocabulary=vocabulary_size(spec.data))


def count_parameters(model: ModelSpec, *, vocabulary: int) -> int:
    """Return the count of a text model's numbers; tied embeddings are one matrix."""
    width, inner = model.width, ffn_width(model)
    queries, keys = query_width(model), kv_width(model)
    attention = 2 * width * queries + 2 * width * keys  # query and output, key and value
    if model.attention_bias:
        attention += queries + 2 * keys
    if model.query_key_norms:
        attention += 2 * head_width(model)
    if model.name is ModelName.GPT:
        feed_forward, norm = 2 * width * inner, 2 * width  # up and down; LayerNorm has a bias
    else:
        feed_forward, norm = 3 * width * inner, width  # gate, up and down; RMSNorm has none
    embeddings = (1 if model.tied_embeddings else 2) * vocabulary * width
    return model.layers * (attention + feed_forward + 2 * norm) + norm + embeddings


def matrices(model: ModelSpec) -> dict[AdapterTarget, tuple[int, int]]:
    """Return every matrix of a text model's layer: its output width, its input width."""
    if model.name.reads_images:
        return {}
    width, inner = model.width, ffn_width(model)
    queries, keys = query_width(model), kv_width(model)
    found = {
        AdapterTarget.QUERY: (queries, width),
        AdapterTarget.KEY: (keys, width),
        AdapterTarget.VALUE: (keys, width),
        AdapterTarget.OUTPUT: (width, queries),
        AdapterTarget.UP: (inner, width),
        AdapterTarget.DOWN: (width, inner),
    }
    if model.name is ModelName.LLAMA:
        found[AdapterTarget.GATE] = (inner, width)
    return found


def count_adapters(model: ModelSpec, adapter: AdapterSpec) -> int:
    """Return the count of all adapters' numbers: rank x (out + in) for each adapted matrix."""
    per_layer = sum(
        adapter.rank * sum(shape)
        for name, shape in matrices(model).items()
        if name in adapter.targets
    )
    return model.layers * per_layer


def count_trained(spec: TrainSpec) -> int:
    """Return the count of numbers that a run trains: all, or those of its adapters."""
    if spec.adapter is not None:
        return count_adapters(spec.model, spec.adapter)
    return parameters_of(spec)


def frozen_bytes(base: FrozenBase, shape: tuple[int, int], *, whole: int) -> int:
    """Return the bytes of a frozen matrix (out, in); `whole` are the bytes of an unquantised
    number."""
    numbers = shape[0] * shape[1]
    match base:
        case FrozenBase.NONE:
            return numbers * whole
        case FrozenBase.INT8:
            return numbers + 4 * shape[0]
        case FrozenBase.NF4:
            blocks = -(-numbers // NF4_BLOCK)
            return blocks * NF4_BLOCK // 2 + blocks + 4 * -(-blocks // NF4_BLOCKS_TOGETHER) + 4


def largest_matrix(model: ModelSpec, *, vocabulary: int) -> int:
    """Return the count of numbers in the largest matrix of a text model."""
    return model.width * max(ffn_width(model), query_width(model), vocabulary)
