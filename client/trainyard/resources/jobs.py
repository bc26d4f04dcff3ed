"""`client.jobs`: plan, submit, watch and control trainings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from trainyard.errors import BadInput
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.downloads import Progress, fetch
from trainyard.transport.paging import all_pages, whole_list
from trainyard.transport.stream import StreamEvent, follow_stream
from trainyard.views import (
    Accuracy,
    Artifact,
    Attempt,
    Checkpoint,
    Comparison,
    Event,
    Job,
    Logs,
    Metrics,
    PlanAnswer,
)

Spec = str | Path | Mapping[str, Any]  # YAML text, a file of it, or the same as a mapping


class Jobs:
    """Trainings of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def plan(self, spec: Spec) -> PlanAnswer:
        """Return the cost of `spec` on every node class, with the place and time of its start."""
        if isinstance(spec, Mapping):
            return decode(PlanAnswer, self._connection.post("/v1/jobs/plan", {"spec": dict(spec)}))
        return decode(PlanAnswer, self._connection.post_yaml("/v1/jobs/plan", spec_text(spec)))

    def plan_accuracy(self) -> Accuracy:
        """Compare the plans of finished jobs with the memory that they needed."""
        return decode(Accuracy, self._connection.get("/v1/jobs/plan/accuracy"))

    def create(self, spec: Spec, *, changes: Mapping[str, Any] | None = None) -> Job:
        """Submit a job. Lost answers are harmless: all tries share one idempotency key.

        `changes` are fields laid over the spec, mapping by mapping; None removes one.
        """
        params = {"changes": json.dumps(changes)} if changes else None
        if isinstance(spec, Mapping):
            return decode(Job, self._connection.post("/v1/jobs", dict(spec), params=params))
        answer = self._connection.post_yaml("/v1/jobs", spec_text(spec), params=params)
        return decode(Job, answer)

    def list(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        search: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str | None = None,
        shared: bool = False,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Iterate over your jobs, newest first; pages are fetched as they are needed.

        `name` selects jobs whose name contains it, `search` also those whose id begins or ends with
        it, those with it as a tag, and those of an owner; `since` and `until` those submitted
        between two moments. Staff may name another `user`, or `all`.
        `shared` selects the jobs of others that are shared with you.
        """
        return all_pages(
            self._connection,
            "/v1/jobs",
            Job,
            limit=limit,
            state=state,
            name=name,
            search=search,
            tag=tag,
            since=since.isoformat() if since else None,
            until=until.isoformat() if until else None,
            user=user,
            shared="true" if shared else None,
        )

    def get(self, job_id: str) -> Job:
        """Return the job in its present state."""
        return decode(Job, self._connection.get(path(job_id)))

    def compare(self, job_id: str, other_id: str) -> Comparison:
        """Compare the curves of two jobs by the rule of certificates.

        Raises Invalid if they are not the same training, and Conflict if they have no common step.
        """
        answer = self._connection.get(path(job_id, "comparison"), **{"with": other_id})
        return decode(Comparison, answer)

    def tag(self, job_id: str, tags: Sequence[str]) -> Job:
        """Set the tags of a job, in place of those that it has."""
        answer = self._connection.put(path(job_id, "tags"), {"tags": list(tags)})
        return decode(Job, answer)

    def report_when_ended(self, job_id: str, wanted: bool = True) -> Job:
        """Have a report written when a job has ended, or no longer. `report` of the job is then its
        hash."""
        answer = self._connection.put(path(job_id, "report"), {"when_ended": wanted})
        return decode(Job, answer)

    def cancel(self, job_id: str) -> Job:
        """End a job for good; a running one saves a checkpoint first."""
        return self._act(job_id, "cancel")

    def pause(self, job_id: str) -> Job:
        """Save a checkpoint, free the node, and wait for `resume`."""
        return self._act(job_id, "pause")

    def resume(self, job_id: str) -> Job:
        """Put a paused job back in the queue."""
        return self._act(job_id, "resume")

    def requeue(self, job_id: str) -> Job:
        """Save a checkpoint, free the node, and go back to the queue."""
        return self._act(job_id, "requeue")

    def profile(self, job_id: str) -> Job:
        """Record the next steps of a running job: a trace among its artifacts once it has ended."""
        return self._act(job_id, "profile")

    def snapshot(self, job_id: str) -> Job:
        """Record the memory use of the job's next step: an artifact once the job has ended."""
        return self._act(job_id, "snapshot")

    def release(self, job_id: str) -> Job:
        """End the hold of the sandbox of a job that has failed (`hold_on_failure`)."""
        return self._act(job_id, "release")

    def clone(self, job_id: str, overrides: Mapping[str, Any] | None = None) -> Job:
        """Submit a new job with the same spec and `overrides` laid over it; None removes a
        field."""
        body = dict(overrides) if overrides else None
        return decode(Job, self._connection.post(path(job_id, "clone"), body))

    def events(self, job_id: str) -> Iterator[Event]:
        """Iterate over the job's events, oldest first."""
        return all_pages(self._connection, path(job_id, "events"), Event)

    def attempts(self, job_id: str) -> Sequence[Attempt]:
        """Return every attempt at running the job."""
        return whole_list(self._connection, path(job_id, "attempts"), Attempt)

    def metrics(
        self,
        job_id: str,
        keys: Sequence[str] | None = None,
        *,
        resolution: int | None = None,
        since_step: int | None = None,
    ) -> Metrics:
        """Return series over all attempts, each of at most `resolution` points."""
        answer = self._connection.get(
            path(job_id, "metrics"),
            keys=",".join(keys) if keys else None,
            resolution=resolution,
            since_step=since_step,
        )
        return decode(Metrics, answer)

    def logs(
        self,
        job_id: str,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        search: str | None = None,
        cursor: str | None = None,
        tail: int | None = None,
        limit: int | None = None,
    ) -> Logs:
        """Return one piece of the output of all ranks, or of one; `tail` asks for the last
        lines."""
        answer = self._connection.get(
            path(job_id, "logs"),
            rank=rank,
            attempt=attempt,
            search=search,
            cursor=cursor,
            tail=tail,
            limit=limit,
        )
        return decode(Logs, answer)

    def checkpoints(self, job_id: str) -> Sequence[Checkpoint]:
        """Return the job's checkpoints in the store."""
        return whole_list(self._connection, path(job_id, "checkpoints"), Checkpoint)

    def artifacts(self, job_id: str) -> Sequence[Artifact]:
        """Return the files that the job left behind."""
        return whole_list(self._connection, path(job_id, "artifacts"), Artifact)

    def download(
        self,
        job_id: str,
        item: Artifact | Checkpoint,
        destination: str | Path,
        *,
        progress: Progress | None = None,
    ) -> Path:
        """Write an artifact, or a checkpoint as a tar file, to the new file `destination`."""
        kind = "artifacts" if isinstance(item, Artifact) else "checkpoints"
        return fetch(
            self._connection,
            path(job_id, kind, segment(item.id)),
            Path(destination),
            sha256=item.sha256 if isinstance(item, Artifact) else None,
            progress=progress,
        )

    def stream(
        self, job_id: str, *, last_event_id: str = "", patience_s: float = 300.0
    ) -> Iterator[StreamEvent]:
        """Yield live events until the job has ended; survives restarts of the server."""
        return follow_stream(
            self._connection,
            path(job_id, "stream"),
            last_event_id=last_event_id,
            patience_s=patience_s,
        )

    def _act(self, job_id: str, verb: str) -> Job:
        return decode(Job, self._connection.post(path(job_id, verb)))


def path(job_id: str, *rest: str) -> str:
    """Return the path of a job, or of a resource below it."""
    return "/".join(["/v1/jobs", segment(job_id), *rest])


def spec_text(spec: str | Path) -> str:
    """Return the YAML unchanged. Raises BadInput for a file that cannot be read as text."""
    if isinstance(spec, str):
        return spec
    try:
        return spec.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{spec}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{spec} is not UTF-8 text (byte {error.start}).") from error
