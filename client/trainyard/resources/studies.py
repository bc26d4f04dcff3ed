"""`client.studies`: one training as several jobs, and their common result."""

from collections.abc import Iterator, Mapping, Sequence

from trainyard.resources.jobs import Spec, spec_text
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Study, StudyReport


class Studies:
    """Scaling studies of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        spec: Spec,
        *,
        ranks: Sequence[int] = (),
        weak: bool = False,
        schedules: Sequence[str] = (),
    ) -> Study:
        """Submit one job for each number of ranks, or for each pipeline schedule; all or none.

        The batch stays the same, or grows with the ranks if `weak`.
        """
        asked: dict[str, str] = {}
        if ranks:
            asked["ranks"] = ",".join(str(one) for one in ranks)
        if weak:
            asked["scaling"] = "weak"
        if schedules:
            asked["schedules"] = ",".join(schedules)
        if isinstance(spec, Mapping):
            answer = self._connection.post("/v1/studies", dict(spec), params=asked)
        else:
            answer = self._connection.post_yaml("/v1/studies", spec_text(spec), params=asked)
        return decode(Study, answer)

    def list(self, *, user: str | None = None, limit: int | None = None) -> Iterator[Study]:
        """Iterate over your studies, newest first. Staff may name another `user`, or `all`."""
        return all_pages(self._connection, "/v1/studies", Study, limit=limit, user=user)

    def get(self, study_id: str) -> StudyReport:
        """Return a study with its findings so far."""
        return decode(StudyReport, self._connection.get(f"/v1/studies/{segment(study_id)}"))

    def cancel(self, study_id: str) -> Study:
        """Cancel every job of a study that has not ended."""
        return decode(Study, self._connection.post(f"/v1/studies/{segment(study_id)}/cancel"))
