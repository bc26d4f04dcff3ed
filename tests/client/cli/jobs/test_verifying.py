"""`trainyard verify`: what people read, and what scripts can tell from its exit code."""

import json
from typing import Any

import pytest

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json, refused
from tests.client.scripted import JOB, Run


def with_verdict(verdict: str, **loss: Any) -> dict[str, Any]:
    return {**d.CERTIFICATE, "verdict": verdict, "loss": {**d.LOSS_DIFFERENCE, **loss}}


@pytest.mark.parametrize(
    ("certificate", "code", "words"),
    [
        (with_verdict("pass"), 0, ["same curve", "1.7e-07", "1e-06", "20 steps with one rank"]),
        (with_verdict("fail", largest=0.03), 1, ["not the same curve", "3.0e-02"]),
        (with_verdict("fail", largest=None, found=None), 1, ["not finite"]),
        (with_verdict("exempt", tolerance=None), 5, ["no verdict"]),
    ],
)
def test_the_exit_code_is_the_verdict(
    server: FakeServer, run: Run, certificate: dict[str, Any], code: int, words: list[str]
) -> None:
    server.answer(f"GET {JOB}", as_json({**d.ended(), "certificate": certificate}))
    shown = run("verify", d.JOB_ID)
    assert shown.exit_code == code, shown.output
    for word in [*words, "ddp: replicate 2", "float32 on cpu, torch 2.13.0"]:
        assert word in shown.stdout
    machine = run("verify", d.JOB_ID, "--json")
    assert (machine.exit_code, json.loads(machine.stdout)) == (code, certificate)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (d.job(), "has no certificate: its spec has no `verify`"),
        (d.job(spec={**d.SPEC, "verify": {"steps": 20}}), "comes after step 20"),
        (
            d.job(state="failed", spec={**d.SPEC, "verify": {"steps": 20}}),
            "trained its first 20 steps without a stop",
        ),
    ],
)
def test_without_a_certificate_it_says_why(
    server: FakeServer, run: Run, job: dict[str, Any], words: str
) -> None:
    server.answer(f"GET {JOB}", as_json(job))
    shown = run("verify", d.JOB_ID)
    assert shown.exit_code == 5
    assert words in shown.stdout
    machine = run("verify", d.JOB_ID, "--json")
    assert (machine.exit_code, json.loads(machine.stdout)) == (5, None)


def test_two_jobs_are_compared_by_the_server(server: FakeServer, run: Run) -> None:
    server.answer(f"GET {JOB}/comparison", as_json(d.COMPARISON))
    shown = run("verify", d.JOB_ID, "--against", "job_01k9othersghjkmnpqrstvwxyz")
    assert shown.exit_code == 0
    assert "400 steps with job_01k9othersghjkmnpqrstvwxyz" in shown.stdout
    assert server.asked[-1].query == {"with": ["job_01k9othersghjkmnpqrstvwxyz"]}


def test_jobs_that_cannot_be_compared_name_the_fields(server: FakeServer, run: Run) -> None:
    detail = "a and b are not the same training: they differ in training.seed."
    server.answer(f"GET {JOB}/comparison", refused(422, "not_comparable", detail))
    shown = run("verify", d.JOB_ID, "--against", "job_01k9othersghjkmnpqrstvwxyz")
    assert shown.exit_code == 2
    assert "differ in training.seed" in shown.stderr
