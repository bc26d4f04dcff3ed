"""Identity of this boot of the machine, and the number of its cores."""

import os
from pathlib import Path

BOOT_ID_VARIABLE = "TRAINYARD_BOOT_ID"  # tests simulate another boot with it


def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    told = os.environ.get(BOOT_ID_VARIABLE)
    return told or Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))
