"""Files beside model.safetensors that transformers needs to load and use the folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from strategies.plan.data.tokens import Tokenizer
from strategies.plan.hugging_face.hf_config import CONFIG, GENERATION_CONFIG, config_of
from strategies.plan.run_directory import RunPlan, write_atomically
from strategies.plan.spec import ModelName


def describe_model(folder: Path, run_plan: RunPlan, tokenizer: Tokenizer) -> None:
    """Write a llama's config.json, its checkpoint's generation config and its tokenizer's files."""
    if run_plan.spec.model.name is not ModelName.LLAMA:
        return
    origin: dict[str, Any] | None = None
    if run_plan.model_path is not None:
        checkpoint = Path(run_plan.model_path)
        origin = json.loads((checkpoint / CONFIG).read_bytes())
        if (checkpoint / GENERATION_CONFIG).exists():
            shutil.copyfile(checkpoint / GENERATION_CONFIG, folder / GENERATION_CONFIG)
    for name, content in tokenizer.files.items():
        write_atomically(folder / name, content.encode())
    config = json.dumps(config_of(run_plan.spec, origin), indent=2)
    write_atomically(folder / CONFIG, config.encode())
