"""Rules about the fields that a tokenizer and packing need."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.shapes import BYTES


def vocabulary_is_known(resolved: ResolvedSpec) -> Iterator[Problem]:
    spec = resolved.spec.data
    if resolved.spec.model.name.reads_images:
        return
    if spec.tokenizer == "characters" and spec.vocabulary_size is None:
        yield Problem(
            code="vocabulary_missing",
            param="data.vocabulary_size",
            message="the planner does not read the text, so give the number of different "
            "characters (tiny Shakespeare: 65); a larger number is fine",
        )
    has_checkpoint = resolved.spec.model.checkpoint is not None
    if spec.tokenizer_name is not None and (has_checkpoint or spec.tokenizer != "huggingface"):
        yield Problem(
            code="tokenizer_unused",
            param="data.tokenizer_name",
            message="a checkpoint brings its own tokenizer; leave tokenizer_name out"
            if has_checkpoint
            else f"it is for tokenizer huggingface, not {spec.tokenizer}; change one of them",
        )
    if spec.tokenizer == "huggingface" and not has_checkpoint and spec.tokenizer_name is None:
        yield Problem(
            code="needs_checkpoint",
            param="data.tokenizer",
            message="tokenizer huggingface needs a checkpoint, but model.checkpoint names none; "
            "name one, or one of your own in data.tokenizer_name, or take bytes or characters",
        )
    if spec.tokenizer == "huggingface" and spec.vocabulary_size is None:
        yield Problem(
            code="vocabulary_missing",
            param="data.vocabulary_size",
            message="the planner does not read the checkpoint, so give its vocab_size (see "
            "its config.json, or `trainyard models show`)",
        )
    if spec.tokenizer == "bytes" and spec.vocabulary_size not in (None, BYTES):
        yield Problem(
            code="vocabulary_fixed",
            param="data.vocabulary_size",
            message=f"tokenizer bytes has a vocabulary of {BYTES}, not "
            f"{spec.vocabulary_size}; leave it out",
        )


def packed_samples_have_labels(resolved: ResolvedSpec) -> Iterator[Problem]:
    spec = resolved.spec.data
    if spec.packing and spec.sequence_length == 1:
        yield Problem(
            code="out_of_range",
            param="data.sequence_length",
            message="a packed sample of 1 token can be the end of a document, which leaves nothing "
            "to predict; take at least 2",
        )
