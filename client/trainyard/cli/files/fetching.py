"""Fetching of a model or a dataset from the hub: a job on a node that may reach it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from trainyard import hub_program
from trainyard.cli.jobs.following import follow_job
from trainyard.cli.output import note
from trainyard.client import Trainyard
from trainyard.errors import BadInput
from trainyard.packing import pack_files

REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$", re.ASCII)
HUB = "huggingface"  # group of hosts that a job asks for

Repository = Annotated[
    str, typer.Argument(metavar="OWNER/NAME", help="Name of the repository on the hub.")
]
Revision = Annotated[str, typer.Option(help="Branch, tag or commit; kept as the exact commit.")]
Secret = Annotated[
    str | None,
    typer.Option(help="Secret of yours with a token, for gated repositories: HF_TOKEN."),
]
Mirror = Annotated[
    str | None,
    typer.Option(
        "--hub",
        envvar="TRAINYARD_HUB",
        metavar="URL",
        help="Mirror of the hub, such as https://hub.lab.example. `trainyard admin network` must "
        "list its host.",
    ),
]
WallTime = Annotated[str, typer.Option(help="Maximum running time.")]
Lease = Annotated[str | None, typer.Option(help="Booked lease to run in.")]


def name_of(repository: str, name: str | None) -> str:
    """Return the name that jobs will use, by default the repository's. Raises BadInput."""
    if not REPOSITORY.match(repository):
        raise BadInput(f"{repository!r}: write the repository as owner/name.")
    return name or repository.rpartition("/")[2].strip("-._")


def mirror_host(address: str) -> str:
    """Return the host of a mirror, as a job asks for it. Raises BadInput."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.username is not None:
        raise BadInput(f"--hub {address!r}: write its address as https://hub.lab.example.")
    return parts.hostname if port in (None, 443) else f"{parts.hostname}:{port}"


def fetch_in_job(
    client: Trainyard,
    kind: str,
    repository: str,
    name: str,
    *,
    revision: str,
    patterns: Sequence[str],
    secret: str | None,
    mirror: str | None,
    wall_time: str,
    lease: str | None,
    as_json: bool,
) -> str:
    """Submit the job that downloads the files, follow it to its end, and return its id.

    Exits if the job fails. The API refuses it where the hub may not be reached.
    """
    network = [HUB if mirror is None else mirror_host(mirror)]
    source = Path(hub_program.__file__)
    code = client.code.upload(pack_files(source.parent, include=[source.name]))
    script: dict[str, Any] = {
        "entry": source.name,
        "code": code.sha256,
        "launcher": "python",
        "arguments": [kind, repository, revision, *patterns],
    }
    if secret is not None:
        script["secrets"] = [secret]
    if mirror is not None:
        script["environment"] = {"HF_ENDPOINT": mirror.rstrip("/")}
    spec: dict[str, Any] = {
        "name": f"fetch-{name}"[:63],
        "script": script,
        "network": network,
        "resources": {"ranks_per_node": 1, "wall_time": wall_time},
    }
    if lease is not None:
        spec["lease"] = lease
    job = client.jobs.create(spec)
    later = f"trainyard {kind}s fetch {repository} {name} --job {job.id}"
    note(f"Fetching it in {job.id}. If you stop watching, keep it later: {later}")
    follow_job(client, job.id, as_json=as_json)
    return job.id
