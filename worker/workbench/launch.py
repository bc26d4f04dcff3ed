"""Launcher of a workbench: its sandbox with the porter in it, and the carrier beside it."""

import contextlib
import shutil
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from core.spec.workbench import WorkbenchKind
from worker.attempts import NodeFolder, read_model
from worker.enrol import IdentityFile
from worker.ranks.judge import RankEvidence
from worker.scripts.script_launch import ProgramLauncher, say
from worker.scripts.script_run import WorkbenchRun
from worker.workbench import jupyter
from worker.workbench.carrier import fork_carrier, tunnel_url
from worker.workspaces.folders import INSIDE

PORTER = "/job/porter"
PROGRAM = (
    f"import sys; sys.path.insert(0, {PORTER!r}); "
    "from worker.workbench.porter import main; sys.exit(main(int(sys.argv[1]), sys.argv[2:]))"
)


@dataclass
class WorkbenchLauncher(ProgramLauncher):
    """Launcher of one workbench. Its ranks are its slots: the program is one, rank 0."""

    carrier_pid: int = 0
    outside: socket.socket | None = None
    """End of the porter's connection that the carrier has, kept for the next carrier."""
    inside: int = field(default=-1, init=False)

    def read_run(self) -> WorkbenchRun:
        self.workbench_run = WorkbenchRun.model_validate_json(self.attempt.plan.read_bytes())
        return self.workbench_run

    def further_sockets(self, sockets: contextlib.ExitStack) -> list[socket.socket]:
        self.outside, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sockets.enter_context(inside)
        self.inside = inside.fileno()
        self._fork_carrier()
        return [inside]

    @property
    def further_binds(self) -> list[tuple[Path, str, bool]]:
        return [(self.folders.porter, PORTER, False)]

    def command(self) -> list[str]:
        porter = [sys.executable, "-I", "-S", "-c", PROGRAM, str(self.inside)]
        return ["/job/rank", *porter, *self._server()]

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
        return {**own, **jupyter.server_variables(PORTER)} if self._server() else own

    def _fork_carrier(self) -> None:
        assert self.outside is not None
        identity = read_model(NodeFolder(self.attempt.path.parents[1]).identity, IdentityFile)
        if identity is None:
            raise OSError("the node's identity cannot be read")
        key = self.attempt.key
        self.carrier_pid = fork_carrier(
            self.outside,
            url=tunnel_url(self.workbench_run.api_url, key.job_id, key.epoch),
            token=identity.node_token,
            ready=self.attempt.ready_file,
            prepare=self._in_child,
        )

    def ended(self, pid: int, code: int) -> None:
        super().ended(pid, code)
        if pid == self.carrier_pid and self.is_running():
            say("The carrier has ended; another takes its place.")
            self._fork_carrier()

    def evidence(self) -> list[RankEvidence]:
        code = self.code()
        return [RankEvidence(0, code, killed_by_us=self.killed and code != 0)]

    def conclude(self, *, stopped: bool) -> None:
        super().conclude(stopped=stopped)
        if self.outside is not None:
            self.outside.close()
        shutil.rmtree(self.folders.porter, ignore_errors=True)
