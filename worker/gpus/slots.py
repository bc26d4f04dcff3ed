"""Slots of this node's GPUs: each UUID keeps its number, kept in gpus.json in the data directory.

A GPU that has gone keeps its slot, so that the numbers of the others stay; it gives it up to a GPU
that is found at its place on the bus when the worker starts.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from strategies.plan.durable_files import json_bytes, write_atomically
from worker.node.attempts import read_model

if TYPE_CHECKING:
    from worker.gpus.nvml import Device

PCI_WORD = re.compile(r"[0-9A-Fa-f]+")


class KnownGpu(BaseModel):
    """One slot's GPU or MIG instance, as it was when it last answered."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    uuid: str
    name: str
    memory_gib: float
    pci_address: str
    minor: int | None = None
    instance: tuple[int, int] | None = None


class SlotsFile(BaseModel):
    """Content of gpus.json: the node's GPUs in order of slots."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    allowed: str | None = None
    """CUDA_VISIBLE_DEVICES of the worker that wrote it; None: not set."""
    gpus: list[KnownGpu]


def assign_slots(
    path: Path, found: "Sequence[Device]", *, allowed: str | None, limit: int | None
) -> list[KnownGpu]:
    """Return the node's GPUs in order of slots, and keep them in the file at `path`.

    `allowed` is the worker's own CUDA_VISIBLE_DEVICES, `limit` the largest number of slots.
    """
    before = read_model(path, SlotsFile)
    known = before.gpus if before is not None and before.allowed == allowed else []
    if known and allowed is not None and any(name.isdigit() for name in names_in(allowed)):
        # A number keeps its first meaning: after a loss CUDA counts anew.
        meant = {gpu.uuid for gpu in known}
        usable = [one for one in found if one.uuid in meant]
    else:
        usable = permitted(found, allowed)
    gpus = merge(known, [one for one in usable if one.name])[:limit]
    if gpus:
        write_atomically(path, json_bytes(SlotsFile(allowed=allowed, gpus=gpus)))
    return gpus


def permitted(found: "Sequence[Device]", allowed: str | None) -> "list[Device]":
    """Return the devices that a CUDA_VISIBLE_DEVICES names, by number on the PCI bus, by UUID or
    by the beginning of a UUID; all if it is None. As in CUDA, what follows an unknown name does not
    count."""
    in_order = sorted(found, key=bus_order)
    if allowed is None:
        return in_order
    whole = [one for one in in_order if one.instance is None]
    chosen: list[Device] = []
    for name in names_in(allowed):
        if name.isdigit():
            matches = whole[int(name) : int(name) + 1]
        else:
            matches = [one for one in in_order if name and one.uuid.startswith(name)]
        if not matches:
            break
        chosen += [one for one in matches if one not in chosen]
    return chosen


def names_in(allowed: str) -> list[str]:
    """Return the numbers and UUIDs in a CUDA_VISIBLE_DEVICES."""
    return [name.strip() for name in allowed.split(",")]


def merge(known: Sequence[KnownGpu], found: "Sequence[Device]") -> list[KnownGpu]:
    """Return the slots after a look at the bus: known GPUs where they were, new ones in the slots
    of those that they have replaced on the bus, else at the end."""
    by_uuid = {one.uuid: one for one in found}
    new = [one for one in found if one.uuid not in {gpu.uuid for gpu in known}]
    taken_places = {one.pci_address for one in found}
    gpus: list[KnownGpu] = []
    for gpu in known:
        present = by_uuid.get(gpu.uuid)
        if present is None and gpu.pci_address in taken_places:
            present = next((one for one in new if one.pci_address == gpu.pci_address), None)
            if present is None:
                continue  # a MIG instance that exists no more
            new.remove(present)
        gpus.append(gpu if present is None else known_of(present))
    return [*gpus, *map(known_of, new)]


def known_of(device: "Device") -> KnownGpu:
    """Return the facts about a device that are kept."""
    return KnownGpu(
        uuid=device.uuid,
        name=device.name,
        memory_gib=device.memory_gib,
        pci_address=device.pci_address,
        minor=device.minor,
        instance=device.instance,
    )


def bus_order(device: "Device") -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the key by which CUDA_DEVICE_ORDER=PCI_BUS_ID sorts devices."""
    words = PCI_WORD.findall(device.pci_address)
    return tuple(int(word, 16) for word in words), device.instance or (0, 0)
