"""Tokenizers of every kind, rebuilt from what they have stored."""

import json

from strategies.plan.data.hf_tokenizer import HuggingFace
from strategies.plan.data.tokens import Bytes, Characters, Tokenizer


def tokenizer_from(stored: str) -> Tokenizer:
    """Rebuild the tokenizer that `stored` described."""
    fields = json.loads(stored)
    match fields["tokenizer"]:
        case "characters":
            return Characters(fields["alphabet"])
        case "huggingface":
            return HuggingFace(fields["files"], fields["size"])
        case _:
            return Bytes()
