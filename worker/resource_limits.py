"""Memory and number of processes of one script, bounded by cgroups where this machine lets us.

With version 2 the attempt's own cgroup takes the limits, where the controllers were delegated. With
version 1 each controller has a tree of its own, and one more group is made in it.
"""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from worker.process_tree import Cgroup

CGROUPS = Path("/sys/fs/cgroup")


@dataclass
class ResourceLimits:
    """The limits of the attempt `name`."""

    name: str
    memory_bytes: int
    processes: int
    joined: list[Path] = field(default_factory=list)
    """Groups of version 1 that a process must join."""

    def set(self, cgroup: Cgroup | None) -> list[str]:
        """Set what can be set; the names of what is bounded."""
        bounded = [] if cgroup is None else self._set_v2(cgroup)
        for controller, file, value in (
            ("memory", "memory.limit_in_bytes", self.memory_bytes),
            ("pids", "pids.max", self.processes),
        ):
            if controller not in bounded and self._set_v1(controller, file, value):
                bounded.append(controller)
        return bounded

    def join(self) -> None:
        """Move this process into the groups of version 1."""
        for group in self.joined:
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text("0")

    def remove(self) -> None:
        """Take the empty groups away."""
        for group in self.joined:
            with contextlib.suppress(OSError):
                group.rmdir()

    def _set_v2(self, cgroup: Cgroup) -> list[str]:
        bounded = []
        for controller, file, value in (
            ("memory", "memory.max", self.memory_bytes),
            ("pids", "pids.max", self.processes),
        ):
            with contextlib.suppress(OSError):
                for folder in (cgroup.path.parent, cgroup.path):
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                (cgroup.ranks / file).write_text(str(value))
                bounded.append(controller)
        return bounded

    def _set_v1(self, controller: str, file: str, value: int) -> bool:
        mount = CGROUPS / controller
        if not os.path.exists(mount / "cgroup.procs"):
            return False
        group = mount / f"trainyard-{self.name}"
        try:
            group.mkdir(exist_ok=True)
            (group / file).write_text(str(value))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            return False
        self.joined.append(group)
        return True
