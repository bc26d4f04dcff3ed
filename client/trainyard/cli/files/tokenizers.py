"""`trainyard tokenizers`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard import bpe_program
from trainyard.cli.finding import JOBS, JobKey
from trainyard.cli.group import Lists
from trainyard.cli.jobs.following import follow_job
from trainyard.cli.output import AsJson, note, print_answer, print_json, print_list, say
from trainyard.cli.session import connect
from trainyard.packing import pack_files
from trainyard.views import Tokenizer
from trainyard.wording import moment, reference, size

app = typer.Typer(cls=Lists, help="Your own tokenizers, to pretrain with.")
Name = Annotated[str, typer.Argument(help="Name that jobs use.")]


@app.command("list")
def list_tokenizers(as_json: AsJson = False) -> None:
    """List your own tokenizers, and those shared with you as OWNER/NAME."""
    with connect() as client:
        tokenizers, own = list(client.tokenizers.list()), client.me().user.name
    print_list(
        tokenizers,
        ["name", "id", "tokens", "size", "from", "made"],
        lambda tokenizer: (
            reference(tokenizer.name, tokenizer.owner, own),
            tokenizer.id,
            f"{tokenizer.vocabulary_size:,}",
            size(tokenizer.size),
            tokenizer.job or "upload",
            moment(tokenizer.created_at),
        ),
        empty="No tokenizers. `trainyard tokenizers train` makes one of a dataset.",
        right=["tokens", "size"],
        as_json=as_json,
    )


@app.command("train")
def train(
    name: Name,
    dataset: Annotated[str, typer.Option(help="Dataset of yours to train on.")],
    vocab_size: Annotated[int, typer.Option(min=257, max=1_000_000, help="Number of tokens.")],
    wall_time: Annotated[str, typer.Option(help="Maximum running time.")] = "1h",
    lease: Annotated[str | None, typer.Option(help="Booked lease to run in.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a byte-level BPE tokenizer in a job on a node, and keep it.

    If you stop watching, `trainyard tokenizers promote JOB NAME` keeps it afterwards.
    """
    source = Path(bpe_program.__file__)
    with connect() as client:
        code = client.code.upload(pack_files(source.parent, include=[source.name]))
        spec: dict[str, Any] = {
            "name": f"tokenizer-{name}"[:63],
            "script": {
                "entry": source.name,
                "code": code.sha256,
                "launcher": "python",
                "arguments": ["/job/inputs/text", str(vocab_size)],
            },
            "inputs": [{"dataset": dataset, "name": "text"}],
            "resources": {"ranks_per_node": 1, "wall_time": wall_time},
        }
        if lease is not None:
            spec["lease"] = lease
        job = client.jobs.create(spec)
        later = f"trainyard tokenizers promote {job.id} {name}"
        note(f"Training it in {job.id}. If you stop watching, keep it later: {later}")
        follow_job(client, job.id, as_json=as_json)
        _tell(client.tokenizers.promote(job.id, name), as_json=as_json)


@app.command("upload")
def upload(
    path: Annotated[Path, typer.Argument(help="A tokenizer.json, or a folder that has one.")],
    name: Name,
    as_json: AsJson = False,
) -> None:
    """Upload a tokenizer of the tokenizers library."""
    with connect() as client:
        _tell(client.tokenizers.upload(path, name), as_json=as_json)


@app.command("promote")
def promote(
    named: JobKey,
    name: Name,
    as_json: AsJson = False,
) -> None:
    """Keep the tokenizer.json among a job's artifacts."""
    with connect() as client:
        job_id = JOBS.id_of(client, named)
        _tell(client.tokenizers.promote(job_id, name), as_json=as_json)


@app.command("delete")
def delete(
    tokenizer: Annotated[str, typer.Argument(help="Name or id.")], as_json: AsJson = False
) -> None:
    """Delete one of your own tokenizers."""
    with connect() as client:
        client.tokenizers.delete(tokenizer)
    print_answer(
        {"tokenizer": tokenizer, "deleted": True}, f"Deleted {tokenizer}.", as_json=as_json
    )


def _tell(tokenizer: Tokenizer, *, as_json: bool) -> None:
    if as_json:
        print_json(tokenizer.raw)
        return
    say(f"{tokenizer.name} ({tokenizer.id}) has {tokenizer.vocabulary_size:,} tokens.")
    data = f"{{dataset: ..., tokenizer: huggingface, tokenizer_name: {tokenizer.name}}}"
    say(f"Pretrain with `data: {data}` in the job; the vocabulary's size follows.")
