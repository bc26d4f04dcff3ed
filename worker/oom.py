"""How often the kernel has killed for want of memory: a rank's SIGKILL is told apart with it."""

import re
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills() -> int:
    """Kills so far: of this process's own memory cgroup where it says, else of the machine."""
    for path in (*_own_memory_cgroup(), Path("/proc/vmstat")):
        try:
            found = KILLS.search(path.read_text())
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0


def _own_memory_cgroup() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            paths.append(CGROUPS / place.strip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            # In a container the place may be its name outside, and the mount already that folder.
            paths.append(CGROUPS / "memory" / place.strip("/") / "memory.oom_control")
            paths.append(CGROUPS / "memory" / "memory.oom_control")
    return paths
