"""Answers about studies and comparisons of jobs."""

from api.web.schemas import Moment, View
from core.states import JobState
from strategies.plan.catalog import ResultClass
from strategies.plan.trust.certificate import Difference, Verdict
from strategies.plan.trust.scaling import MeasuredJob, StudyKind


class ComparisonView(View):
    """The curves of two jobs over the steps that both have."""

    job: str
    other: str
    verdict: Verdict
    """Verdict on the two curves; `exempt`: one of the jobs promises nothing."""
    result_class: ResultClass
    """The weaker of the two jobs' promises."""
    steps: int
    loss: Difference
    grad_norm: Difference | None


class StudyJobView(View):
    """A job of a study."""

    job: str
    label: str
    """Difference from the other jobs: `2 ranks`, `GPipe`."""
    ranks: int
    state: JobState
    reason: str
    step: int
    steps: int


class StudyView(View):
    """Jobs that were submitted together. The others are compared with the first."""

    id: str
    name: str
    user: str
    """Name of the study's owner."""
    kind: StudyKind
    jobs: list[StudyJobView]
    is_final: bool
    """True once all jobs of the study have ended."""
    created_at: Moment


class StudyReport(StudyView):
    """A study and its findings so far."""

    summary: str
    """The findings in one or two sentences."""
    points: list[MeasuredJob]
    """Measurements, in the order of the jobs."""
