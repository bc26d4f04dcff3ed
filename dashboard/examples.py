"""The job specs of `examples/`, to start a new job from."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import yaml

from dashboard.formats import counted
from trainyard.views import Node

# Beside this package in a checkout, in a wheel and in the image.
EXAMPLES = Path(__file__).parent.parent / "examples"
FIRST = "gpt-ddp"
GROUPS: dict[str, tuple[str, ...]] = {
    "To begin with": (FIRST, "shakespeare-char", "digits-mlp", "digits-cnn", "mnist-cnn"),
    "Data parallel": (
        *("gpt-fsdp", "gpt-hsdp", "gpt-zero1", "gpt-zero2", "gpt-zero3"),
        *("gpt-zero3-offload", "gpt-zero3-nvme", "gpt-two-nodes", "gpt-local-sgd"),
        *("gpt-delayed", "gpt-compressed"),
    ),
    "Tensor and context parallel": (
        *("gpt-tensor", "gpt-context", "gpt-ulysses", "gpt-usp", "gpt-fsdp-tensor"),
        "gpt-fsdp-tensor-context",
    ),
    "Pipelines": (
        *("gpt-pipeline", "gpt-naive", "gpt-gpipe", "gpt-interleaved", "gpt-zero-bubble"),
        *("gpt-interleaved-zero-bubble", "gpt-3d"),
    ),
    "Precision and memory": (
        *("gpt-bf16", "gpt-fp16", "gpt-checkpointing", "gpt-tiled", "gpt-8bit-adam"),
        *("gpt-long", "gpt-packed", "gpt-compiled", "gpt-triton"),
    ),
    "Fine-tuning": ("llama-fine-tuning", "gpt-lora", "gpt-qlora", "gpt-int8", "llama-gptq"),
}
OTHERS = "Others"


def read_examples() -> dict[str, str]:
    """Name and YAML text of each; `gpt-ddp`, which runs anywhere, comes first."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(EXAMPLES.glob("*.yaml"))}
    return {FIRST: texts.pop(FIRST), **texts}


def policy_examples() -> dict[str, str]:
    """Name and text of each booking policy of `examples/policies`."""
    found = sorted((EXAMPLES / "policies").glob("*.yaml"))
    return {path.stem: path.read_text("utf-8") for path in found}


def grouped_examples() -> dict[str, list[tuple[str, str]]]:
    """Return (name, what it teaches) of each example by group; those of no group come last."""
    texts = read_examples()
    grouped = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, OTHERS: tuple(name for name in texts if name not in grouped)}
    return {
        group: [(name, lesson_of(texts[name])) for name in names if name in texts]
        for group, names in groups.items()
    }


def lacking(nodes: Iterable[Node]) -> dict[str, str]:
    """Map each example that no class of these nodes can run to what it needs: `needs 8 slots of a
    node`."""
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        sizes.setdefault(node.node_class, []).append(node.hardware.slots)
    found = {}
    for name, (num_nodes, ranks) in _demands().items():
        if any(len(slots) >= num_nodes and min(slots) >= ranks for slots in sizes.values()):
            continue
        words = f"needs {counted(ranks, 'slot')} of a node"
        found[name] = words if num_nodes == 1 else f"{words}, on {num_nodes} nodes"
    return found


@lru_cache(maxsize=1)  # the files are part of the release
def _demands() -> dict[str, tuple[int, int]]:
    """Nodes of each example, and the slots that it needs on each of them."""
    found = {}
    for name, text in read_examples().items():
        resources = yaml.load(text, Loader=yaml.CSafeLoader).get("resources", {})
        ranks = resources.get("ranks_per_node", 1)
        found[name] = (resources.get("nodes", 1), ranks if isinstance(ranks, int) else 1)
    return found


def lesson_of(text: str) -> str:
    """Return the comment at the head of an example; empty if it has none."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    return " ".join(lines)
