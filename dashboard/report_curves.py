"""A series as an SVG drawing, for a page without scripts. Pure."""

import math
from dataclasses import dataclass

from dashboard.formats import count, decimal
from trainyard.views import Series

WIDTH, HEIGHT = 560, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 24


@dataclass(frozen=True)
class Tick:
    """A place on an axis, px, and its words."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawing:
    """A chart: paths in a box of WIDTH by HEIGHT."""

    title: str
    unit: str
    path: str
    band: str
    """Area between the lowest and the highest value of each point; empty if none was merged."""
    dots: list[tuple[float, float]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    last: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    bottom: int = HEIGHT - BOTTOM


def drawing(title: str, unit: str, series: Series, *, points: Series | None = None) -> Drawing:
    """A chart of one series; `points` are drawn as dots over it. Gaps stay gaps."""
    lows, highs = series.min or series.values, series.max or series.values
    known = [value for value in (*lows, *highs) if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = (high - low or abs(high) or 1.0) * 0.06
    low, high = low - margin, high + margin
    first, last = series.steps[0], series.steps[-1]

    def x(step: float) -> float:
        return round(LEFT + (step - first) / max(1, last - first) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    pairs = zip(series.steps, series.values, strict=True)
    band = ""
    if series.min and not any(value is None for value in (*series.min, *series.max)):
        over = [f"{x(step)} {y(top or 0)}" for step, top in zip(series.steps, highs, strict=True)]
        under = [
            f"{x(step)} {y(floor or 0)}" for step, floor in zip(series.steps, lows, strict=True)
        ]
        band = f"M{'L'.join([*over, *reversed(under)])}Z"
    shown = points and [
        (x(step), y(value))
        for step, value in zip(points.steps, points.values, strict=True)
        if value is not None and low <= value <= high
    ]
    steps = _round_numbers(first, last, 6)
    levels = _round_numbers(low, high, 5)
    return Drawing(
        title=title,
        unit=unit,
        path=_path([(x(step), None if value is None else y(value)) for step, value in pairs]),
        band=band,
        dots=list(shown or []),
        x_ticks=[Tick(x(step), count(step)) for step in steps],
        y_ticks=[Tick(y(level), _level(level, levels)) for level in levels],
        last=decimal(next((value for value in reversed(series.values) if value is not None), None)),
    )


def _path(points: list[tuple[float, float | None]]) -> str:
    pieces, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        pieces.append(f"{pen}{x} {y}")
        pen = "L"
    return "".join(pieces)


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between the two, at most so many and some."""
    rough = (high - low) / most or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _level(value: float, levels: list[float]) -> str:
    largest = max(abs(level) for level in levels)
    if largest < 1e-2:
        return decimal(value, 2)
    step = levels[1] - levels[0] if len(levels) > 1 else largest
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{places}f}"
