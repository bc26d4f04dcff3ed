"""The failure of a job: the lines of the rank that failed, and changes to try. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dashboard.formats import counted, decimal, span
from trainyard.views import Attempt, Job

# The words by which the API, too, tells an error among lines without levels.
ERROR = re.compile(
    r"\b[A-Z]\w*(Error|Exception)\b|\b([Ee]rror|ERROR|[Ee]xception|Traceback|[Ff]atal|FATAL)\b"
)
MARGIN = 1.2  # of a wall time that is proposed: evaluation and checkpoints come on top of steps
MINUTE_S = 60


@dataclass(frozen=True)
class Failure:
    """The content of the card with which a failed job's page opens."""

    attempt: Attempt | None
    """The last attempt; None if the job never started."""
    lines: list[tuple[str, bool]]
    """Last lines of the blamed rank, and whether each is marked as an error."""
    tries: list[str]
    """Changes to try, best first."""

    @property
    def source(self) -> str:
        """`last 6 lines of rank 1, attempt 2 on east-01`."""
        if self.attempt is None or not self.lines:
            return ""
        rank = self.attempt.culprit_rank
        of_rank = "" if rank is None else f" of rank {rank}"
        lines = counted(len(self.lines), "last line")
        return f"{lines}{of_rank}, attempt {self.attempt.epoch} on {self.attempt.node}"


def failure_of(job: Job, attempts: Sequence[Attempt]) -> Failure | None:
    """Return why a job failed and what to try; None unless it has failed."""
    if job.state != "failed":
        return None
    attempt = max(attempts, key=lambda one: one.epoch, default=None)
    lines = marked(attempt.last_lines if attempt else ())
    return Failure(attempt, lines, tries(job, attempt))


def marked(lines: Sequence[str]) -> list[tuple[str, bool]]:
    """Return each line with True if it tells the error; the last line does if no other one does."""
    found = [(line, bool(ERROR.search(line))) for line in lines]
    if found and not any(is_error for _, is_error in found):
        found[-1] = (found[-1][0], True)
    return found


def tries(job: Job, attempt: Attempt | None) -> list[str]:
    """Return what to change before the job is run again, by the outcome of its last attempt."""
    outcome = (attempt.outcome if attempt else None) or job.reason_code
    steps = TRIES.get(outcome)
    return steps(job, attempt) if steps else ["Correct what the reason names, and run it again."]


def _node(attempt: Attempt | None) -> str:
    return attempt.node if attempt else "the node"


def _training(job: Job) -> Mapping[str, object]:
    part = job.spec.get("training")
    return part if isinstance(part, dict) else {}


def _user_error(job: Job, _: Attempt | None) -> list[str]:
    where = "your program" if "script" in job.spec else "the spec or the data"
    return [f"Correct {where} where the marked line points, and run it again."]


def _diverged(job: Job, _: Attempt | None) -> list[str]:
    training = _training(job)
    found = []
    rate = training.get("learning_rate")
    if isinstance(rate, float):
        found.append(f"Halve training.learning_rate: {decimal(rate / 2, 3)}, not {rate:g}.")
    warmup = training.get("warmup_steps")
    if isinstance(warmup, int):
        found.append(f"Lengthen training.warmup_steps: {max(100, 2 * warmup):,}, not {warmup:,}.")
    if training.get("max_grad_norm") in (None, 0, 0.0):
        found.append("Clip gradients: training.max_grad_norm 1.0.")
    return found or ["Lower the learning rate of the program, or clip its gradients."]


def _out_of_memory(job: Job, _: Attempt | None) -> list[str]:
    fitting = [one.title for one in job.plan.advice if one.fits]
    if fitting:
        return fitting
    if "script" in job.spec:
        return [
            "Use a smaller batch or model in the program, or keep fewer results in memory.",
            "Ask for more ranks per node: each brings its share of the node's memory.",
        ]
    micro, parallelism = job.plan.micro_batch_size, job.spec.get("parallelism")
    strategy = parallelism.get("strategy") if isinstance(parallelism, dict) else None
    found = []
    if micro > 1:
        found.append(f"Halve training.micro_batch_size: {micro // 2}, not {micro}.")
    if job.spec.get("activation_checkpointing") != "full":
        found.append("Recompute activations: activation_checkpointing full.")
    if job.plan.world_size > 1 and strategy in (None, "ddp"):
        found.append("Divide the model between ranks: parallelism.strategy fsdp.")
    return found or ["Use a smaller model, or shorter sequences: data.sequence_length."]


def _time_limit(job: Job, _: Attempt | None) -> list[str]:
    found = []
    if job.step and job.steps > job.step and job.used_s:
        needed_s = MARGIN * job.used_s * job.steps / job.step
        minutes = -(-int(needed_s) // MINUTE_S)
        found.append(
            f"Raise resources.wall_time to {span(minutes * MINUTE_S)}: it did {job.step:,} of "
            f"{job.steps:,} steps in {span(job.used_s)}."
        )
    else:
        found.append(f"Raise resources.wall_time above {span(job.wall_time_s)}.")
    return [*found, "Or train fewer steps."]


def _bad_data(_: Job, __: Attempt | None) -> list[str]:
    return ["Look at the rows of the dataset on its page, and choose data or tokenizer that match."]


def _bad_checkpoint(_: Job, __: Attempt | None) -> list[str]:
    return ["Start from another checkpoint, or from none: the files of this one do not match."]


def _not_its_fault(_: Job, attempt: Attempt | None) -> list[str]:
    return [
        "Run it again without changes: the fault was not in your job.",
        f"If it fails there again, tell staff: {_node(attempt)}.",
    ]


def _stalled(_: Job, attempt: Attempt | None) -> list[str]:
    rank = attempt.culprit_rank if attempt else None
    named = "the rank that stopped" if rank is None else f"rank {rank}"
    return [
        f"Read the last lines of {named}: the others waited for it.",
        "Make sure that every rank runs the same number of steps and the same collectives.",
    ]


def _killed(_: Job, attempt: Attempt | None) -> list[str]:
    return [
        "Run it again: a process outside the platform ended it.",
        f"If that happens again, ask staff what else runs on {_node(attempt)}.",
    ]


TRIES: Mapping[str, Callable[[Job, Attempt | None], list[str]]] = {
    "user_error": _user_error,
    "diverged": _diverged,
    "out_of_memory": _out_of_memory,
    "bad_data": _bad_data,
    "bad_checkpoint": _bad_checkpoint,
    "start_failed": _not_its_fault,
    "gpu_failed": _not_its_fault,
    "node_lost": _not_its_fault,
    "shim_lost": _not_its_fault,
    "stalled": _stalled,
    "killed": _killed,
    "time_limit": _time_limit,
}
