"""Plan and folders of the attempt of a script, or of a workbench, on this node.

sandbox/
  box/                 parts of its sandbox: /etc, an empty folder
  code output scratch run/      /job/code, /job/output, /tmp, /job/run: writable for the script
  libraries/           /job/libraries, writable too: where libraries look for its inputs
  hub/                 /job/hub: the hub that serves them
  sdk/trainyard/run.py          /job/sdk
  rank                          starts one rank with its logs
  porter/                       /job/porter: the program that opens the terminals of a workbench,
                                or of a sandbox that is held
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from pydantic import Field

from core.spec.script import Script
from core.spec.workbench import Workbench
from core.wire.messages import Secrets
from strategies.plan.run_directory import METRICS
from worker.node.attempts import Attempt, StateFile, read_model
from worker.scripts.inputs import InputMount
from worker.scripts.masking import Masks
from worker.scripts.sandbox import Level
from worker.workspaces.folders import WorkspaceMount

ENVIRONMENT = "/job/environment"


class ScriptLimits(StateFile):
    """Limits of one script."""

    disk_bytes: int = Field(ge=1)
    files: int = Field(ge=1)
    """Number of its own files on the disk."""
    processes: int = Field(ge=1)

    def share(self, part: Fraction) -> "ScriptLimits":
        """Return the limits of a script that has this part of the node."""
        return ScriptLimits(
            disk_bytes=max(1, int(self.disk_bytes * part)),
            files=max(1, int(self.files * part)),
            processes=max(1, int(self.processes * part)),
        )


class ProgramRun(StateFile):
    """Content of a program's plan.json: all that is needed to start it in its sandbox."""

    ranks: int = Field(ge=1)
    level: Level
    limits: ScriptLimits
    python: str
    """Interpreter of its environment, by its path inside."""
    environment_folder: str | None = None
    """Host folder of the environment, if one was built for its requirements; inside ENVIRONMENT."""
    resume_from: str | None = None
    resume_step: int = 0
    gpus: tuple[int, ...] = ()
    has_egress: bool = False
    """True if it asked for a network: network.json says what it may reach."""
    ceiling: tuple[str, ...] | None = None
    """The most that programs may reach from this node; None: it sets no limit."""
    inputs: tuple[InputMount, ...] = ()
    workspace: WorkspaceMount | None = None


class ScriptRun(ProgramRun):
    """Content of a script's plan.json."""

    script: Script
    hold_on_failure_s: int | None = None
    """Seconds for which its sandbox is held if it fails; None: not at all."""
    api_url: str = ""
    """Address of the API, to which the carrier of a held sandbox connects."""


class WorkbenchRun(ProgramRun):
    """Content of a workbench's plan.json."""

    workbench: Workbench
    api_url: str
    """Address of the API, to which its carrier connects."""
    idle_after_s: int | None = None
    """Seconds without use after which it says that it is idle; None: it does not look."""


@dataclass(frozen=True)
class ScriptFolders:
    """Paths of a script's attempt."""

    attempt: Attempt

    @property
    def path(self) -> Path:
        return self.attempt.path / "sandbox"

    @property
    def box(self) -> Path:
        return self.path / "box"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def output(self) -> Path:
        return self.path / "output"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def own(self) -> tuple[Path, ...]:
        """Folders that the script may write to."""
        return (self.code, self.output, self.scratch, self.run, self.libraries)

    @property
    def libraries(self) -> Path:
        return self.path / "libraries"

    @property
    def hub(self) -> Path:
        return self.path / "hub"

    @property
    def metrics(self) -> Path:
        """File that `trainyard.run.log` writes."""
        return self.run / METRICS

    @property
    def sdk(self) -> Path:
        return self.path / "sdk"

    @property
    def rank(self) -> Path:
        return self.path / "rank"

    @property
    def porter(self) -> Path:
        return self.path / "porter"

    def masks(self) -> Masks:
        """Return the values that must not be visible outside."""
        return masks_of(self.attempt)


def masks_of(attempt: Attempt) -> Masks:
    """Return the secrets of an attempt as masks for its output; empty for a recipe."""
    if not attempt.secrets_file.exists():
        return Masks()
    secrets = read_model(attempt.secrets_file, Secrets)
    return Masks() if secrets is None else Masks.of(secrets.values.values())
