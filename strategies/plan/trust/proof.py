"""Proof of a node: the results of `trainyard prove`, named by the hash of their content.

Pure and torch-free.
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strategies.plan.hardware import Constants

FORMAT: Literal["trainyard-proof/1"] = "trainyard-proof/1"
Verdict = Literal["passed", "failed", "skipped"]


class CheckName(StrEnum):
    """Checks of a node, in the order in which they run."""

    INVENTORY = "inventory"
    COLLECTIVES = "collectives"
    EQUALITY = "equality"
    PRECISION = "precision"
    ATTENTION = "attention"
    CONTEXT = "context"
    SCHEDULES = "schedules"
    ZERO = "zero"
    COMPILE = "compile"
    MEMORY = "memory"
    ADAPTERS = "adapters"
    OUT_OF_MEMORY = "out-of-memory"
    STUCK_RANK = "stuck-rank"
    CHECKPOINT = "checkpoint"
    HAND_OVER = "hand-over"
    SPEED = "speed"


class ProofPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CheckResult(ProofPart):
    """Result of one check."""

    name: CheckName
    verdict: Verdict
    sentence: str = Field(max_length=2000)
    """Finding, or the reason of a skipped check."""
    seconds: float = Field(ge=0)
    figures: dict[str, float] = Field(default={}, max_length=200)
    """Measured numbers, by a name that ends with the unit if there is one."""


class Machine(ProofPart):
    """Hardware and software that a proof is about."""

    device: Literal["cpu", "cuda"]
    ranks: int = Field(ge=1, le=1024)
    """Number of GPUs, or of CPU slots, that took part."""
    gpus: list[str] = Field(max_length=1024)
    """Name of each GPU."""
    driver: str = Field(max_length=100)
    """Version of the GPUs' driver; empty without GPUs."""
    torch: str = Field(max_length=100)
    python: str = Field(max_length=100)
    cores: int = Field(ge=1)


class Proof(ProofPart):
    """Results of all checks of one node that were asked for."""

    format: Literal["trainyard-proof/1"] = FORMAT
    trainyard: str = Field(max_length=100)
    """Version of the platform."""
    proven_at: datetime
    seconds: float = Field(ge=0)
    machine: Machine
    checks: list[CheckResult] = Field(min_length=1, max_length=len(CheckName))
    constants: Constants | None = None
    """Numbers that the planner may use for nodes of this class; None on CPU slots."""

    def named(self, verdict: Verdict) -> list[CheckName]:
        """Return the checks with this verdict."""
        return [check.name for check in self.checks if check.verdict == verdict]

    @property
    def sha256(self) -> str:
        """Hash of the canonical text."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()

    @property
    def sentence(self) -> str:
        """Result in a sentence."""
        failed, skipped = self.named("failed"), self.named("skipped")
        parts = [f"{len(self.named('passed'))} of {len(self.checks)} checks passed"]
        if failed:
            parts.append(f"failed: {', '.join(failed)}")
        if skipped:
            parts.append(f"skipped: {', '.join(skipped)}")
        return f"{'; '.join(parts)}."


class NotAProof(ValueError):
    """Document that is not a proof, or whose content has another hash than it says."""


def canonical(proof: Proof) -> str:
    """Return the content as JSON with sorted keys and no spaces: the text that is hashed."""
    content = proof.model_dump(mode="json")
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def document(proof: Proof) -> str:
    """Return the proof as it is published: one line of JSON with `sha256` and `content`."""
    return f'{{"sha256":"{proof.sha256}","content":{canonical(proof)}}}\n'


def read_document(text: str | bytes) -> Proof:
    """Return the proof of a published document.

    Raises NotAProof if it is none, or was changed since it was written.
    """
    try:
        found = json.loads(text)
        told, proof = found["sha256"], Proof.model_validate(found["content"])
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise NotAProof(
            "this is not a proof: it needs sha256 and content as `prove` wrote them"
        ) from error
    if told != proof.sha256:
        raise NotAProof(
            f"this proof was changed: it says SHA-256 {told}, but its content has {proof.sha256}"
        )
    return proof


def changes_since(machine: Machine, *, driver: str, torch: str, gpus: Sequence[str]) -> list[str]:
    """Return sentences about a node's software and hardware that differ from the proven ones."""
    found = []
    if machine.driver != driver and driver:
        found.append(f"proven with driver {machine.driver or 'none'}, runs {driver} now")
    if machine.torch != torch:
        found.append(f"proven with torch {machine.torch}, has {torch or 'none'} now")
    if machine.gpus != list(gpus):
        found.append(f"proven with {told_gpus(machine.gpus)}, has {told_gpus(gpus)} now")
    return found


def told_gpus(gpus: Sequence[str]) -> str:
    """Return `4 x A100`; `no GPU` for none."""
    counted = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)]
    return ", ".join(counted) or "no GPU"
