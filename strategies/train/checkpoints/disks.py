"""Checkpoints of ranks on several nodes that share no folder: each node has its own files.

The platform gathers them in its store. At the end of a run the first node needs the whole
checkpoint, to export the weights; the other nodes send it their files.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from strategies.plan.run_directory import manifest_name, read_manifest
from strategies.train.mesh import Mesh

PIECE = 64 << 20  # bytes sent at a time


@dataclass(frozen=True)
class Disk:
    """Part of every checkpoint that a rank's run directory holds."""

    number: int
    count: int
    is_writer: bool
    """True on the rank that writes files written once into that directory."""


def find_disk(folder: Path, mesh: Mesh) -> Disk:
    """Return this rank's disk: its node's own, or the one that all nodes share.

    All ranks call it.
    """
    if mesh.num_nodes == 1:
        return Disk(0, 1, mesh.is_first)
    mark = folder / f".first-node-{mesh.broadcast_text(os.urandom(8).hex())}"
    if mesh.is_first:
        mark.touch()
    mesh.barrier()
    is_shared = mesh.node != 0 and mark.exists()
    mesh.barrier()
    if mesh.is_first:
        mark.unlink()
    if mesh.gather(float(is_shared)) != [0.0] * mesh.world_size:
        return Disk(0, 1, mesh.is_first)
    return Disk(mesh.node, mesh.num_nodes, mesh.is_first_here)


def bring_together(checkpoint: Path, disk: Disk, mesh: Mesh) -> None:
    """Send other nodes' files of a finished checkpoint to the first node. All ranks call it.

    `checkpoint` is its path on this rank's disk.
    """
    for node in range(1, disk.count):
        sender = node * mesh.ranks_per_node
        if mesh.rank == sender:
            _send(checkpoint, node, mesh)
        elif mesh.is_first:
            _receive(checkpoint, sender, mesh)
    if disk.count > 1:
        dist.barrier(group=mesh.saving_group)  # whose timeout allows for slow networks


def _send(checkpoint: Path, node: int, mesh: Mesh) -> None:
    files = read_manifest(checkpoint, node).files
    names = [*(file.path for file in files), manifest_name(node)]
    sizes = [(name, (checkpoint / name).stat().st_size) for name in names]
    dist.send_object_list([sizes], dst=0, group=mesh.saving_group)
    for name, size in sizes:
        with (checkpoint / name).open("rb") as file:
            for length in _pieces(size):
                piece = torch.frombuffer(bytearray(file.read(length)), dtype=torch.uint8)
                dist.send(piece, dst=0, group=mesh.saving_group)


def _receive(checkpoint: Path, sender: int, mesh: Mesh) -> None:
    told: list[list[tuple[str, int]]] = [[]]
    dist.recv_object_list(told, src=sender, group=mesh.saving_group)
    for name, size in told[0]:
        with (checkpoint / name).open("wb") as file:
            for length in _pieces(size):
                piece = torch.empty(length, dtype=torch.uint8)
                dist.recv(piece, src=sender, group=mesh.saving_group)
                file.write(piece.numpy().tobytes())


def _pieces(size: int) -> Iterator[int]:
    """Yield the lengths of the pieces of a file."""
    for start in range(0, size, PIECE):
        yield min(PIECE, size - start)
