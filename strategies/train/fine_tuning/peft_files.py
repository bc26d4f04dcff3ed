"""Trained adapters as files that peft reads: adapter_config.json, adapter_model.safetensors."""

import json
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from strategies.plan.durable_files import write_atomically
from strategies.plan.hugging_face.hf_names import MODULES, hf_module, is_rotated
from strategies.plan.run_directory import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from strategies.plan.shapes import head_width
from strategies.plan.spec import AdapterTarget, ModelName, TrainSpec
from strategies.train.fine_tuning.pretrained import halves

PREFIX = "base_model.model."  # peft's name of the model that it wraps
FACTORS = {"a": "lora_A.weight", "b": "lora_B.weight"}
LAST = {ours.rpartition(".")[2]: theirs.rpartition(".")[2] for ours, theirs in MODULES.items()}
TARGETS = {target: LAST[target] for target in AdapterTarget}  # query is q_proj, and so on


def export_adapter(folder: Path, weights: dict[str, Tensor], spec: TrainSpec) -> None:
    """Write both files, each atomically; `weights` are those of the adapters, by global name."""
    renamed = {peft_name(name, spec): in_order(name, weights[name], spec) for name in weights}
    write_atomically(folder / ADAPTER_WEIGHTS, save(renamed, metadata={"format": "pt"}))
    config = json.dumps(adapter_config(spec), indent=2) + "\n"
    write_atomically(folder / ADAPTER_CONFIG, config.encode())


def peft_name(name: str, spec: TrainSpec) -> str:
    """Return peft's name of a weight such as `layers.0.attention.lora.query.a`."""
    matrix, factor = split_name(name)
    return f"{PREFIX}{module_name(matrix, spec)}.{FACTORS[factor]}"


def split_name(name: str) -> tuple[str, str]:
    """Return the matrix that an adapter is beside, and `a` or `b`."""
    matrix, _, factor = name.replace(".lora.", ".").rpartition(".")
    return matrix, factor


def module_name(matrix: str, spec: TrainSpec) -> str:
    """Return a matrix's name in the model that peft wraps; for llama that of transformers."""
    return hf_module(matrix) if spec.model.name is ModelName.LLAMA else matrix


def in_order(name: str, tensor: Tensor, spec: TrainSpec) -> Tensor:
    """Return a factor with its rows in the order of the model that peft wraps."""
    matrix, factor = split_name(name)
    is_llama = spec.model.name is ModelName.LLAMA
    if is_llama and factor == "b" and is_rotated(f"{matrix}.weight"):
        tensor = halves(tensor, head_width(spec.model))
    return tensor.contiguous()


def adapter_config(spec: TrainSpec) -> dict[str, object]:
    """Return the content of adapter_config.json."""
    adapter = spec.adapter
    assert adapter is not None
    is_llama = spec.model.name is ModelName.LLAMA
    base, _, revision = (spec.model.checkpoint or "").removeprefix("hub:").partition("@")
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if is_llama else None,
        "base_model_name_or_path": base or None,
        "revision": revision or None,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": [TARGETS[name] if is_llama else name for name in adapter.targets],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
