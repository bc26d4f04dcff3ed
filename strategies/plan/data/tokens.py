"""Tokenizers: text to token numbers, and back. Torch-free.

A new one is a class with the members of `Tokenizer` and a line in `stored_tokenizer.py`.
"""

import json
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from strategies.plan.data.rows import Row
from strategies.plan.shapes import BYTES

Tokens = npt.NDArray[np.unsignedinteger[Any]]
CodePoints = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

CODE_POINTS = 0x110000  # of Unicode
NO_TOKEN = -1


class LabelledTokens(NamedTuple):
    """Tokens of a row, (N,), and flags of those that a model learns to write."""

    tokens: Tokens
    learned: Flags


class Tokenizer(Protocol):
    """Mapping between text and tokens, which are numbered from 0 to size - 1."""

    files: dict[str, str]
    """Files, by name, that a folder needs for transformers to load this tokenizer."""

    @property
    def size(self) -> int:
        """Number of different tokens."""

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text, (N,); characters without a token are left out."""

    def encode_row(self, row: Row) -> LabelledTokens:
        """Return the tokens of a dataset row, with end marks.

        Raises WrongRow if it cannot be written.
        """

    def decode(self, tokens: list[int]) -> str:
        """Return the text of some tokens; incomplete characters are replaced."""

    def stored(self) -> str:
        """Return JSON for `tokenizer_from`."""


class Bytes:
    """Tokenizer whose tokens are the bytes of UTF-8."""

    def __init__(self) -> None:
        self.size = BYTES
        self.files: dict[str, str] = {}

    def encode(self, text: str) -> Tokens:
        # JSON can name half a surrogate pair, which has no UTF-8.
        return np.frombuffer(text.encode("utf-8", errors="surrogatepass"), dtype=np.uint8)

    def encode_row(self, row: Row) -> LabelledTokens:
        return encode_parts(self, row)

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")

    def stored(self) -> str:
        return json.dumps({"tokenizer": "bytes"})


class Characters:
    """Tokenizer whose tokens are the characters of an alphabet, numbered by code point."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = "".join(sorted(set(alphabet)))
        self.files: dict[str, str] = {}
        points = code_points(self.alphabet)
        # A table, because a search in the alphabet is ten times slower.
        self.token_of = np.full(points[-1] + 1, NO_TOKEN, dtype=np.int32)
        self.token_of[points] = np.arange(len(points))

    @property
    def size(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> Tokens:
        points = code_points(text)
        tokens = self.token_of[points[points < len(self.token_of)]]
        found: Tokens = tokens[tokens != NO_TOKEN].astype(np.min_scalar_type(self.size - 1))
        return found

    def encode_row(self, row: Row) -> LabelledTokens:
        return encode_parts(self, row)

    def decode(self, tokens: list[int]) -> str:
        text = "".join(self.alphabet[token] for token in tokens)
        return text.encode("utf-8", errors="replace").decode()

    def stored(self) -> str:
        return json.dumps({"tokenizer": "characters", "alphabet": self.alphabet})


def encode_parts(tokenizer: Tokenizer, row: Row) -> LabelledTokens:
    """Encode a row part by part, with nothing added."""
    tokens = [tokenizer.encode(part.text) for part in row.parts]
    sizes = [len(found) for found in tokens]
    return LabelledTokens(np.concatenate(tokens), np.repeat([p.learned for p in row.parts], sizes))


def code_points(text: str) -> CodePoints:
    """Return the code point of each character, (N,)."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


class Alphabet:
    """Collector of the different characters of a text that comes in pieces."""

    def __init__(self) -> None:
        self.seen = np.zeros(CODE_POINTS, dtype=bool)

    def add(self, text: str) -> None:
        self.seen[code_points(text)] = True

    def tokenizer(self) -> Characters:
        """Return a tokenizer with one token for each character met so far."""
        return Characters("".join(map(chr, np.flatnonzero(self.seen))))
