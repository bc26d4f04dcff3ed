"""Checkpoints of the Hugging Face hub, downloaded once per node into huggingface_hub's own
cache."""

from pathlib import Path

from strategies.plan.hugging_face.hf_config import OTHER_FILES
from strategies.plan.run_directory import BadCheckpoint, RunPlan
from strategies.plan.spec import HUB

WANTED = ("*.safetensors", *OTHER_FILES)


def with_model(run_plan: RunPlan) -> RunPlan:
    """Return the plan with the local folder of the hub model that it names, if it names one.

    Every rank calls this; one of a node downloads while the others wait for its lock.
    """
    checkpoint = run_plan.spec.model.checkpoint
    if checkpoint is None or run_plan.model_path is not None or not checkpoint.startswith(HUB):
        return run_plan
    return run_plan.model_copy(update={"model_path": str(fetch(checkpoint))})


def fetch(checkpoint: str) -> Path:
    """Return the folder of `hub:owner/name@revision`, downloading it unless it is in the cache.

    Raises BadCheckpoint, with advice, if the download fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    repository, _, revision = checkpoint.removeprefix(HUB).partition("@")
    try:
        found = snapshot_download(repository, revision=revision or None, allow_patterns=[*WANTED])
    except (OSError, ValueError, HTTPError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise BadCheckpoint(
            f"{checkpoint} cannot be fetched from the Hugging Face hub ({first_line}). If the "
            f"node has no internet, fetch it elsewhere (hf download {repository}), upload its "
            "folder (trainyard models upload DIR), and name that. Gated models need HF_TOKEN set "
            "on the node"
        ) from error
    return Path(found)
