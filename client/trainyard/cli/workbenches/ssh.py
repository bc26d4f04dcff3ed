"""`trainyard ssh`: stock SSH clients into a workbench, through the connection of its node.

One key for all workbenches is kept beside the settings; each workbench lets it in when it is named
through the API, and forgets it with its sandbox. The host key comes by the same way, so ssh asks
nothing.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from trainyard import Trainyard
from trainyard.cli.output import note, say
from trainyard.cli.session import connect
from trainyard.errors import BadInput, UnexpectedAnswer
from trainyard.resources.workbenches import Pipe
from trainyard.transport.config import config_path
from trainyard.views import Workbench

SUFFIX = ".trainyard"
HOST_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")
CONFIG = """# Written by `trainyard ssh --setup`; included from ~/.ssh/config.
Host *{suffix}
    User user
    IdentityFile "{folder}/id"
    IdentitiesOnly yes
    UserKnownHostsFile "{folder}/known/%n"
    StrictHostKeyChecking yes
    UpdateHostKeys no
    ForwardAgent no
    ProxyCommand {program} workbench stream %n
"""


def ssh(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[LEASE|ID]", help="Lease or id of a running workbench."),
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Default: a shell.")
    ] = None,
    setup: Annotated[
        bool, typer.Option("--setup", help="Prepare ~/.ssh/config for ssh, scp, rsync and editors.")
    ] = False,
) -> None:
    """Open a shell in a workbench with your own ssh.

    After --setup the names ID.trainyard and LEASE.trainyard work in ssh, scp, sftp, rsync and
    editors too. Keys last as long as the workbench.
    """
    folder = _prepare()
    if setup:
        _include(folder / "config")
        return
    if name is None:
        raise BadInput("Name a lease or a workbench, or give --setup.")
    program = shutil.which("ssh")
    if program is None:
        raise BadInput("There is no ssh on this machine. Install OpenSSH's client.")
    host = name if name.endswith(SUFFIX) else f"{name}{SUFFIX}"
    os.execv(program, ["ssh", "-F", str(folder / "config"), host, *(command or [])])


def stream(name: Annotated[str, typer.Argument()]) -> None:
    """Connect standard input and output with a workbench's SSH server; ssh calls this."""
    folder = _prepare()
    key = " ".join((folder / "id.pub").read_text().split()[:2])
    with connect() as client:
        bench = _find(client, name.removesuffix(SUFFIX))
        pipe = client.workbenches.open_ssh(bench.id, key)
        if HOST_KEY.fullmatch(pipe.host_key) is None:
            pipe.close()
            raise UnexpectedAnswer("The workbench's host key is not an ed25519 key.")
        # ssh reads it once the server's first bytes have come, and these follow.
        (folder / "known" / name).write_text(f"{name} {pipe.host_key}\n")
        _pass_bytes(pipe)


def _pass_bytes(pipe: Pipe) -> None:
    def send() -> None:
        while piece := os.read(sys.stdin.fileno(), 32768):
            pipe.send(piece)
        pipe.close()

    threading.Thread(target=send, daemon=True).start()
    for piece in pipe:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _find(client: Trainyard, name: str) -> Workbench:
    """Return the running workbench of this id, lease or name."""
    running = [one for one in client.workbenches.list() if one.can_be_entered]
    found = [one for one in running if name in (one.id, one.lease, one.name)]
    if not found:
        raise BadInput(
            f"No workbench of yours runs as {name}. Start one: trainyard workbench start "
            f"{f'--lease {name}' if name.startswith('lease_') else ''}".rstrip()
        )
    return found[0]


def _prepare() -> Path:
    """Return the folder with the key and the configuration, made if need be."""
    folder = config_path().parent / "ssh"
    (folder / "known").mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "id").exists():
        program = shutil.which("ssh-keygen")
        if program is None:
            raise BadInput("There is no ssh-keygen on this machine. Install OpenSSH's client.")
        made = [program, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / "id")]
        subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    python = shlex.quote(sys.executable)
    program = f"{python} -c 'from trainyard.cli import main; main()'"
    text = CONFIG.format(suffix=SUFFIX, folder=folder, program=program)
    (folder / "config").write_text(text)
    return folder


def _include(config: Path) -> None:
    line = f'Include "{config}"\n'
    own = Path.home() / ".ssh" / "config"
    own.parent.mkdir(mode=0o700, exist_ok=True)
    before = own.read_text() if own.exists() else ""
    if line in before:
        note(f"{own} includes it already.")
    else:
        own.write_text(f"{line}\n{before}")  # first: below a Host it would be of that host alone
        own.chmod(0o600)
        note(f"{own} now includes {config}.")
    say(f"ssh ID{SUFFIX}, scp FILE ID{SUFFIX}: and rsync work from now on.")
