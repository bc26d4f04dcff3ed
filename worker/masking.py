"""Secrets taken out of what a script prints, as far as they stand there letter by letter."""

from collections.abc import Iterable
from dataclasses import dataclass

MASK = "***"
SHORTEST = 4  # characters: a shorter secret would take half of every log with it


@dataclass(frozen=True)
class Masks:
    """The values to take out, longest first."""

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Iterable[str]) -> "Masks":
        """Each value, and each line of one with several."""
        pieces = {line for value in values for line in [value, *value.splitlines()]}
        return cls(tuple(sorted((p for p in pieces if len(p) >= SHORTEST), key=len, reverse=True)))

    def apply(self, text: str) -> str:
        """`text` without them."""
        for value in self.values:
            text = text.replace(value, MASK)
        return text

    def begun_at_end(self, found: bytes) -> int:
        """How many bytes at the end of `found` may be the beginning of a secret."""
        longest = 0
        for value in self.values:
            encoded = value.encode()
            for size in range(min(len(encoded) - 1, len(found)), longest, -1):
                if found.endswith(encoded[:size]):
                    longest = size
                    break
        return longest
