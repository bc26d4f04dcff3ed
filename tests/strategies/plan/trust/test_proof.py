"""Proofs: their hash, and what has changed on a node since."""

import hashlib
import json
from datetime import UTC, datetime

import pytest

from strategies.plan.trust.proof import (
    CheckName,
    CheckResult,
    Machine,
    NotAProof,
    Proof,
    changes_since,
    document,
    read_document,
)

MACHINE = Machine(
    device="cuda", ranks=2, gpus=["A100", "A100"], driver="550", torch="2.13.0", python="3", cores=8
)
PROOF = Proof(
    trainyard="0.2.0",
    proven_at=datetime(2026, 11, 23, 20, tzinfo=UTC),
    seconds=600,
    machine=MACHINE,
    checks=[
        CheckResult(name=CheckName.INVENTORY, verdict="passed", sentence="ö", seconds=1),
        CheckResult(name=CheckName.ZERO, verdict="failed", sentence="b", seconds=2),
        CheckResult(name=CheckName.SPEED, verdict="skipped", sentence="c", seconds=0),
    ],
)


def test_a_proof_says_what_failed_and_what_was_skipped() -> None:
    assert PROOF.sentence == "1 of 3 checks passed; failed: zero; skipped: speed."


def test_the_hash_is_that_of_the_content_with_sorted_keys_and_no_spaces() -> None:
    found = json.loads(document(PROOF))
    text = json.dumps(found["content"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert found["sha256"] == hashlib.sha256(text.encode()).hexdigest() == PROOF.sha256
    assert read_document(document(PROOF)) == PROOF


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"sha256": "0", "content": {}}'])
def test_other_documents_are_no_proofs(text: str) -> None:
    with pytest.raises(NotAProof):
        read_document(text)


def test_a_changed_proof_is_told_from_the_one_that_was_written() -> None:
    found = json.loads(document(PROOF))
    found["content"]["checks"][1]["verdict"] = "passed"
    with pytest.raises(NotAProof, match="was changed"):
        read_document(json.dumps(found))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, []),
        ({"driver": "580"}, ["proven with driver 550, runs 580 now"]),
        ({"driver": ""}, []),  # an older worker does not tell
        ({"torch": "2.14.0"}, ["proven with torch 2.13.0, has 2.14.0 now"]),
        ({"gpus": ["A100"]}, ["proven with 2 x A100, has 1 x A100 now"]),
    ],
)
def test_changes_since_a_proof_are_told(now: dict[str, object], said: list[str]) -> None:
    same: dict[str, object] = {"driver": "550", "torch": "2.13.0", "gpus": ["A100", "A100"]}
    assert changes_since(MACHINE, **{**same, **now}) == said  # type: ignore[arg-type]
