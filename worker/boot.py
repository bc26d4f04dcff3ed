"""Which start of this machine this is, and which process is which."""

import os
from pathlib import Path

BOOT_ID_VARIABLE = "TRAINYARD_BOOT_ID"  # tests name another boot with it


def boot_id() -> str:
    """The kernel's random id of this boot."""
    told = os.environ.get(BOOT_ID_VARIABLE)
    return told or Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))
