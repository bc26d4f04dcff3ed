"""The shipped course on a whole platform: from the bundle over the booking to the grade."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from core.base.clock import utc_now
from tests.running import Running, running_platform, wait_for
from trainyard import Trainyard

pytestmark = [pytest.mark.gloo, pytest.mark.slow]

JOB_MEMORY_GIB = 2  # a batch that does not fit takes seconds, on any machine
BUNDLE = Path(__file__).parents[2] / "examples" / "courses" / "large-models"


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    with running_platform({"TRAINYARD_JOB_MEMORY_GIB": str(JOB_MEMORY_GIB)}) as platform:
        yield platform


def signed_in(platform: Running, user: str) -> str:
    """The token of a session of this person, by a link of the administrator's."""
    with platform.http() as admin:
        link = admin.post(f"/v1/users/{user}/login-link").raise_for_status().json()
    answer = httpx2.post(f"{platform.url}/v1/sessions/link", json={"secret": link["secret"]})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


@pytest.mark.timeout(420)
def test_the_shipped_course_is_trained_from_the_first_booking_to_the_grade(
    platform: Running,
) -> None:
    today = utc_now()
    with Trainyard(platform.url, platform.token) as admin:
        assert admin.courses.apply(BUNDLE, today.date() - timedelta(days=7)).applied
        node = next(iter(admin.nodes.list()))
    student_token = signed_in(platform, "student-01")
    with Trainyard(platform.url, student_token) as student:
        hour = today.replace(minute=0, second=0, microsecond=0)
        lease = student.leases.book(hour, 2, node=node.name)
        for exercise in ("memory", "several"):
            template = student.courses.exercise("large-models", exercise).exercise.template
            made = student.templates.start(template, lease=lease.id)
            assert made.agenda is not None

            def ended(name: str = exercise) -> bool:
                standing = student.courses.exercise("large-models", name).standing
                return standing.next not in ("wait", "book")

            wait_for(ended, what=f"the jobs of {exercise}", within_s=180, every_s=0.5)
            standing = student.courses.hand_in("large-models", exercise).standing
            assert standing.failed == 0, standing.jobs
            assert standing.succeeded == standing.expected
        (filled,) = (one for one in student.jobs.list() if one.name == "out of memory")
        assert (filled.state, filled.reason_code) == ("failed", "out_of_memory"), filled.reason
        assert f"of {JOB_MEMORY_GIB}" in filled.reason
        assert "The plan expected" in filled.reason
        page = httpx2.get(
            f"{platform.url}/jobs/{filled.id}", cookies={"trainyard_session": student_token}
        )
        assert "Use a smaller micro_batch_size" in page.text
    with Trainyard(platform.url, platform.token) as admin:
        for exercise, points in (("memory", 9), ("several", 4)):
            results = {
                one.user: one.results for one in admin.courses.results("large-models", exercise)
            }
            assert results["student-01"]["score"] == points
            assert results["student-02"]["score"] == 0
