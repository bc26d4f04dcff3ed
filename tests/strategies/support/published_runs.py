"""Runs that others have published, each with its source, and what the planner says of them.

`python -m tests.strategies.support.published_runs` prints them. In plan/published/runs.csv a
model's layout is a strategy and its degrees, and words for what is not a degree. Rows of 8 GPUs and
more are nodes of 8. Memory is in GiB, speed in tokens per second and GPU. Published figures that
needed reading:

- llm-foundry: every row in 16 bits; gradients are accumulated in shards
- torchtitan-2024: H100 with 96 GB and 500 W; memory as reserved, with float8 where the layout has
  a context, tensor or pipeline degree, which changes memory by 0.2 GiB where both are published
- fms-fsdp: 34B and 70B recompute everything, by their quotient of HFU and MFU, 4/3
- nanogpt: 300 billion tokens on 8 GPUs in "about 4 days"
- litgpt: GB as allocated, made GiB; the longest sample has 1,304 tokens (StableLM 1,034)
- korthikanti: tables 3 and 5, seconds of an iteration; "present work" is selective checkpointing
  with sequence parallelism
- bloom, neox, opt, fsdp: TFLOP/s in which what is recomputed counts, by the formula of
  arXiv:2104.04473 (bloom: "in our fastest configuration"; opt: 2 million tokens on 124 groups of 8)
- nemo: 8 bits there and 16 here, so no speed is taken; what is recomputed is not told
- llama3: table 4, nothing recomputed (section 3.3.2); its schedule is its own, so no speed is taken
- torchtune: its samples are shorter than 512 tokens; "RTX A6000" as its card is called there
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strategies.plan.gpus import known_node
from strategies.plan.hardware import Hardware
from strategies.plan.known_models import KNOWN, as_spec
from strategies.plan.planner import Plan, plan_of, resolve
from tests.strategies.support.training_runs import make_spec

HERE = Path(__file__).parent
ROWS = HERE.parent / "plan" / "published" / "runs.csv"
GITHUB = "https://github.com"
FOUNDRY = f"{GITHUB}/mosaicml/llm-foundry/blob/8c8dd48"
TITAN = f"{GITHUB}/pytorch/torchtitan/blob"
SOURCES = {
    "llm-foundry": f"{FOUNDRY}/scripts/train/benchmarking/README.md",
    "torchtitan-2024": f"{TITAN}/31a17bf/benchmarks/llama3_h100_202412_torchtitan.md",
    "torchtitan-a100": f"{TITAN}/0413364/docs/performance.md",
    "fms-fsdp": f"{GITHUB}/foundation-model-stack/fms-fsdp/blob/main/README.md",
    "tinyllama": f"{GITHUB}/jzhang38/TinyLlama/blob/026587c/README.md",
    "nanogpt": f"{GITHUB}/karpathy/nanoGPT/blob/0110f3c/README.md",
    "torchtune": f"{GITHUB}/pytorch/torchtune/blob/v0.1.1/README.md",
    "torchtune-2024": f"{GITHUB}/pytorch/torchtune/blob/0031bfb/README.md",
    "litgpt": f"{GITHUB}/Lightning-AI/litgpt/blob/4839345/tutorials/resource-tables.md",
    "zero-offload": "https://arxiv.org/abs/2101.06840",
    "korthikanti": "https://arxiv.org/abs/2205.05198",
    "bloom": "https://arxiv.org/abs/2211.05100",
    "neox": "https://arxiv.org/abs/2204.06745",
    "opt": "https://arxiv.org/abs/2205.01068",
    "fsdp": "https://arxiv.org/abs/2304.11277",
    "nemo": f"{GITHUB}/NVIDIA/NeMo/blob/070a0bb/docs/source/performance/performance_summary.md",
    "llama3": "https://arxiv.org/abs/2407.21783",
}
Shape = dict[str, Any]


def gpt(layers: int, width: int, heads: int, *, tied: bool = True) -> Shape:
    return {
        "name": "gpt", "layers": layers, "width": width, "heads": heads, "tied_embeddings": tied
    }  # fmt: skip


OTHERS: dict[str, tuple[Shape, int]] = {  # and the vocabulary
    "mpt-125m": (gpt(12, 768, 12), 50_368),
    "mpt-350m": (gpt(24, 1024, 16), 50_368),
    "mpt-760m": (gpt(24, 1536, 12), 50_368),
    "mpt-1b": (gpt(24, 2048, 16), 50_368),
    "mpt-3b": (gpt(32, 2560, 20), 50_368),
    "mpt-7b": (gpt(32, 4096, 32), 50_368),
    "mpt-13b": (gpt(40, 5120, 40), 50_368),
    "mpt-30b": (gpt(48, 7168, 56), 50_368),
    "mpt-70b": (gpt(80, 8192, 64), 50_368),
    "stablelm-3b": (gpt(16, 4096, 32, tied=False), 50_688),
    "gpt-1.4b": (gpt(40, 1536, 16), 50_304),
    "gpt-10b": (gpt(50, 4096, 32), 50_304),
    "gpt-5b": (gpt(24, 4096, 32), 51_200),
    "gpt-20b": (gpt(44, 6144, 48), 51_200),
    "gpt-22b": (gpt(48, 6144, 64), 51_200),
    "gpt-175b": (gpt(96, 12_288, 96), 51_200),
    "gpt-530b": (gpt(105, 20_480, 128), 51_200),
    "gpt-1t": (gpt(128, 25_600, 160), 51_200),
    "neox-20b": (gpt(44, 6144, 64, tied=False), 50_432),
    "bloom-176b": (gpt(70, 14_336, 112), 250_880),
    "llama-34b": (
        {"name": "llama", "layers": 48, "width": 8192, "heads": 64, "kv_heads": 8}
        | {"ffn_width": 22_016},
        32_000,
    ),
}
DEGREES = {
    "shard": "data_parallel_shard_degree",
    "tensor": "tensor_parallel_degree",
    "pipeline": "pipeline_parallel_degree",
    "context": "context_parallel_degree",
    "stages": "pipeline_stages_per_rank",
}
ADAPTERS = {
    "lora": {"base": "none"},
    "qlora": {"base": "nf4"},
}


@dataclass(frozen=True)
class Run:
    """One published run."""

    source: str
    model: str
    gpus: int
    gpu: str
    sequence: int
    micro: int
    accumulation: int
    layout: str
    precision: str
    checkpointing: str
    compiled: bool
    tokens_per_s: float | None
    gib: float | None
    ran: bool

    @property
    def name(self) -> str:
        """What is told apart."""
        how = [self.layout, self.precision, self.checkpointing, *["compiled"] * self.compiled]
        on = f"{self.gpus} x {self.gpu}"
        return f"{self.source} {self.model} {on} {self.micro}x{self.sequence} {' '.join(how)}"

    def planned(self) -> Plan:
        nodes = -(-self.gpus // 8)
        resolved = resolve(
            make_spec(**self.changes()),
            nodes=nodes,
            ranks_per_node=self.gpus // nodes,
            hardware=node_of(self.gpu),
        )
        return plan_of(resolved)

    def changes(self) -> dict[str, Any]:
        """The fields of its spec."""
        strategy, *words = self.layout.split()
        degrees = dict(word.split("=") for word in words if "=" in word)
        model, vocabulary = shape_of(self.model)
        others = int(degrees.get("tensor", 1)) * int(degrees.get("pipeline", 1))
        others *= int(degrees.get("context", 1))
        parallelism: dict[str, Any] = {"strategy": strategy}
        parallelism |= {DEGREES[axis]: int(degree) for axis, degree in degrees.items()}
        if "stages" in degrees:
            parallelism["pipeline_schedule"] = "Interleaved1F1B"
        if "offload" in words:
            parallelism["offload_optimizer"] = "cpu"
        if "tensor" in degrees:  # as torchtitan always does
            parallelism["sequence_parallel"] = True
        adapter = next((ADAPTERS[word] for word in words if word in ADAPTERS), None)
        if adapter is not None and self.precision == "bfloat16":  # its checkpoint's type
            adapter = adapter | {"frozen_dtype": "bfloat16"}
        return {
            "model": model,
            "adapter": adapter,
            "data__tokenizer": "characters",
            "data__vocabulary_size": vocabulary,
            "data__sequence_length": self.sequence,
            "training__global_batch_size": self.gpus // others * self.micro * self.accumulation,
            "training__micro_batch_size": self.micro,
            "parallelism": parallelism,
            "precision": self.precision,
            "activation_checkpointing": self.checkpointing,
            "compile": self.compiled,
        }


def shape_of(model: str) -> tuple[Shape, int]:
    """Its spec, and its vocabulary."""
    if model in OTHERS:
        return OTHERS[model]
    shape = KNOWN[model]
    return as_spec(shape).model_dump(), shape.vocabulary


def node_of(gpu: str) -> Hardware:
    """A node of 8 GPUs; the H100 of torchtitan's tables has 96 GB."""
    if gpu == "h100-96gb":
        return known_node("h100-80gb", gpus=8).model_copy(update={"memory_gib": 95.0})
    return known_node(gpu, gpus=8)


def published_runs() -> list[Run]:
    """Every row of the file."""
    with ROWS.open(newline="") as file:
        return [run_of(row) for row in csv.DictReader(file)]


def run_of(row: dict[str, str]) -> Run:
    return Run(
        source=row["source"],
        model=row["model"],
        gpus=int(row["gpus"]),
        gpu=row["gpu"],
        sequence=int(row["sequence"]),
        micro=int(row["micro"]),
        accumulation=int(row["accumulation"]),
        layout=row["layout"],
        precision=row["precision"],
        checkpointing=row["checkpointing"],
        compiled=row["compiled"] == "yes",
        tokens_per_s=float(row["tokens_per_s"]) if row["tokens_per_s"] else None,
        gib=float(row["gib"]) if row["gib"] else None,
        ran=row["ran"] == "yes",
    )


def speed_of(run: Run, found: Plan) -> tuple[float, float, float] | None:
    """Tokens per second and GPU by the plan: the least, the expected, the most."""
    time = None if found.cost is None else found.cost.step_time
    if time is None:
        return None
    tokens = found.tokens_per_step / run.gpus
    return tokens / time.high_s, tokens / time.expected_s, tokens / time.low_s


def table() -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| run | ran | GiB | planned | of | tokens/s | planned | from | to |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for run in published_runs():
        found = run.planned()
        verdict = "yes" if run.ran else "no"
        memory = f"{run.gib or ''} | {found.needed_gib:.1f} | {found.capacity_gib:.1f}"
        least, expected, most = speed_of(run, found) or (0, 0, 0)
        speed = f"{run.tokens_per_s or ''} | {expected:.0f} | {least:.0f} | {most:.0f}"
        yield f"| {run.name} | {verdict} | {memory} | {speed} |"


if __name__ == "__main__":
    for line in table():
        print(line)  # noqa: T201
