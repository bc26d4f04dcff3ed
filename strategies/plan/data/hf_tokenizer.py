"""Tokenizer of a Hugging Face checkpoint, through transformers. Imported only when it is used."""

import json
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strategies.plan.data.rows import ASSISTANT, Chat, Message, Row, Text, TextPiece, WrongRow
from strategies.plan.data.tokens import LabelledTokens, Tokens
from strategies.plan.hugging_face.hf_config import TOKENIZER, TOKENIZER_FILES

MARKED = "generation %}"  # present in a template that marks the assistant's text itself


class HuggingFace:
    """Vocabulary and merges of a checkpoint, and its chat template."""

    def __init__(self, files: dict[str, str], size: int) -> None:
        self.files, self.size = files, size

    @classmethod
    def of(cls, checkpoint: Path) -> "HuggingFace":
        """Read the tokenizer of a checkpoint's folder.

        Raises ValueError if it has no usable one.
        """
        files = {
            name: (checkpoint / name).read_text(encoding="utf-8")
            for name in TOKENIZER_FILES
            if (checkpoint / name).is_file()
        }
        if TOKENIZER not in files:
            raise ValueError(
                f"the checkpoint has no {TOKENIZER}; save it beside the weights with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        return cls(files, size=max(load(files).get_vocab().values()) + 1)

    @cached_property
    def theirs(self) -> Any:
        """Tokenizer object of transformers."""
        return load(self.files)

    @property
    def dtype(self) -> npt.DTypeLike:
        return np.min_scalar_type(self.size - 1)

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text, without special tokens at its start or end."""
        tokens = self.theirs(text, add_special_tokens=False)["input_ids"]
        return np.array(tokens, dtype=self.dtype)

    def encode_row(self, row: Row) -> LabelledTokens:
        """Return a row's tokens between those that begin and end a text.

        A chat template adds its own.
        """
        if isinstance(row, Chat) and self.theirs.chat_template is not None:
            return self.conversation(row.messages)
        if isinstance(row, Text):  # by far the most rows, and a third faster without offsets
            found = self.encode(row.text)
            document = LabelledTokens(found, np.ones(len(found), dtype=bool))
        else:
            document = self.encode_parts(row.parts)
        begin, end = self.marks
        tokens = np.concatenate([begin, document.tokens, end])
        learned = np.full(len(tokens), True)
        learned[: len(begin)] = False
        learned[len(begin) : len(tokens) - len(end)] = document.learned
        return LabelledTokens(tokens, learned)

    @cached_property
    def marks(self) -> tuple[Tokens, Tokens]:
        """Return the tokens that begin and end a text, none or one each."""
        begins = self.theirs.bos_token_id in self.theirs("")["input_ids"]
        ends = self.theirs.eos_token_id is not None
        return (
            np.array([self.theirs.bos_token_id] if begins else [], dtype=self.dtype),
            np.array([self.theirs.eos_token_id] if ends else [], dtype=self.dtype),
        )

    def conversation(self, messages: Sequence[Message]) -> LabelledTokens:
        """Return a conversation as the chat template writes it, token for token."""
        if MARKED in str(self.theirs.chat_template):
            found = self.apply_template(
                messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            learned = np.array(found["assistant_masks"], dtype=bool)
            return LabelledTokens(np.array(found["input_ids"], dtype=self.dtype), learned)
        return self.encode_parts(self.written(messages))

    def written(self, messages: Sequence[Message]) -> list[TextPiece]:
        """Split a conversation into parts by rendering it up to each answer and including it."""
        whole, parts, done = self.render(messages), [], 0
        for number, message in enumerate(messages):
            if message.role != ASSISTANT:
                continue
            before = self.render(messages[:number], add_generation_prompt=True)
            after = self.render(messages[: number + 1])
            if not (whole.startswith(before) and whole.startswith(after)):
                raise WrongRow(
                    f"has a message {number + 1} that the chat template changes once more "
                    "messages follow, so its tokens cannot be told apart; give the checkpoint a "
                    "template with {% generation %} marks"
                )
            parts.append(TextPiece(whole[done : len(before)], False))
            parts.append(TextPiece(whole[len(before) : len(after)], True))
            done = len(after)
        return [*parts, TextPiece(whole[done:], False)]

    def render(self, messages: Sequence[Message], **options: bool) -> str:
        text: str = self.apply_template(messages, tokenize=False, **options) if messages else ""
        return text

    def apply_template(self, messages: Sequence[Message], **options: bool) -> Any:
        try:
            return self.theirs.apply_chat_template([m._asdict() for m in messages], **options)
        except Exception as error:  # a template may raise any exception
            raise WrongRow(f"is refused by the chat template: {error}") from error

    def encode_parts(self, parts: Sequence[TextPiece]) -> LabelledTokens:
        """Encode all parts as one text; a token belongs to the part that contains its last
        character.

        Tokens may span the border of two parts.
        """
        text = "".join(part.text for part in parts)
        found = self.theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        last = np.array([end - 1 for _, end in found["offset_mapping"]], dtype=np.int64)
        ends = np.cumsum([len(part.text) for part in parts])
        learned = np.array([part.learned for part in parts] + [False])
        return LabelledTokens(
            np.array(found["input_ids"], dtype=self.dtype),
            learned[np.searchsorted(ends, last, "right")],
        )

    def decode(self, tokens: list[int]) -> str:
        text: str = self.theirs.decode(tokens)
        return text

    def stored(self) -> str:
        fields = {"tokenizer": "huggingface", "size": self.size, "files": self.files}
        return json.dumps(fields)


def load(files: dict[str, str]) -> Any:
    """Load transformers' tokenizer from the given files. Raises ValueError if they are damaged."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_text(content, encoding="utf-8")
        try:
            found = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # a damaged file may cause any exception
            raise ValueError(f"the checkpoint's tokenizer cannot be read: {error}") from error
    if not found.is_fast:
        raise ValueError(
            f"the checkpoint's tokenizer, {type(found).__name__}, does not report where its "
            "tokens begin; use a fast one, of the tokenizers library (use_fast=True)"
        )
    return found
