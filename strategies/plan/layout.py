"""Layout: degrees on named axes, and the coordinate of each rank. Pure."""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

AXES = ("pipeline", "replicate", "shard", "context", "tensor")  # outer to inner


class Coordinate(NamedTuple):
    """Position of a rank along each axis."""

    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int


class Layout(BaseModel):
    """Degrees along each axis; they multiply to the number of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipeline: int = Field(default=1, ge=1)
    replicate: int = Field(default=1, ge=1)
    shard: int = Field(default=1, ge=1)
    context: int = Field(default=1, ge=1)
    tensor: int = Field(default=1, ge=1)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees in the order of AXES."""
        return (self.pipeline, self.replicate, self.shard, self.context, self.tensor)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        product = 1
        for degree in self.degrees:
            product *= degree
        return product

    @property
    def batch_degree(self) -> int:
        """Number of ranks that see different samples (replicate x shard)."""
        return self.replicate * self.shard

    @property
    def stage_size(self) -> int:
        """Number of ranks that hold the same layers: all axes but the pipeline."""
        return self.world_size // self.pipeline

    def coordinate(self, rank: int) -> Coordinate:
        """Return the coordinate of `rank`; neighbours on the tensor axis have neighbouring ranks.

        Raises ValueError for a rank outside the layout.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside this layout of {self.world_size} ranks")
        places = []
        for degree in reversed(self.degrees):
            rank, place = divmod(rank, degree)
            places.append(place)
        return Coordinate(*reversed(places))

    def batch_rank(self, rank: int) -> int:
        """Return which share of the samples `rank` takes, from 0 to batch_degree - 1."""
        at = self.coordinate(rank)
        return at.replicate * self.shard + at.shard
