"""Answers of the API as JSON. `test_contract.py` holds them against the API's schemas."""

from typing import Any

from core.states import TERMINAL_JOB

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
    "peak_gib": [0.21, 0.2],
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
    "judgement": "Computing is the bottleneck: communication costs hardly anything.",
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
            "judgement": "Communication costs some time, but computing is the bottleneck.",
            "curve": {
                name: COMPARISON[name]
                for name in ("verdict", "result_class", "steps", "loss", "grad_norm")
            },
        },
    ],
}
AGENDA_JOB: Json = {
    "position": 1,
    "job": "job_01k9lab1",
    "name": "one",
    "nodes": 1,
    "slots": 2,
    "wall_time_s": 1200,
    "expected_s": None,
    "standing": "running",
    "reason": "Training.",
    "step": 100,
    "steps": 400,
    "planned_start": NOW,
    "planned_end": "2026-11-21T11:17:00+00:00",
    "start": NOW,
    "end": "2026-11-21T11:17:00+00:00",
    "likely_end": "2026-11-21T11:05:00+00:00",
    "late_s": 0,
    "fits": True,
}
AGENDA_PLAN: Json = {
    "name": "lab-1",
    "lease": "lease_01k9abcdefghjkmnpqrstvwxyz",
    "leases": ["lease_01k9abcdefghjkmnpqrstvwxyz"],
    "node_class": "cpu2",
    "nodes": 1,
    "slots": 2,
    "side_by_side": False,
    "on_failure": "go_on",
    "rules": "One after the other; if one fails, the others go on.",
    "begins": NOW,
    "usable_end": "2026-11-21T11:55:00+00:00",
    "fits": True,
    "spare_s": 1020,
    "likely_spare_s": None,
    "first_cut": None,
    "summary": "Fits with 17min to spare, even if every job uses up its wall time.",
    "jobs": [
        AGENDA_JOB,
        {
            **AGENDA_JOB,
            "position": 2,
            "job": "job_01k9lab2",
            "name": "two",
            "standing": "waiting",
            "step": 0,
            "planned_start": "2026-11-21T11:18:00+00:00",
            "planned_end": "2026-11-21T11:38:00+00:00",
            "start": "2026-11-21T11:18:00+00:00",
            "end": "2026-11-21T11:38:00+00:00",
            "likely_end": None,
        },
    ],
}
AGENDA: Json = {
    **AGENDA_PLAN,
    "id": "agenda_01k9abcdefghjkmnpqrstvwxyz",
    "user": "ada",
    "node": "this-machine",
    "is_final": False,
    "created_at": NOW,
}
ENDED_AGENDA: Json = {
    **AGENDA,
    "summary": "Over: 2 done.",
    "is_final": True,
    "jobs": [{**job, "standing": "done", "step": 400} for job in AGENDA["jobs"]],
}
USER: Json = {
    "id": "user_01k9abcdefghjkmnpqrstvwxyz",
    "name": "ada",
    "role": "admin",
    "zone": "UTC",
    "email": "ada@example.org",
    "attributes": {"cohort": "even"},
    "disabled": False,
    "created_at": NOW,
}
LAB: Json = {
    "id": "lab_01k9abcdefghjkmnpqrstvwxyz",
    "name": "vision",
    "weight": 2.0,
    "groups": ["course-s25"],
    "members": ["ada", "bob"],
    "leads": ["ada"],
    "created_at": NOW,
}
INVITE: Json = {
    "id": "invite_01k9abcdefghjkmnpqrstvwxyz",
    "lab": "vision",
    "email": "cy@example.org",
    "attributes": {},
    "invited_by": "ada",
    "state": "open",
    "used_by": None,
    "created_at": NOW,
    "expires_at": "2026-11-28T10:57:00+00:00",
}
INVITE_MADE: Json = {
    **INVITE,
    "url": "http://127.0.0.1:8471/invite?secret=ty_abcdefghijklmnopqrstuvwxyz",
    "secret": "ty_abcdefghijklmnopqrstuvwxyz",
}
GRANT: Json = {
    "id": "grant_01k9abcdefghjkmnpqrstvwxyz",
    "user": "bob",
    "rule": "quota_main",
    "extra": 1,
    "starts_at": NOW,
    "ends_at": "2026-11-28T10:57:00+00:00",
    "granted_by": "ada",
    "why": "Was ill last week.",
    "created_at": NOW,
    "revoked_at": None,
}
WINDOW: Json = {
    "id": "window_01k9abcdefghjkmnpqrstvwxyz",
    "policy": "course-unit-4",
    "pools": ["long"],
    "starts_at": NOW,
    "ends_at": "2026-11-28T10:57:00+00:00",
    "opens_at": None,
    "from_document": True,
}
BANDS: Json = {
    "policy": "course-unit-4",
    "version": 2,
    "zone": "America/New_York",
    "nodes": ["north-01"],
    "bands": [{"name": "night", "starts_at": NOW, "ends_at": "2026-11-28T10:57:00+00:00"}],
    "windows": None,
}
POLICY: Json = {
    "id": "course-unit-4",
    "version": 2,
    "active": True,
    "zone": "America/New_York",
    "sha256": "ab" * 32,
    "applied_by": "ada",
    "applied_at": NOW,
}
POLICY_TEXT: Json = {**POLICY, "document": "policy: {id: course-unit-4}\n", "windows": [WINDOW]}
AFFECTED_LEASE: Json = {
    "id": "lease_01k9abcdefghjkmnpqrstvwxyz",
    "user": "bob",
    "node": "north-01",
    "hold_start": NOW,
    "hold_end": "2026-11-21T13:00:00+00:00",
    "codes": ["outside_window"],
    "message": "It would lie outside the windows of north-01.",
}
POLICY_PLAN: Json = {
    "id": "course-unit-4",
    "version": 2,
    "replaces": 1,
    "applied": False,
    "changes": ["grid.horizon_days: 14 instead of 21."],
    "advice": ["pools.long: there is no node 307G3Q3 here."],
    "in_flight": "grandfather",
    "refused": [AFFECTED_LEASE],
    "num_refused": 1,
    "num_cancelled": 0,
}
WINDOW_PLAN: Json = {
    "window": WINDOW,
    "orphans": [AFFECTED_LEASE],
    "hash": "cd" * 32,
    "applied": False,
    "num_cancelled": 0,
}
IMPORT: Json = {
    "dry_run": False,
    "added": 1,
    "changed": 0,
    "same": 0,
    "labs": ["vision"],
    "rows": [
        {
            "line": 2,
            "name": "cy",
            "action": "add",
            "changes": [],
            "password_link": "http://127.0.0.1:8471/new-password?secret=ty_abc",
        }
    ],
}
MOVE: Json = {"user": USER, "from_lab": "vision", "to_lab": "speech", "leases": []}
CLEANUP: Json = {
    "id": "clean_01k9abcdefghjkmnpqrstvwxyz",
    "state": "preview",
    "selector": {
        "wrong": ["over_quota"],
        "user": None,
        "lab": None,
        "node": None,
        "tag": None,
        "starts_from": None,
        "starts_before": None,
        "include_active": False,
    },
    "reason": "Unit 4 is over.",
    "hash": "41c8" * 16,
    "made_by": "ada",
    "created_at": NOW,
    "expires_at": "2026-11-21T11:07:00+00:00",
    "applied_at": None,
    "undone_at": None,
    "undo_until": None,
    "removed": 1,
    "spared": 0,
    "skipped": 0,
    "freed_node_hours": 3,
    "freed_gpu_hours": 6,
    "refunded_hours": 0,
    "owners": 1,
    "rows": [
        {
            "lease": "lease_01k9abcdefghjkmnpqrstvwxyz",
            "user": "bob",
            "node": "this-machine",
            "hold_start": "2026-11-22T10:00:00+00:00",
            "hold_end": "2026-11-22T13:00:00+00:00",
            "hours": 3,
            "state": "booked",
            "code": "over_quota",
            "rule": "quota_main",
            "message": "Two blocks are booked already.",
            "refund_hours": 0,
            "result": "planned",
            "outcome": "",
            "restored_as": None,
        }
    ],
}
NOTICE: Json = {
    "id": 7,
    "kind": "lease_ending",
    "title": "Your lease ends soon",
    "message": "Your lease ends in 15 minutes.",
    "subject": "lease_01k9abcdefghjkmnpqrstvwxyz",
    "channel": "mail",
    "state": "waiting",
    "attempts": 1,
    "next_attempt_at": NOW,
    "error": "The mail server said: 450 busy",
    "created_at": NOW,
    "sent_at": None,
}
CHOICES: Json = {
    "every": "digest",
    "kinds": {"block_offered": "mail"},
    "known_kinds": ["block_offered", "lease_ending"],
    "email": "ada@example.org",
    "webhook": None,
    "digest_at": "08:00",
    "zone": "UTC",
}
WEBHOOK: Json = {"url": "https://example.org/hook", "secret": "ty_abcdefghijklmnopqrstuvwxyz"}
USAGE: Json = {
    "object": "usage",
    "by": "user",
    "per": "week",
    "start": "2026-10-24T10:57:00+00:00",
    "end": NOW,
    "zone": "UTC",
    "rows": [
        {
            "period": "2026-11-16",
            "name": "ada",
            "booked_hours": 8.0,
            "used_hours": 6.0,
            "useful_hours": 4.0,
        }
    ],
    "total": [
        {
            "period": "2026-11-16",
            "name": "ada",
            "booked_hours": 8.0,
            "used_hours": 6.0,
            "useful_hours": 4.0,
        }
    ],
}
QUOTAS: Json = {
    "user": "ada",
    "quotas": [
        {
            "policy": "course",
            "version": 3,
            "nodes": ["this-machine"],
            "window_end": "2026-11-28T10:00:00+00:00",
            "left": [
                {
                    "quota": "main",
                    "alternative": "one-long",
                    "text": "one 3-hour block",
                    "by_swap": False,
                }
            ],
        }
    ],
}
TOKEN: Json = {
    "id": "token_01k9abcdefghjkmnpqrstvwxy",
    "name": "laptop",
    "scopes": ["jobs"],
    "created_at": NOW,
    "expires_at": "2027-02-19T10:57:00+00:00",
    "last_used_at": None,
    "revoked_at": None,
}
SESSION: Json = {
    "id": "token_01k9sessionghjkmnpqrstvwxy",
    "name": "Firefox on Linux, 10.0.0.7",
    "is_this_one": True,
    "created_at": NOW,
    "expires_at": "2026-11-22T10:57:00+00:00",
    "last_used_at": None,
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
    "jobs": [],
    "together": None,
    "counts": True,
    "charged_hours": 3,
    "settled_as": "",
    "charge": {"quota": "main", "hours": 2},
    "policy": "default",
    "policy_version": 0,
    "protected": False,
    "unusable_s": 0,
    "created_at": NOW,
}
OFFER: Json = {
    "id": "offer_01k9abcdefghjkmnpqrstvwxyz",
    "node": "this-machine",
    "hold_start": "2026-11-21T14:00:00+00:00",
    "hold_end": "2026-11-21T16:00:00+00:00",
    "state": "open",
    "lease": None,
    "expires_at": "2026-11-21T12:10:00+00:00",
}
WAIT: Json = {
    "id": "wait_01k9abcdefghjkmnpqrstvwxyz",
    "user": "ada",
    "node_class": "cpu2",
    "node": None,
    "first_start": "2026-11-21T14:00:00+00:00",
    "last_start": "2026-11-21T18:00:00+00:00",
    "hours": 2,
    "priority": False,
    "state": "offered",
    "reason": "An offer is open.",
    "ahead": 0,
    "offer": OFFER,
    "created_at": NOW,
}
DISPLACED: Json = {
    "lease": "lease_01k9abcdefghjkmnpqrstvwxyz",
    "user": "ada",
    "node": "this-machine",
    "hold_start": "2026-11-21T14:00:00+00:00",
    "hold_end": "2026-11-21T16:00:00+00:00",
    "act": "move",
    "to_node": "other",
    "result": "",
}
OCCURRENCE: Json = {
    "node": "this-machine",
    "start": "2026-11-21T14:00:00+00:00",
    "end": "2026-11-21T16:00:00+00:00",
    "held": True,
}
MAINTENANCE: Json = {
    "id": "maint_01k9abcdefghjkmnpqrstvwxyz",
    "why": "New disks.",
    "rule": "FREQ=WEEKLY;COUNT=2",
    "zone": "UTC",
    "hours": 2,
    "occurrences": [OCCURRENCE],
    "displaced": [DISPLACED],
    "plan": "0123456789abcdef",
    "created_at": NOW,
    "cancelled_at": None,
}
FEED: Json = {
    "id": "feed_01k9abcdefghjkmnpqrstvwxyz",
    "node": None,
    "url": "http://x/v1/leases/calendar.ics?token=s",
    "created_at": NOW,
    "last_used_at": None,
    "revoked_at": None,
}
REASON: Json = {
    "code": "quota_main",
    "param": "hours",
    "message": "You have used 3 of 3 hours.",
    "numbers": {"used": 3, "limit": 3},
}
LEFT: Json = {"quota": "main", "alternative": "two-short", "text": "one block", "by_swap": False}
NODE_VERDICT: Json = {
    "node": "this-machine",
    "node_class": "cpu2",
    "ok": False,
    "hold_start": "2026-11-21T14:00:00+00:00",
    "hold_end": "2026-11-21T16:00:00+00:00",
    "reasons": [REASON],
    "warnings": [],
    "charge": {"quota": None, "hours": 2},
    "left": [LEFT],
    "next_starts": ["2026-11-21T17:00:00+00:00"],
    "policy": "default",
    "policy_version": 0,
}
BLOCK_VERDICT: Json = {
    "ok": False,
    "can_wait": True,
    "chosen": [],
    "hold_start": "2026-11-21T14:00:00+00:00",
    "hold_end": "2026-11-21T16:00:00+00:00",
    "nodes": [NODE_VERDICT],
}
ME: Json = {"user": USER, "labs": ["nlp"], "queued": 1, "running": 2, "lease": LEASE}
UNSAFE_SETTING: Json = {
    "setting": "TRAINYARD_REDIS_URL",
    "level": "danger",
    "found": "The broker on redis has no password, or one that is easy to guess.",
    "todo": "Set a random one with requirepass.",
}
READ_ONLY: Json = {"read_only": True, "reason": "Backup.", "until": "2026-11-21T12:30:00Z"}
STORAGE: Json = {
    "used": 2_147_483_648,
    "by_kind": {"checkpoints": 2_000_000_000, "artifacts": 147_483_648},
    "limits": [{"name": "ada", "used": 2_147_483_648, "limit": 2_500_000_000}],
    "warnings": ["ada holds 2.0 GiB of 2.3 GiB."],
    "keep_days": {"logs": 180, "metrics": 730, "checkpoints": 180, "artifacts": 0},
}
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
    "jobs": [],
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
PREFLIGHT: Json = {
    "seconds": 0.041,
    "device": "cpu",
    "backend": "gloo",
    "torch": "2.13.0",
    "ranks": 2,
    "checks": [
        {
            "check": "all_reduce (sum, float32, 16 KiB)",
            "right": True,
            "ms": 0.9,
            "bus_gb_per_s": 0.018,
            "slowest_rank": 1,
        }
    ],
    "findings": [],
}
ATTEMPT: Json = {
    "id": "attempt_01k9abcdefghjkmnpqrstvwx",
    "epoch": 1,
    "node": "this-machine",
    "lease": LEASE["id"],
    "nodes": [
        {
            "node": "this-machine",
            "lease": LEASE["id"],
            "slots": [0, 1],
            "ranks": [0, 1],
            "reason": "",
        }
    ],
    "state": "exited",
    "outcome": "killed",
    "reason": "Rank 1 on this-machine was killed by signal 9 (SIGKILL) at step 120.",
    "launcher": "warm",
    "culprit_rank": 1,
    "signal": 9,
    "exit_code": -9,
    "last_lines": ["step 119", "step 120"],
    "resumed_from_step": None,
    "preflight": PREFLIGHT,
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
    "actor_name": "ada",
    "subject_name": "this-machine",
}
RUNNING_JOB: Json = {"id": JOB_ID, "name": "gpt-ddp", "user": "ada"}
IN_THE_WAY: Json = {
    "node": "this-machine",
    "state": "ready",
    "jobs": [RUNNING_JOB],
    "leases": [LEASE],
}
AVAILABILITY: Json = {
    "node_class": "cpu2",
    "nodes": 2,
    "hours": [
        {
            "start": NOW,
            "free": 1,
            "nodes": ["this-machine"],
            "taken": [{"node": "other", "why": "leased", "message": ""}],
        }
    ],
    "lengths": [{"node": "this-machine", "hours": [2, 3]}],
}
FORECAST: Json = {
    "policy": "course-unit-4",
    "zone": "America/New_York",
    "nodes": ["north-01"],
    "closes_at": "2026-11-28T10:57:00+00:00",
    "people": 2,
    "unspent_hours": 20.0,
    "free_hours": 167.5,
    "unmet_hours": 0.0,
    "days": [{"start": NOW, "free_hours": 23.5, "wanted_hours": 2.5}],
    "message": "Everybody's quotas together have 20 node-hours left; "
    "168 node-hours are free until then.",
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
    "title": "weights sharded (FSDP)",
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
    "predicted_finish": NOW,
    "lease_end": NOW,
    "reason": "Fits on cpu2 and starts at once.",
}
ACCURACY: Json = {
    "rows": [
        {
            "device": "cuda",
            "model": "llama",
            "strategy": "fsdp",
            "runs": 12,
            "error_median": -0.074,
            "error_least": -0.1,
            "error_most": 0.031,
            "factor": 1.09,
        }
    ]
}


def job(**changes: Any) -> Json:
    """A queued job, changed."""
    found = {
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
        "agenda": None,
        "epoch": 0,
        "node": None,
        "nodes": [],
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
    return {**found, "is_final": found["state"] in TERMINAL_JOB}


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


JOB_LAYOUT: Json = {"seats": [SEAT], "timeline": [TIME_SLOT], "nodes": ["box"]}
REPORT: Json = {
    "sha256": "ab" * 32,
    "content": {
        "format": "trainyard-report/1",
        "title": "gpt-ddp",
        "platform": "http://127.0.0.1:8471",
        "made_by": "ada",
        "made_at": NOW,
        "lease": LEASE,
        "jobs": [
            {
                "job": ended(),
                "attempts": [ATTEMPT],
                "events": [event(1, "Started.")],
                "checkpoints": [CHECKPOINT],
                "artifacts": [ARTIFACT],
                "curves": [SERIES],
                "gpu_hours": 0.25,
            }
        ],
    },
}
REPORT_LINE: Json = {"sha256": "ab" * 32, "title": "gpt-ddp", "user": "ada", "made_at": NOW}
REPORT_VERDICT: Json = {
    "intact": True,
    "known": True,
    "sha256": "ab" * 32,
    "made_by": "ada",
    "made_at": NOW,
    "message": "This report is exactly as this platform wrote it for ada.",
}
CODE = {
    "sha256": "0" * 64,
    "size": 1234,
    "unpacked_size": 1100,
    "paths": ["lib/net.py", "train.py"],
    "created_at": "2026-11-20T10:00:00+00:00",
}
CODE_LINE = {
    "sha256": "0" * 64,
    "size": 1234,
    "files": 2,
    "jobs": ["job_1"],
    "created_at": "2026-11-20T10:00:00+00:00",
}
SECRET = {
    "name": "HF_TOKEN",
    "created_at": "2026-11-20T10:00:00+00:00",
    "updated_at": "2026-11-20T11:00:00+00:00",
}
