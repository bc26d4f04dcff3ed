"""Launchers of programs that one sits in front of: a sandbox with the porter in it, and the carrier
beside it."""

import contextlib
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from core.spec.workbench import WhenIdle, WorkbenchKind
from worker.node.attempts import Attempt, NodeFolder, read_model
from worker.node.enrol import IdentityFile
from worker.ranks.judge import RankEvidence
from worker.scripts.script_launch import WORKING_FOLDER, ProgramLauncher, ScriptLauncher, say
from worker.scripts.script_run import WorkbenchRun
from worker.workbench import jupyter
from worker.workbench.carrier import fork_carrier, tunnel_url
from worker.workbench.idleness import IDLE_AFTER, RELEASES
from worker.workbench.porter import GREETING, SHELL_FOLDER
from worker.workspaces.folders import INSIDE

PORTER = "/job/porter"
PROGRAM = (
    f"import sys; sys.path.insert(0, {PORTER!r}); "
    "from worker.workbench.porter import main; sys.exit(main(int(sys.argv[1]), sys.argv[2:]))"
)


@dataclass
class PorterLink:
    """The connection of an attempt's porter, and the carrier at its other end."""

    attempt: Attempt
    api_url: str
    prepare: Callable[[], None]
    """Called first in the carrier's process."""
    carrier_pid: int = 0
    outside: socket.socket | None = None
    """End of the connection that the carrier has, kept for the next carrier."""
    inside: int = -1
    """Descriptor of the porter's end."""

    def open(self, sockets: contextlib.ExitStack) -> socket.socket:
        """Start the carrier; return the porter's end, which `sockets` closes."""
        self.outside, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sockets.enter_context(inside)
        self.inside = inside.fileno()
        self._fork_carrier()
        return inside

    def command(self) -> list[str]:
        """Return the command of the porter, inside."""
        return [sys.executable, "-I", "-S", "-c", PROGRAM, str(self.inside)]

    def _fork_carrier(self) -> None:
        assert self.outside is not None
        identity = read_model(NodeFolder(self.attempt.path.parents[1]).identity, IdentityFile)
        if identity is None:
            raise OSError("the node's identity cannot be read")
        key = self.attempt.key
        self.carrier_pid = fork_carrier(
            self.outside,
            url=tunnel_url(self.api_url, key.job_id, key.epoch),
            token=identity.node_token,
            ready=self.attempt.ready_file,
            prepare=self.prepare,
        )

    def ended(self, pid: int) -> None:
        """Start another carrier if the process that has ended was it."""
        if pid == self.carrier_pid:
            say("The carrier has ended; another takes its place.")
            self._fork_carrier()

    def close(self) -> None:
        """Close the connection, by which the carrier ends."""
        if self.outside is not None:
            self.outside.close()


@dataclass
class WorkbenchLauncher(ProgramLauncher):
    """Launcher of one workbench. Its ranks are its slots: the program is one, rank 0."""

    link: PorterLink = field(init=False)

    def read_run(self) -> WorkbenchRun:
        self.workbench_run = WorkbenchRun.model_validate_json(self.attempt.plan.read_bytes())
        self.link = PorterLink(self.attempt, self.workbench_run.api_url, self._in_child)
        return self.workbench_run

    def further_sockets(self, sockets: contextlib.ExitStack) -> list[socket.socket]:
        return [self.link.open(sockets)]

    @property
    def further_binds(self) -> list[tuple[Path, str, bool]]:
        return [(self.folders.porter, PORTER, False)]

    def command(self) -> list[str]:
        return ["/job/rank", *self.link.command(), *self._server()]

    def _server(self) -> list[str]:
        """Return the command of the program in the browser, if this kind has one."""
        if self.workbench_run.workbench.kind is WorkbenchKind.TERMINAL:
            return []
        return jupyter.server_command(sys.executable, self.home)

    @property
    def home(self) -> str:
        """Home inside: the workspace, if it may be written to."""
        own = self.run.workspace
        return INSIDE if own is not None and own.writable else "/tmp"

    def own_variables(self) -> dict[str, str]:
        own = {"HOME": self.home, "SHELL": shutil.which("bash") or "/bin/sh"}
        if self.workbench_run.idle_after_s is not None:
            own[IDLE_AFTER] = str(self.workbench_run.idle_after_s)
            if self.workbench_run.workbench.when_idle is WhenIdle.RELEASE:
                own[RELEASES] = "1"
        if self._server():
            own |= jupyter.server_variables(PORTER, python=sys.executable, home=self.home)
        return own

    def ended(self, pid: int, code: int) -> None:
        super().ended(pid, code)
        if self.is_running():
            self.link.ended(pid)

    def evidence(self) -> list[RankEvidence]:
        code = self.code()
        return [RankEvidence(0, code, killed_by_us=self.killed and code != 0)]

    def conclude(self, *, stopped: bool) -> None:
        super().conclude(stopped=stopped)
        self.link.close()
        shutil.rmtree(self.folders.porter, ignore_errors=True)


@dataclass
class HeldLauncher(ScriptLauncher):
    """Launcher of the porter in the sandbox of a script that has failed: the same folders, inputs,
    GPUs and variables. What the script left behind is the script's launcher's to keep."""

    link: PorterLink = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.link = PorterLink(self.attempt, self.script_run.api_url, self._in_child)

    def greet(self, text: str) -> None:
        """Show `text` above each shell."""
        path = self.folders.porter / GREETING
        path.write_text(text)
        path.chmod(0o644)

    def further_sockets(self, sockets: contextlib.ExitStack) -> list[socket.socket]:
        return [self.link.open(sockets)]

    @property
    def further_binds(self) -> list[tuple[Path, str, bool]]:
        return [(self.folders.porter, PORTER, False)]

    def command(self) -> list[str]:
        return self.link.command()

    def own_variables(self) -> dict[str, str]:
        shell = shutil.which("bash") or "/bin/sh"
        return {**super().own_variables(), "SHELL": shell, SHELL_FOLDER: WORKING_FOLDER}

    def _collect(self, *, last: bool = False) -> None:
        """Collect nothing: the script's metrics are in already."""

    def _look_at_output(self, now: float) -> None:
        """Keep nothing yet: its owner may be changing the output."""

    def ended(self, pid: int, code: int) -> None:
        super().ended(pid, code)
        if self.is_running():
            self.link.ended(pid)

    def conclude(self, *, stopped: bool) -> None:
        self.link.close()
        shutil.rmtree(self.folders.porter, ignore_errors=True)
