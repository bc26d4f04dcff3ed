"""Files that a finished run leaves beside its checkpoints: the weights as one file, and a sample.

They are written after result.json, by the first rank alone and without a process group: no other
rank waits for them, and a run that is cut off here is finished all the same.
"""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from strategies.plan.data.tokens import Tokenizer
from strategies.plan.data.windows import TokenWindows
from strategies.plan.durable_files import fsync_directory, json_bytes, write_atomically
from strategies.plan.run_directory import (
    ADAPTER_WEIGHTS,
    SAMPLE,
    WEIGHTS,
    Result,
    RunDirectory,
    RunPlan,
)
from strategies.plan.spec import ModelName, TrainSpec
from strategies.train.checkpoints.checkpoint import read_weights
from strategies.train.data.batches import Windows
from strategies.train.fine_tuning.export import describe_model
from strategies.train.fine_tuning.peft_files import export_adapter
from strategies.train.fine_tuning.pretrained import to_hugging_face
from strategies.train.fine_tuning.source import source_of
from strategies.train.generate import sample_text

BESIDE = '{"tokenizer": "huggingface"}'  # the tokenizer's files are too large for a header
ROOM = 1.25  # memory to sample, in sizes of the weights: the cache and the features come on top


def artifacts_of(run_plan: RunPlan, windows: Windows) -> list[str]:
    """Return the names of the files that a finished run leaves, in the order of their writing."""
    names = [WEIGHTS if run_plan.spec.adapter is None else ADAPTER_WEIGHTS]
    if isinstance(windows, TokenWindows) and run_plan.sample_bytes > 0:
        names.append(SAMPLE)
    return names


def leave_artifacts(
    run_plan: RunPlan,
    directory: RunDirectory,
    checkpoint: Path,
    windows: Windows,
    device: torch.device,
) -> None:
    """Write one artifact after another, and strike each out in result.json.

    Called by the first rank alone.
    """
    spec, missing = run_plan.spec, artifacts_of(run_plan, windows)
    weights = read_weights(checkpoint, spec)
    tokenizer = windows.tokenizer if isinstance(windows, TokenWindows) else None
    if spec.adapter is not None:
        export_adapter(directory.artifacts, weights, spec)
    else:
        export_weights(directory.artifacts / WEIGHTS, weights, spec, tokenizer)
        if tokenizer is not None:
            describe_model(directory.artifacts, run_plan, tokenizer)
    strike_out(directory, missing[0])
    if SAMPLE in missing and tokenizer is not None:
        sample = sample_text(
            weights,
            spec,
            tokenizer,
            prompt=run_plan.prompt,
            num_tokens=run_plan.sample_bytes,
            source=None if spec.adapter is None else source_of(run_plan),
            device=device_with_room(device, weights),
        )
        write_atomically(directory.artifacts / SAMPLE, sample.encode())
        strike_out(directory, SAMPLE, sample=sample)


def strike_out(directory: RunDirectory, artifact: str, *, sample: str | None = None) -> None:
    """Take an artifact that is written out of the missing ones of result.json."""
    result = Result.model_validate_json(directory.result.read_bytes())
    missing = [name for name in result.missing if name != artifact]
    changed = result.model_copy(update={"missing": missing, "sample": sample})
    write_atomically(directory.result, json_bytes(changed))


def device_with_room(device: torch.device, weights: dict[str, Tensor]) -> torch.device:
    """Return the GPU if the whole model fits beside the memory that the training still holds,
    else the CPU."""
    if device.type != "cuda":
        return device
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    needed = ROOM * sum(tensor.nbytes for tensor in weights.values())
    return device if needed < free_bytes else torch.device("cpu")


def export_weights(
    path: Path, weights: dict[str, Tensor], spec: TrainSpec, tokenizer: Tokenizer | None
) -> None:
    """Write whole tensors as safetensors, atomically.

    A llama is written in Hugging Face's form, any other model under its global names. The metadata
    describe the model (`spec`) and its tokens (`tokenizer`, for `stored_tokenizer`; the files
    of a checkpoint's tokenizer are beside it, and an image model has none).
    """
    if spec.model.name is ModelName.LLAMA:
        weights = to_hugging_face(weights, spec)
    aside = path.with_name(f"{path.name}.tmp")
    metadata = {"format": "pt", "spec": spec.model_dump_json()}
    if tokenizer is not None:
        metadata["tokenizer"] = BESIDE if tokenizer.files else tokenizer.stored()
    save_file(weights, aside, metadata=metadata)
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)
    fsync_directory(path.parent)
