"""`client.reports`: results of jobs or of a lease, identified by the hash of their content."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Report, ReportLine, ReportVerdict


class Reports:
    """Reports of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(
        self, jobs: Sequence[str] = (), *, lease: str | None = None, title: str = ""
    ) -> Report:
        """Write a permanent report of these jobs, or of all jobs that ran in a lease."""
        wanted: dict[str, object] = {"title": title}
        wanted |= {"jobs": list(jobs)} if lease is None else {"lease": lease}
        return decode(Report, self._connection.post("/v1/reports", wanted))

    def list(self, *, limit: int | None = None) -> Iterator[ReportLine]:
        """Iterate over your reports, newest first."""
        return all_pages(self._connection, "/v1/reports", ReportLine, limit=limit)

    def get(self, sha256: str) -> Report:
        """Return the report with this hash."""
        return decode(Report, self._connection.get(f"/v1/reports/{segment(sha256)}"))

    def delete(self, sha256: str) -> None:
        """Delete a report of yours. Copies of it can still be checked."""
        self._connection.delete(f"/v1/reports/{segment(sha256)}")

    def document(self, sha256: str) -> str:
        """Return the report as JSON text, the form in which it is handed in and checked."""
        return self._connection.text(f"/v1/reports/{segment(sha256)}")

    def page(self, sha256: str) -> str:
        """Return the report as one HTML page that needs no server."""
        return self._connection.text(f"/reports/{segment(sha256)}")

    def check(self, report: Mapping[str, Any]) -> ReportVerdict:
        """Check that a report, as read from its JSON, is exactly the one that this server wrote."""
        body = {"sha256": report.get("sha256"), "content": report.get("content")}
        return decode(ReportVerdict, self._connection.post("/v1/reports/check", body, keyed=False))
