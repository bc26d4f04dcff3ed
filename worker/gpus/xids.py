"""Errors of GPUs (XIDs) that NVIDIA's driver has written to the kernel's log.

Most XIDs (13, 31, 43, 45) are mistakes of programs. Those below are faults of the hardware or the
driver. Source: NVIDIA's catalogue of XID errors.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

KERNEL_LOG = Path("/dev/kmsg")
LINE_BYTES = 8192
EARLIER_S = 1.0  # the kernel's clock may be this far from ours
HARDWARE = {
    48: "a double-bit ECC error",
    63: "a page or row of memory was retired",
    64: "a page or row of memory could not be retired",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    94: "a contained ECC error",
    95: "an uncontained ECC error",
    119: "the GPU's own processor does not answer",
    120: "an error of the GPU's own processor",
}
XID = re.compile(r"^\d+,\d+,(\d+),[^;]*;NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")
PCI_WORD = re.compile(r"[0-9A-Fa-f]+")


class Xid(NamedTuple):
    """One error of a GPU."""

    pci_address: str
    number: int

    def __str__(self) -> str:
        return f"XID {self.number} ({HARDWARE[self.number]})"


def hardware_xids(lines: Iterable[str], *, since_s: float) -> list[Xid]:
    """Return the faults of hardware since a time on the boot clock, from lines of /dev/kmsg."""
    found = (XID.match(line) for line in lines)
    return [
        Xid(one[2], int(one[3]))
        for one in found
        if one is not None and int(one[1]) / 1e6 >= since_s - EARLIER_S and int(one[3]) in HARDWARE
    ]


def by_rank(xids: Sequence[Xid], pci_addresses: Mapping[int, str]) -> dict[int, str]:
    """Return the first fault of each rank's GPU, by rank, in words."""
    found: dict[int, str] = {}
    for rank, address in pci_addresses.items():
        for xid in xids:
            if place_of(xid.pci_address) == place_of(address):
                found.setdefault(rank, str(xid))
    return found


def place_of(pci_address: str) -> tuple[int, ...]:
    """Return domain, bus and device: the kernel's log and NVML write them in other lengths."""
    return tuple(int(word, 16) for word in PCI_WORD.findall(pci_address)[:3])


def kernel_log(path: Path = KERNEL_LOG) -> list[str]:
    """Return the lines of the kernel's log; none where this user may not read it."""
    lines: list[str] = []
    with suppress(OSError):  # no permission, or BlockingIOError at the end
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while True:
                try:
                    line = os.read(log, LINE_BYTES)
                except BrokenPipeError:
                    continue  # overwritten before it was read
                if not line:
                    break
                lines += line.decode(errors="replace").splitlines()
        finally:
            os.close(log)
    return lines
