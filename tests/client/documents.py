"""Answers of the API as JSON. `test_contract.py` holds them against `api.schemas`."""

from typing import Any

Json = dict[str, Any]
JOB_ID = "job_01k9abcdefghjkmnpqrstvwxyz"
NOW = "2026-11-21T10:57:00+00:00"

PLAN: Json = {
    "strategy": "ddp",
    "layout": {"pipeline": 1, "replicate": 2, "shard": 1, "context": 1, "tensor": 1},
    "device": "cpu",
    "world_size": 2,
    "nodes": 1,
    "ranks_per_node": 2,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "global_batch_size": 8,
    "tokens_per_step": 1024,
    "parameters": 1_300_000,
    "memory": [
        {"name": "weights", "gib": 0.0048, "exact": True, "source": "parameters x 4 bytes"},
        {"name": "activations", "gib": 0.02, "exact": False, "source": "formula"},
    ],
    "needed_gib": 0.03,
    "capacity_gib": 7.2,
    "fits": True,
    "problems": [],
    "warnings": [],
    "result_class": "exact",
    "unit": "tokens",
}
SPEC: Json = {
    "name": "gpt-ddp",
    "model": {"name": "gpt", "layers": 4, "width": 160, "heads": 4},
    "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 128},
    "training": {
        "steps": 400,
        "global_batch_size": 8,
        "learning_rate": 0.002,
        "warmup_steps": 20,
        "schedule": "cosine",
        "max_grad_norm": 1.0,
        "seed": 1,
    },
    "parallelism": {"strategy": "ddp", "data_parallel_replicate_degree": 2},
    "precision": "float32",
    "checkpoint": {"every_steps": 200, "keep_last": 2},
    "resources": {"nodes": 1, "ranks_per_node": 2, "wall_time": "20min"},
}
RESULT: Json = {
    "finished": True,
    "step": 400,
    "loss_first": 5.56,
    "loss_last": 1.83,
    "eval_loss": 1.9,
    "eval_accuracy": None,
    "tokens_per_s": 12345.6,
    "wall_s": 33.2,
    "checkpoint": "step-000400",
    "sample": "class Foo:\n    def bar(self):\n        return 1\n",
    "reason": "finished",
}
LOSS_DIFFERENCE: Json = {
    "largest": 1.7e-07,
    "step": 12,
    "found": 3.1000005,
    "expected": 3.1,
    "tolerance": 1e-06,
}
CERTIFICATE: Json = {
    "verdict": "pass",
    "result_class": "exact",
    "steps": 20,
    "loss": LOSS_DIFFERENCE,
    "grad_norm": {**LOSS_DIFFERENCE, "largest": 2.3e-06, "step": 3, "tolerance": 1e-05},
    "precision": "float32",
    "strategy": "ddp",
    "layout": PLAN["layout"],
    "device": "cpu",
    "torch": "2.13.0",
}
COMPARISON: Json = {
    "job": JOB_ID,
    "other": "job_01k9other",
    "verdict": "pass",
    "result_class": "exact",
    "steps": 400,
    "loss": LOSS_DIFFERENCE,
    "grad_norm": LOSS_DIFFERENCE,
}
STUDY: Json = {
    "id": "study_01k9abcdefghjkmnpqrstvwxy",
    "name": "gpt-ddp",
    "user": "ada",
    "kind": "strong",
    "jobs": [
        {
            "job": f"job_01k9size{ranks}",
            "label": f"{ranks} rank{'s' if ranks > 1 else ''}",
            "ranks": ranks,
            "state": "succeeded",
            "reason": "Trained to the end.",
            "step": 400,
            "steps": 400,
        }
        for ranks in (1, 2)
    ],
    "is_final": True,
    "created_at": NOW,
}
MEASURED: Json = {
    "label": "1 rank",
    "ranks": 1,
    "global_batch_size": 8,
    "learning_rate": 0.002,
    "timed_steps": 389,
    "step_time_s": 0.128,
    "tokens_per_s": 8000.0,
    "speed_up": 1.0,
    "expected_speed_up": 1.0,
    "efficiency": 1.0,
    "serial_fraction": None,
    "bubble": None,
    "communication": 0.0,
    "judgement": "Computing limits: communication hardly costs anything.",
    "curve": None,
    "missing": None,
}
STUDY_REPORT: Json = {
    **STUDY,
    "summary": "2 ranks are 1.60 times as fast as 1 rank, an efficiency of 80 %.",
    "points": [
        MEASURED,
        {
            **MEASURED,
            "label": "2 ranks",
            "ranks": 2,
            "step_time_s": 0.08,
            "tokens_per_s": 12800.0,
            "speed_up": 1.6,
            "expected_speed_up": 2.0,
            "efficiency": 0.8,
            "serial_fraction": 0.25,
            "communication": 0.21,
            "judgement": "Communication is felt, but computing limits.",
            "curve": {
                name: COMPARISON[name]
                for name in ("verdict", "result_class", "steps", "loss", "grad_norm")
            },
        },
    ],
}
USER: Json = {
    "id": "user_01k9abcdefghjkmnpqrstvwxyz",
    "name": "ada",
    "role": "admin",
    "zone": "UTC",
    "disabled": False,
    "created_at": NOW,
}
TOKEN: Json = {
    "id": "token_01k9abcdefghjkmnpqrstvwxy",
    "name": "laptop",
    "created_at": NOW,
    "expires_at": "2027-02-19T10:57:00+00:00",
    "last_used_at": None,
    "revoked_at": None,
}
NEW_TOKEN: Json = {**TOKEN, "secret": "ty_secret", "user": USER}
LEASE: Json = {
    "id": "lease_01k9abcdefghjkmnpqrstvwxyz",
    "user": "ada",
    "node": "this-machine",
    "node_class": "cpu2",
    "kind": "booked",
    "state": "booked",
    "reason": "Booked.",
    "hold_start": "2026-11-21T14:00:00+00:00",
    "hold_end": "2026-11-21T16:00:00+00:00",
    "usable_end": "2026-11-21T15:55:00+00:00",
    "job": None,
    "created_at": NOW,
}
ME: Json = {"user": USER, "labs": ["nlp"], "queued": 1, "running": 2, "lease": LEASE}
NODE: Json = {
    "id": "node_01k9abcdefghjkmnpqrstvwxyz",
    "name": "this-machine",
    "node_class": "cpu2",
    "state": "ready",
    "reason": "Enrolled.",
    "hardware": {
        "class_name": "cpu2",
        "device": "cpu",
        "slots": 2,
        "memory_gib": 16.0,
        "model": None,
    },
    "inventory": {
        "hostname": "box",
        "cores": 2,
        "memory_gib": 16.0,
        "gpus": [],
        "slots": 2,
        "python": "3.11.9",
        "torch": "2.13.0",
    },
    "telemetry": {
        "cpu_pct": 42.0,
        "memory_used_gib": 3.5,
        "disk_free_gib": 40.0,
        "gpu_pct": [],
        "gpu_memory_used_gib": [],
    },
    "reachable": True,
    "last_seen_at": NOW,
    "unreachable_since": None,
    "user": None,
    "job": None,
    "free_at": None,
}
DATASET: Json = {
    "id": "dataset_01k9abcdefghjkmnpqrstvwx",
    "name": "my-text",
    "built_in": False,
    "format": "text",
    "size": 2048,
    "lines": 10,
    "characters": 2000,
    "images": None,
    "warnings": [],
    "created_at": NOW,
}
MODEL: Json = {
    "id": "model_01k9abcdefghjkmnpqrstvwx",
    "name": "tiny",
    "architecture": "Qwen2ForCausalLM",
    "parameters": 1_234_567,
    "size": 4096,
    "files": [{"path": "config.json", "size": 10, "sha256": "ab" * 32}],
    "has_tokenizer": True,
    "model": {"name": "llama", "attention_bias": True, "norm_epsilon": 1e-6, "checkpoint": "tiny"},
    "vocabulary_size": 151_936,
    "longest_sequence": 4096,
    "created_at": NOW,
}
ATTEMPT: Json = {
    "id": "attempt_01k9abcdefghjkmnpqrstvwx",
    "epoch": 1,
    "node": "this-machine",
    "lease": LEASE["id"],
    "state": "exited",
    "outcome": "killed",
    "reason": "Rank 1 on this-machine was killed by signal 9 (SIGKILL) at step 120.",
    "launcher": "warm",
    "culprit_rank": 1,
    "signal": 9,
    "exit_code": -9,
    "last_lines": ["step 119", "step 120"],
    "resumed_from_step": None,
    "assigned_at": NOW,
    "started_at": NOW,
    "first_step_at": NOW,
    "ended_at": NOW,
}
SERIES: Json = {
    "key": "loss",
    "rank": 0,
    "steps": [1, 200, 400],
    "values": [5.5, None, 1.8],
    "min": [],
    "max": [],
    "points": 400,
}
METRICS: Json = {"job": JOB_ID, "keys": ["loss", "lr"], "series": [SERIES]}
LOG_LINE: Json = {"epoch": 1, "rank": 0, "stream": "stdout", "line": 0, "text": "step 1"}
LOGS: Json = {"lines": [LOG_LINE], "cursor": "c1", "has_more": False, "ranks": [0, 1]}
CHECKPOINT: Json = {
    "id": "checkpoint_01k9abcdefghjkmnpqrst",
    "epoch": 1,
    "step": 400,
    "size": 15_000_000,
    "files": 3,
    "created_at": NOW,
}
ARTIFACT: Json = {
    "id": "artifact_01k9abcdefghjkmnpqrstvw",
    "epoch": 1,
    "path": "sample.txt",
    "size": 5,
    "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",  # of "hello"
    "created_at": NOW,
}
ENROLMENT: Json = {
    "token": "once-only-token-abcdef",
    "command": "trainyard worker --enrol once-only-token-abcdef",
    "expires_at": NOW,
}
AUDIT: Json = {
    "id": 7,
    "at": NOW,
    "epoch": None,
    "kind": "node.drain",
    "from_state": None,
    "to_state": None,
    "reason_code": "",
    "message": "Drained.",
    "actor": "user_1",
    "subject": NODE["id"],
    "details": {"name": "this-machine"},
}
AVAILABILITY: Json = {
    "node_class": "cpu2",
    "nodes": 2,
    "hours": [{"start": NOW, "free": 1, "nodes": ["this-machine"]}],
}
LINK: Json = {"url": "http://x/login?secret=s", "secret": "s", "expires_at": NOW}
TRAFFIC: Json = {
    "axis": "replicate",
    "ranks": 2,
    "num_bytes": 5_200_000,
    "crosses_nodes": False,
    "overlaps": True,
    "what": "gradients summed, once",
}
STEP_TIME: Json = {
    "expected_s": 0.5,
    "low_s": 0.4,
    "high_s": 0.9,
    "compute_s": 0.45,
    "traffic_s": 0.05,
    "basis": "a data sheet",
}
COST: Json = {
    "flops_per_token": 8_000_000,
    "flops_per_step": 8_192_000_000,
    "convention": "PaLM",
    "traffic": [TRAFFIC],
    "bubble": 0.2,
    "step_time": STEP_TIME,
    "tokens_per_s": 2048.0,
    "total_s": 200.0,
    "gpu_hours": 0.11,
}
ADVICE: Json = {
    "title": "weights shared out (FSDP)",
    "change": {"parallelism": {"strategy": "fsdp"}},
    "costs": "1.5 times the traffic",
    "fits": True,
    "needed_gib": 3.5,
    "slow_down": 1.1,
    "result_class": "exact",
    "changes_training": False,
}
SEAT: Json = {
    "rank": 1,
    "pipeline": 1,
    "replicate": 0,
    "shard": 0,
    "context": 0,
    "tensor": 0,
    "node": 0,
    "slot": 1,
}
TIME_SLOT: Json = {
    "rank": 1,
    "kind": "forward",
    "stage": 1,
    "micro_batch": 0,
    "start": 1,
    "end": 2,
}
CLASS_PLAN: Json = {
    "node_class": "cpu2",
    "plan": {**PLAN, "cost": COST, "advice": [ADVICE]},
    "ready_nodes": 1,
    "seats": [{**SEAT, "rank": 0, "pipeline": 0, "slot": 0}, SEAT],
    "timeline": [TIME_SLOT],
}
PLAN_ANSWER: Json = {
    "plans": [CLASS_PLAN],
    "chosen": "cpu2",
    "predicted_start": NOW,
    "reason": "Fits on cpu2 and starts at once.",
}


def job(**changes: Any) -> Json:
    """A queued job, changed."""
    return {
        "id": JOB_ID,
        "name": "gpt-ddp",
        "user": "ada",
        "state": "queued",
        "desired": "run",
        "reason_code": "waits",
        "reason": "Waits for the scheduler.",
        "predicted_start": NOW,
        "spec": SPEC,
        "plan": PLAN,
        "lease": None,
        "cloned_from": None,
        "study": None,
        "epoch": 0,
        "node": None,
        "steps": 400,
        "step": 0,
        "loss": None,
        "tokens_per_s": None,
        "stops_at": None,
        "wall_time_s": 1200,
        "used_s": 0,
        "certificate": None,
        "result": None,
        "created_at": NOW,
        "started_at": None,
        "finished_at": None,
        **changes,
    }


def running(step: int, loss: float) -> Json:
    """A running job."""
    return job(
        state="running",
        reason_code="running",
        reason="Running on this-machine.",
        node="this-machine",
        epoch=1,
        step=step,
        loss=loss,
        tokens_per_s=10240.0,
        started_at=NOW,
    )


def ended(state: str = "succeeded", **changes: Any) -> Json:
    """A job that has ended."""
    return job(
        state=state,
        reason_code=state,
        reason="Trained all 400 steps." if state == "succeeded" else "Rank 1 was killed.",
        epoch=1,
        step=400,
        loss=1.83,
        certificate=CERTIFICATE,
        result=RESULT,
        started_at=NOW,
        finished_at="2026-11-21T10:57:41+00:00",
        **changes,
    )


def event(number: int, message: str, kind: str = "state") -> Json:
    """Something that happened."""
    return {
        "id": number,
        "at": NOW,
        "epoch": 1,
        "kind": kind,
        "from_state": "queued",
        "to_state": "running",
        "reason_code": "started",
        "message": message,
        "actor": "scheduler",
    }
