"""A script's attempt on this node: plan.json of it, and its folders.

sandbox/
  box/                 what its sandbox is made of: /etc, an empty folder
  code output scratch run/      /job/code, /job/output, /tmp, /job/run: its own to write
  sdk/trainyard/run.py          /job/sdk
  rank                          starts one rank with its logs
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from core.messages import Secrets
from core.script import Script
from strategies.run_directory import METRICS
from worker.attempts import Attempt, Kept, read_model
from worker.masking import Masks
from worker.sandbox import Level

ENVIRONMENT = "/job/environment"


class Limits(Kept):
    """What one script may use at most."""

    disk_bytes: int = Field(ge=1)
    files: int = Field(ge=1)
    """Of its own on the disk."""
    processes: int = Field(ge=1)


class ScriptRun(Kept):
    """plan.json: all that is needed to start the script."""

    script: Script
    ranks: int = Field(ge=1)
    level: Level
    limits: Limits
    python: str
    """The interpreter of its environment, by its path inside."""
    environment_folder: str | None = None
    """On the host, if one was built for its requirements; inside it is ENVIRONMENT."""
    resume_from: str | None = None
    resume_step: int = 0
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScriptFolders:
    """The paths of a script's attempt."""

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
        """What it may write to."""
        return (self.code, self.output, self.scratch, self.run)

    @property
    def metrics(self) -> Path:
        """What `trainyard.run.log` writes."""
        return self.run / METRICS

    @property
    def sdk(self) -> Path:
        return self.path / "sdk"

    @property
    def rank(self) -> Path:
        return self.path / "rank"

    def masks(self) -> Masks:
        """What must not be seen of it outside."""
        return masks_of(self.attempt)


def masks_of(attempt: Attempt) -> Masks:
    """The secrets of an attempt, as what to take out of its words. None for a recipe."""
    if not attempt.secrets_file.exists():
        return Masks()
    secrets = read_model(attempt.secrets_file, Secrets)
    return Masks() if secrets is None else Masks.of(secrets.values.values())
