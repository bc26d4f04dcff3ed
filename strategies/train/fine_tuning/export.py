"""Files beside model.safetensors that transformers needs to load and use the folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from strategies.plan.data.tokens import Tokenizer
from strategies.plan.durable_files import write_atomically
from strategies.plan.hugging_face.hf_config import CONFIG, GENERATION_CONFIG, config_of
from strategies.plan.run_directory import RunPlan
from strategies.plan.spec import ModelName


def describe_model(folder: Path, run_plan: RunPlan, tokenizer: Tokenizer) -> None:
    """Write the tokenizer's files; of a llama also config.json and its checkpoint's generation
    config."""
    for name, content in tokenizer.files.items():
        write_atomically(folder / name, content.encode())
    if run_plan.spec.model.name is not ModelName.LLAMA:
        return
    origin: dict[str, Any] | None = None
    if run_plan.model_path is not None:
        checkpoint = Path(run_plan.model_path)
        origin = json.loads((checkpoint / CONFIG).read_bytes())
        if (checkpoint / GENERATION_CONFIG).exists():
            shutil.copyfile(checkpoint / GENERATION_CONFIG, folder / GENERATION_CONFIG)
    config = json.dumps(config_of(run_plan.spec, origin), indent=2)
    write_atomically(folder / CONFIG, config.encode())
