"""Reduction of a series of any length to one that a screen can show. Pure."""

from dataclasses import dataclass

import numpy as np

from api.records.metric_store import Floats, Integers, Points


@dataclass(frozen=True)
class Curve:
    """A series of at most the requested number of points. `low` and `high` are empty if none were
    merged."""

    steps: Integers
    values: Floats
    low: Floats
    high: Floats


def newest_of_each_step(points: Points) -> tuple[Integers, Floats]:
    """Return the steps in rising order; of a step that was run twice, the value that came last."""
    steps, values = points.steps, points.values
    if len(steps) < 2 or bool(np.all(np.diff(steps) > 0)):
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    last = np.append(steps[1:] != steps[:-1], True)
    return steps[last], values[last]


def downsample(steps: Integers, values: Floats, resolution: int) -> Curve:
    """Divide a series into `resolution` stretches of equal length; return the last step, mean,
    lowest and highest value of each.

    Values that are not finite are left out; a stretch without a finite value is nan.
    """
    nothing = np.empty(0, np.float64)
    count = len(steps)
    if count <= resolution:
        return Curve(steps, values, nothing, nothing)
    starts = np.arange(resolution, dtype=np.int64) * count // resolution
    ends = np.append(starts[1:], count) - 1
    finite = np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if bool(finite.all()):
            sums, counts = np.add.reduceat(values, starts), ends - starts + 1
            low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        else:
            sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
            counts = np.add.reduceat(finite.astype(np.int64), starts)
            low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
            high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
        # Numbers near the largest have a sum that is none, but their mean lies between them.
        mean = np.where(counts > 0, np.clip(sums / counts, low, high), np.nan)
    return Curve(steps[ends], mean, low, high)
