"""`trainyard models`."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.cli.files.fetching import (
    Lease,
    Mirror,
    Repository,
    Revision,
    Secret,
    WallTime,
    fetch_in_job,
    name_of,
)
from trainyard.cli.finding import JOBS, JobKey
from trainyard.cli.group import Lists
from trainyard.cli.output import (
    AsJson,
    print_answer,
    print_json,
    print_list,
    say,
)
from trainyard.cli.session import connect
from trainyard.cli.transfers import transfer_bar
from trainyard.errors import BadInput
from trainyard.resources.models import OTHERS
from trainyard.views import Model, ModelOrigin
from trainyard.wording import moment, reference, size

WEIGHT_PATTERNS = ("model.safetensors", "model-*-of-*.safetensors")

app = typer.Typer(cls=Lists, help="Hugging Face models to start from.")


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List your own models, and those shared with you as OWNER/NAME."""
    with connect() as client:
        models, own = list(client.models.list()), client.me().user.name
    print_list(
        models,
        ["name", "id", "architecture", "parameters", "size", "made"],
        lambda model: (
            reference(model.name, model.owner, own),
            model.id,
            model.architecture,
            f"{model.parameters:,}",
            size(model.size),
            moment(model.created_at),
        ),
        empty="No models. Upload one: trainyard models upload DIR",
        right=["parameters", "size"],
        as_json=as_json,
    )


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(help="Name or id.")], as_json: AsJson = False
) -> None:
    """Show a model, and the fields that a job needs to start from it."""
    with connect() as client:
        found = client.models.get(model)
    if as_json:
        print_json(found.raw)
        return
    say(f"{found.name} ({found.id}): {found.architecture}, {found.parameters:,} parameters.")
    say(f"Version {found.version}, {_made(found.origin)} on {moment(found.created_at)}.")
    if found.used_by:
        say(f"Used by {', '.join(found.used_by)}.")
    _say_block(found)


@app.command("upload")
def upload(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the model: config.json, *.safetensors, ...")
    ],
    name: Annotated[
        str | None, typer.Argument(help="The name that jobs use; by default the folder's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upload a folder; the server checks it while it arrives."""
    chosen = name or re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._")
    with connect() as client, transfer_bar(show=not as_json) as progress:
        model = client.models.upload(folder, chosen, progress=progress)
    if as_json:
        print_json(model.raw)
        return
    say(
        f"Uploaded {model.name} as {model.id}: {model.architecture}, "
        f"{model.parameters:,} parameters, {size(model.size)}."
    )
    _say_block(model)


@app.command("fetch")
def fetch(
    repository: Repository,
    name: Annotated[
        str | None, typer.Argument(help="The name that jobs use; by default the repository's.")
    ] = None,
    revision: Revision = "main",
    secret: Secret = None,
    hub: Mirror = None,
    wall_time: WallTime = "1h",
    lease: Lease = None,
    job: Annotated[str | None, typer.Option(help="Keep what this job has fetched already.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model from the hub in a job on a node, and keep it.

    Its files are config.json, safetensors and the tokenizer's, of one exact commit. The job may
    run where an administrator lists the hub: `trainyard admin network`.
    """
    chosen = name_of(repository, name)
    with connect() as client:
        if job is None:
            job = fetch_in_job(
                client,
                "model",
                repository,
                chosen,
                revision=revision,
                patterns=[*OTHERS, *WEIGHT_PATTERNS],
                secret=secret,
                mirror=hub,
                wall_time=wall_time,
                lease=lease,
                as_json=as_json,
            )
        model = client.models.take_fetched(job, chosen)
    if as_json:
        print_json(model.raw)
        return
    say(
        f"{model.name}, version {model.version}, {_made(model.origin)}: {model.architecture}, "
        f"{model.parameters:,} parameters, {size(model.size)}."
    )
    _say_block(model)


@app.command("promote")
def promote(
    named: JobKey,
    checkpoint: Annotated[str, typer.Argument(help="Its checkpoint, such as step-400.")],
    name: Annotated[
        str, typer.Argument(help="Name of the model; one that you have gets its next version.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make a model of a job's checkpoint; nothing is copied."""
    step = checkpoint.removeprefix("step-")
    if not step.isdigit():
        raise BadInput(f"{checkpoint}: write the checkpoint's step, such as step-400.")
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        model = client.models.promote(job_id, int(step), name)
    if as_json:
        print_json(model.raw)
        return
    say(
        f"{model.name}, version {model.version}, is {checkpoint} of {job_id}: "
        f"{model.architecture}, {model.parameters:,} parameters, {size(model.size)}."
    )
    _say_block(model)


@app.command("delete")
def delete(
    model: Annotated[str, typer.Argument(help="Name or id.")], as_json: AsJson = False
) -> None:
    """Delete one of your own models."""
    with connect() as client:
        client.models.delete(model)
    print_answer({"model": model, "deleted": True}, f"Deleted {model}.", as_json=as_json)


def _made(origin: ModelOrigin | None) -> str:
    """Return where a model came from."""
    if origin is None:
        return "uploaded"
    if origin.hub is not None:
        return f"fetched from {origin.hub} by {origin.job}"
    return f"from step {origin.step or 0:,} of {origin.job}"


def _say_block(model: Model) -> None:
    """Print the lines of a job's spec."""
    say("Start from it with these lines in the job:")
    say("")
    say("model:")
    for field, value in model.model.items():
        say(f"  {field}: {_yaml(value)}")
    say("data:")
    say("  dataset: ...")
    if model.has_tokenizer:
        say("  tokenizer: huggingface")
    say(f"  vocabulary_size: {model.vocabulary_size}")
    longest = "" if model.longest_sequence is None else f"  # at most {model.longest_sequence}"
    say(f"  sequence_length: ...{longest}")


def _yaml(value: Any) -> str:
    """Return a value as YAML reads it: a float in exponent form needs its point."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_yaml(part)}" for name, part in value.items()) + "}"
    text = str(value)
    return text.replace("e", ".0e") if re.fullmatch(r"\d+e[+-]?\d+", text) else text
