"""Fields of a job's form that the chosen model, data and strategy do not use. Pure.

A field says itself for what it is: its description begins with `Text only`, `llama only`, `zero1 to
zero3:` and the like. Degrees are used by the strategies that support their axis.
"""

import re
from collections.abc import Mapping

from dashboard.spec_form import Field

MODELS = {"Text": ("gpt", "llama"), "Images": ("mlp", "cnn")}
DEGREES = {
    "data_parallel_replicate_degree": "replicate",
    "data_parallel_shard_degree": "shard",
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "pipeline_schedule": "pipeline",
    "pipeline_stages_per_rank": "pipeline",
    "context_parallel_degree": "context",
}
ALL = ("pipeline", "replicate", "shard", "context", "tensor")
AXES: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "ddp": ("pipeline", "replicate", "context", "tensor"),
    "fsdp": ("pipeline", "shard", "context", "tensor"),
    "hsdp": ALL,
    "zero1": ("shard",),
    "zero2": ("shard",),
    "zero3": ("shard",),
    "tensor": ALL,
    "pipeline": ALL,
    "naive": ("pipeline",),
    "context": ALL,
    "local_sgd": ("replicate",),
}
"""Axes that each strategy supports; a strategy that is not listed uses every field."""
TOKENIZERS = ("bytes", "characters", "huggingface")
ONLY = re.compile(r"^([\w, ]+?)(?: only\b|:)")
RANGE = re.compile(r"\bzero([1-3]) to zero([1-3])\b")


def unused(field: Field, values: Mapping[str, str]) -> bool:
    """Return True if nothing reads a field with these values of the others; never of a field that
    has a value or must have one."""
    if field.is_required or values.get(field.path):
        return False
    if (axis := DEGREES.get(field.path.rpartition(".")[2])) is not None:
        return axis not in AXES.get(values.get("parallelism.strategy", ""), ALL)
    found = ONLY.match(field.hint)
    if found is None:
        return False
    words = _words(found[1])
    for path, known in (
        ("model.name", [name for names in MODELS.values() for name in names]),
        ("parallelism.strategy", list(AXES)),
        ("data.tokenizer", list(TOKENIZERS)),
    ):
        named = [word for word in words if word in known]
        chosen = values.get(path, "")
        if named and len(named) == len(words):
            return chosen in known and chosen not in named
    return False


def _words(condition: str) -> list[str]:
    spelled = RANGE.sub(
        lambda found: " ".join(f"zero{stage}" for stage in range(int(found[1]), int(found[2]) + 1)),
        condition,
    )
    words: list[str] = []
    for word in re.findall(r"\w+", spelled):
        if word != "and":
            words += MODELS.get(word, (word,))
    return words
