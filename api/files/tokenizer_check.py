"""Check of a tokenizer's files: which there are, and how many tokens they name."""

import json
from collections.abc import Mapping
from pathlib import Path

from core.base.errors import BadRequest
from strategies.plan.hugging_face.hf_config import TOKENIZER, TOKENIZER_FILES

MOST_BYTES = 64 << 20  # of one file; those of 256,000 tokens have some 30 MB
MOST_TOKENS = 1_114_112  # data.vocabulary_size allows no more


def vocabulary_size(files: Mapping[str, Path]) -> int:
    """Return the number of tokens, the largest number + 1. Raises BadRequest with the file."""
    for name, path in files.items():
        if name not in TOKENIZER_FILES:
            raise _bad(f"{name} is none of a tokenizer's files: {', '.join(TOKENIZER_FILES)}")
        if path.stat().st_size > MOST_BYTES:
            raise _bad(f"{name} has {path.stat().st_size:,} bytes; the limit is {MOST_BYTES:,}")
    if TOKENIZER not in files:
        raise _bad(
            f"{TOKENIZER} is missing; the tokenizers library writes it with Tokenizer.save, "
            "transformers with save_pretrained"
        )
    try:
        told = json.loads(files[TOKENIZER].read_bytes())
        vocabulary = told["model"]["vocab"]
        numbers = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = [token["id"] for token in told.get("added_tokens") or []]
        size = max(*numbers, *added) + 1
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _bad(f"{TOKENIZER} is not a tokenizer of the tokenizers library") from error
    if not isinstance(size, int) or not 2 <= size <= MOST_TOKENS:
        raise _bad(f"{TOKENIZER} numbers its tokens up to {size}; 2 to {MOST_TOKENS:,} are allowed")
    return size


def _bad(why: str) -> BadRequest:
    return BadRequest(f"The tokenizer was refused: {why}.", code="bad_tokenizer", param="body")
