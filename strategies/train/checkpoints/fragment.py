"""Run of a flattened tensor: DeepSpeed's cut of a weight, given to checkpoints by global
position."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

aten = torch.ops.aten
ELEMENTWISE = (
    aten.clone.default,
    aten.copy_.default,
    aten.detach.default,
    aten._to_copy.default,
)


class Box(NamedTuple):
    """Rectangular part of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def boxes_of(run: range, shape: Sequence[int]) -> Iterator[Box]:
    """Yield the boxes that make up a run of a flattened tensor, in its order.

    For a matrix: the end of a row, whole rows, the beginning of a row; empty ones are left out.
    """
    if not run:
        return
    if len(shape) == 1:
        yield Box((run.start,), (len(run),))
        return
    row = math.prod(shape[1:])
    first, last = -(-run.start // row), run.stop // row  # whole rows: first, ..., last - 1
    if first > last:
        yield from within_row(last, run, shape)
        return
    yield from within_row(first - 1, range(run.start, first * row), shape)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    yield from within_row(last, range(last * row, run.stop), shape)


def within_row(row: int, run: range, shape: Sequence[int]) -> Iterator[Box]:
    start = row * math.prod(shape[1:])
    for offsets, sizes in boxes_of(range(run.start - start, run.stop - start), shape[1:]):
        yield Box((row, *offsets), (1, *sizes))


class Fragment(Tensor):
    """Part of a tensor of `shape` that a rank holds.

    `numbers` (1-d, possibly empty) begin at `start` of the flattened whole.
    torch.distributed.checkpoint saves it as boxes, so another layout may read any other part of the
    whole, and reads into it in place.
    """

    numbers: Tensor
    start: int

    @staticmethod
    def __new__(cls, numbers: Tensor, *, start: int, shape: Sequence[int]) -> "Fragment":
        made: Fragment = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=numbers.dtype, device=numbers.device
        )
        made.numbers, made.start = numbers, start
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Fragment({self.numbers}, start={self.start}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> "Fragment":
        if function not in ELEMENTWISE:
            raise NotImplementedError(f"a fragment does not implement {function}")
        own = [each.numbers if isinstance(each, Fragment) else each for each in args]
        numbers = function(*own, **(kwargs or {}))
        return Fragment(numbers, start=args[0].start, shape=args[0].shape)

    @property
    def boxes(self) -> list[Box]:
        return list(boxes_of(range(self.start, self.start + len(self.numbers)), self.shape))

    def parts(self) -> Iterator[tuple[Box, Tensor]]:
        """Yield the boxes, each with its numbers in the box's shape."""
        at = 0
        for box in self.boxes:
            length = math.prod(box.sizes)
            yield box, self.numbers[at : at + length].view(box.sizes)
            at += length

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.numbers)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.size()),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
            for offsets, sizes in self.boxes
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        for box, numbers in self.parts():
            if torch.Size(box.offsets) == index.offset:
                return numbers
        raise KeyError(f"no box of {index.fqn} begins at {index.offset}")
