"""Cores of this machine, and their division among the slots of a node that is shared."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Core:
    """One core, which is never divided: its hyperthreads slow each other down."""

    cpus: tuple[int, ...]
    """Numbers of its hyperthreads, as the kernel counts processors."""
    numa: int = 0
    """NUMA node whose memory is near."""


def read_cores(usable: Collection[int], system: Path = CPUS) -> list[Core]:
    """Return the cores with a processor in `usable`, in order of their first one.

    A processor of which the kernel tells nothing is a core of NUMA node 0.
    """
    cores: dict[tuple[int, ...], Core] = {}
    for cpu in sorted(usable):
        place = system / f"cpu{cpu}"
        threads = {cpu}
        with contextlib.suppress(OSError, ValueError):
            threads |= set(_listed((place / "topology/thread_siblings_list").read_text()))
        cpus = tuple(sorted(threads.intersection(usable)))
        numa = min((int(found.name[4:]) for found in place.glob("node[0-9]*")), default=0)
        cores.setdefault(cpus, Core(cpus, numa))
    return list(cores.values())


def _listed(text: str) -> Iterator[int]:
    """Yield the numbers of a list of the kernel, such as `0-3,8`."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def numa_of(pci_address: str, devices: Path = PCI) -> int | None:
    """Return the NUMA node of a device on the PCI bus; None if the kernel does not tell.

    NVML writes eight digits of the domain where the kernel writes four.
    """
    domain, _, rest = pci_address.lower().partition(":")
    with contextlib.suppress(OSError, ValueError):
        node = int((devices / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
        return node if node >= 0 else None
    return None


def divide(
    cores: Sequence[Core], num_slots: int, near: Sequence[int | None] = ()
) -> list[tuple[int, ...]]:
    """Return the processors of each slot: as many whole cores for one as for another, those of the
    NUMA node in `near` first. Empty if there are fewer cores than slots.

    From two cores a slot on, one core at least belongs to no slot: it is left to the platform and
    to the kernel, whose work for one neighbour would otherwise be done on the cores of another.
    """
    kept = 1 if len(cores) >= 2 * num_slots else 0  # the first: most interrupts come to it
    each = (len(cores) - kept) // num_slots
    if each == 0:
        return []
    free = list(cores[kept:])
    shares = []
    for slot in range(num_slots):
        node = near[slot] if slot < len(near) else None
        free.sort(key=lambda core: (node not in (None, core.numa), core.numa, core.cpus))
        shares.append(tuple(sorted(cpu for core in free[:each] for cpu in core.cpus)))
        del free[:each]
    return shares
