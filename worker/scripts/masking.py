"""Masking of secrets in a script's output, where they occur letter by letter."""

from collections.abc import Iterable
from dataclasses import dataclass

MASK = "***"
SHORTEST = 4  # characters: masking a shorter secret would destroy half of every log


@dataclass(frozen=True)
class Masks:
    """Values to mask, longest first."""

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Iterable[str]) -> "Masks":
        """Return masks of each value, and of each line of a value with several."""
        pieces = {line for value in values for line in [value, *value.splitlines()]}
        return cls(tuple(sorted((p for p in pieces if len(p) >= SHORTEST), key=len, reverse=True)))

    def apply(self, text: str) -> str:
        """Return `text` with the values masked."""
        for value in self.values:
            text = text.replace(value, MASK)
        return text

    def begun_at_end(self, found: bytes) -> int:
        """Return how many bytes at the end of `found` may be the beginning of a secret."""
        longest = 0
        for value in self.values:
            encoded = value.encode()
            for size in range(min(len(encoded) - 1, len(found)), longest, -1):
                if found.endswith(encoded[:size]):
                    longest = size
                    break
        return longest
