"""/v1/tokenizers: people's own tokenizers, to pretrain with."""

from fastapi import APIRouter, Response

from api.files import tokenizers
from api.files.schemas import NewTokenizer, TokenizerOfJob, TokenizerView
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText

router = APIRouter(prefix="/v1/tokenizers", tags=["tokenizers"])


@router.post("/uploaded", status_code=201, summary="Make a tokenizer of uploads")
def make_tokenizer(
    body: NewTokenizer, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> TokenizerView:
    """Make a tokenizer of a tokenizer.json, and the files beside it, that have arrived by
    `/v1/uploads`."""
    sent = keyed(person, key, "/v1/tokenizers/uploaded", body.model_dump_json().encode())
    return process.transact(tokenizers.make_tokenizer, process, person, body, sent)


@router.post("/promoted", status_code=201, summary="Take a tokenizer from a job")
def promote_tokenizer(
    body: TokenizerOfJob, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> TokenizerView:
    """Make a tokenizer of the tokenizer.json among a job's artifacts; nothing is copied."""
    sent = keyed(person, key, "/v1/tokenizers/promoted", body.model_dump_json().encode())
    return process.transact(tokenizers.take_from_job, process, person, body, sent)


@router.get("", summary="List tokenizers")
def list_tokenizers(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[TokenizerView]:
    """Return your tokenizers and those shared with you, newest first."""
    with process.read() as session:
        return tokenizers.list_tokenizers(session, person, limit=limit, after=after)


@router.get("/{tokenizer_id}", summary="Get a tokenizer")
def get_tokenizer(tokenizer_id: PlainText, person: SignedIn, process: ProcessDep) -> TokenizerView:
    """Return a tokenizer that you may read: by id, or one of your own by name."""
    with process.read() as session:
        return tokenizers.show_tokenizer(session, tokenizer_id, person)


@router.delete("/{tokenizer_id}", status_code=204, summary="Delete a tokenizer")
def delete_tokenizer(tokenizer_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a tokenizer. Its name is free again at once; jobs submitted with it can still run."""
    process.transact(tokenizers.delete_tokenizer, tokenizer_id, person)
    return Response(status_code=204)
