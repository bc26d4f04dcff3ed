"""Mixture of datasets: windows of several, each with its share of the samples. Torch-free.

A pass is long enough for every window of every dataset: with n windows and share s it has at least
n / s samples, and the datasets that are too small for theirs come round again. Which window a
sample number has is still a function of seed and number alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strategies.plan.data.joined import JoinedArrays, joined
from strategies.plan.data.tokens import Flags, Integers
from strategies.plan.data.windows import TokenWindows

Piece = Callable[[TokenWindows, Integers, Integers], Integers]


class MixedWindows(TokenWindows):
    """Windows of several datasets, of one tokenizer, as those of one."""

    def __init__(self, parts: Sequence[TokenWindows], shares: Sequence[float]) -> None:
        self.parts = parts
        self.tokenizer, self.length = parts[0].tokenizer, parts[0].length
        self.is_counted = any(part.is_counted for part in parts)
        self.tokens = joined([part.tokens for part in parts])
        self.first_tokens = np.cumsum([0, *(len(part.tokens) for part in parts)])
        self.learned: Any = None
        if any(part.learned is not None for part in parts):
            self.learned = JoinedArrays([_learned(part) for part in parts])
        num_train = max(
            math.ceil(part.num_train / share) for part, share in zip(parts, shares, strict=True)
        )
        ends = [round(num_train * sum(shares[: number + 1])) for number in range(len(parts))]
        self.first_train = np.array([0, *ends])
        """First training window of each part: as many as its share, its own repeated."""
        self.num_train = int(self.first_train[-1])
        self.first_held_out = self.num_train + np.cumsum(
            [0, *(part.num_held_out for part in parts)]
        )
        self.num_held_out = int(self.first_held_out[-1]) - self.num_train

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        is_train = windows < self.num_train
        trained = np.searchsorted(self.first_train, windows, "right") - 1
        evaluated = np.searchsorted(self.first_held_out, windows, "right") - 1
        owners = np.where(is_train, trained, evaluated)
        starts, lengths = np.empty_like(windows), np.empty_like(windows)
        for number in np.unique(owners):
            here, part = owners == number, self.parts[number]
            repeated = (windows[here] - self.first_train[number]) % part.num_train
            held_out = part.num_train + windows[here] - self.first_held_out[number]
            own = np.where(is_train[here], repeated, held_out)
            starts[here], lengths[here] = part.bounds(own)
            starts[here] += self.first_tokens[number]
        return starts, lengths

    def num_labels(self, starts: Integers, lengths: Integers) -> Integers:
        return self._by_part(starts, lengths, lambda part, at, size: part.num_labels(at, size))

    def documents(self, places: Integers) -> Integers | None:
        if self.parts[0].documents(places[:0]) is None:
            return None
        found = np.empty_like(places)
        owners = np.searchsorted(self.first_tokens, places, "right") - 1
        for number in np.unique(owners):
            here = owners == number
            numbers = self.parts[number].documents(places[here] - self.first_tokens[number])
            assert numbers is not None
            found[here] = numbers
        return found

    def _by_part(self, starts: Integers, lengths: Integers, ask: Piece) -> Integers:
        found = np.empty_like(lengths)
        owners = np.searchsorted(self.first_tokens, starts, "right") - 1
        for number in np.unique(owners):
            here = owners == number
            at = starts[here] - self.first_tokens[number]
            found[here] = ask(self.parts[number], at, lengths[here])
        return found


def _learned(part: TokenWindows) -> Flags:
    """Return which tokens of a dataset are learned; all, without memory, if it does not say."""
    if part.learned is not None:
        return part.learned
    return np.broadcast_to(np.True_, len(part.tokens))
