"""Rules about the fields that a tokenizer and packing need."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.shapes import BYTES
from strategies.plan.spec import Sampling


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


def mixture_is_of_one_kind(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse a mixture whose shares leave nothing, that names a dataset twice, or that mixes what
    has no common tokens."""
    spec = resolved.spec.data
    if not spec.mixture:
        return
    total = sum(part.share for part in spec.mixture)
    if total > 1 - 1e-9:
        yield Problem(
            code="out_of_range",
            param="data.mixture",
            message=f"the shares are {total:g} together, so nothing is left for {spec.dataset}; "
            "make them less than 1",
        )
    names = [spec.dataset, *(part.dataset for part in spec.mixture)]
    for number, part in enumerate(spec.mixture):
        if part.dataset in names[: number + 1]:
            yield Problem(
                code="named_twice",
                param=f"data.mixture.{number}.dataset",
                message=f"{part.dataset} is there twice; give it one share",
            )
    if resolved.spec.model.name.reads_images:
        yield Problem(
            code="text_only",
            param="data.mixture",
            message=f"{resolved.spec.model.name} reads images, which are not mixed; leave it out",
        )
    if spec.tokenizer == "characters":
        yield Problem(
            code="no_common_tokens",
            param="data.tokenizer",
            message="each dataset has characters of its own; take bytes or huggingface to mix them",
        )


def stream_is_possible(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse to stream what has to be known as a whole."""
    spec = resolved.spec.data
    if spec.sampling is not Sampling.STREAMED:
        return
    if resolved.spec.model.name.reads_images:
        yield Problem(
            code="text_only",
            param="data.sampling",
            message=f"{resolved.spec.model.name} reads images, which are not streamed; take global",
        )
    if spec.tokenizer == "characters":
        yield Problem(
            code="not_streamed",
            param="data.sampling",
            message="the tokenizer characters reads the whole text first; take bytes or "
            "huggingface to stream it, or sampling global",
        )
    if spec.mixture:
        yield Problem(
            code="not_streamed",
            param="data.sampling",
            message="shares of a mixture need the sizes of all datasets; take sampling global",
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
