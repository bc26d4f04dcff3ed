"""The client's views are written from the API's schemas, and read what those dump."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import api.app  # noqa: F401  # so that all schemas of answers are there
from api.contract import client_views
from api.contract.client_views import answers_of, name_of, render
from tests.answers import Json, answer, full_answer
from tests.client import documents as d
from trainyard import views
from trainyard.errors import UnexpectedAnswer
from trainyard.transport.decoding import View, decode

DOCUMENTS: dict[str, Json] = {
    "UserView": d.USER,
    "TokenView": d.TOKEN,
    "TokenMade": d.NEW_TOKEN,
    "SessionView": d.SESSION,
    "LinkView": d.LINK,
    "PlanView": d.PLAN_ANSWER,
    "AccuracyView": d.ACCURACY,
    "AccuracyRow": d.ACCURACY["rows"][0],
    "ClassPlan": d.CLASS_PLAN,
    "Cost": d.COST,
    "StepTime": d.STEP_TIME,
    "Traffic": d.TRAFFIC,
    "Advice": d.ADVICE,
    "Seat": d.SEAT,
    "TimeSlot": d.TIME_SLOT,
    "Plan": d.PLAN,
    "Result": d.RESULT,
    "JobView": d.ended(),
    "Difference": d.LOSS_DIFFERENCE,
    "Certificate": d.CERTIFICATE,
    "ComparisonView": d.COMPARISON,
    "StudyJobView": d.STUDY["jobs"][0],
    "StudyView": d.STUDY,
    "Measured": d.STUDY_REPORT["points"][1],
    "StudyReport": d.STUDY_REPORT,
    "AgendaJobView": d.AGENDA_JOB,
    "AgendaPlanView": d.AGENDA_PLAN,
    "AgendaView": d.AGENDA,
    "PreflightCheck": d.PREFLIGHT["checks"][0],
    "PreflightView": d.PREFLIGHT,
    "AttemptView": d.ATTEMPT,
    "EventView": d.event(1, "Started."),
    "Series": d.SERIES,
    "MetricsView": d.METRICS,
    "LogLine": d.LOG_LINE,
    "LogsView": d.LOGS,
    "CheckpointView": d.CHECKPOINT,
    "ArtifactView": d.ARTIFACT,
    "DatasetView": d.DATASET,
    "ModelView": d.MODEL,
    "ModelFile": d.MODEL["files"][0],
    "Hardware": d.NODE["hardware"],
    "Telemetry": d.NODE["telemetry"],
    "NodeView": d.NODE,
    "EnrolmentView": d.ENROLMENT,
    "LeaseView": d.LEASE,
    "AuditView": d.AUDIT,
    "OfferView": d.OFFER,
    "WaitView": d.WAIT,
    "DisplacedView": d.DISPLACED,
    "OccurrenceView": d.OCCURRENCE,
    "MaintenanceView": d.MAINTENANCE,
    "FeedView": d.FEED,
    "ChargeView": d.LEASE["charge"],
    "ReasonView": d.REASON,
    "LeftView": d.LEFT,
    "NodeVerdict": d.NODE_VERDICT,
    "VerdictView": d.BLOCK_VERDICT,
    "FreeHour": d.AVAILABILITY["hours"][0],
    "AvailabilityView": d.AVAILABILITY,
    "ForecastView": d.FORECAST,
    "ForecastDayView": d.FORECAST["days"][0],
    "Me": d.ME,
    "CodeView": d.CODE,
    "CodeLine": d.CODE_LINE,
    "SecretView": d.SECRET,
    "LabView": d.LAB,
    "InviteView": d.INVITE,
    "InviteMade": d.INVITE_MADE,
    "GrantView": d.GRANT,
    "WindowView": d.WINDOW,
    "BandsView": d.BANDS,
    "SpanView": d.BANDS["bands"][0],
    "PolicyView": d.POLICY,
    "PolicyText": d.POLICY_TEXT,
    "AffectedLease": d.AFFECTED_LEASE,
    "PolicyPlan": d.POLICY_PLAN,
    "WindowPlan": d.WINDOW_PLAN,
    "ImportView": d.IMPORT,
    "ImportRow": d.IMPORT["rows"][0],
    "NoticeView": d.NOTICE,
    "ChoicesView": d.CHOICES,
    "WebhookMade": d.WEBHOOK,
    "RunningJobView": d.RUNNING_JOB,
    "InTheWayView": d.IN_THE_WAY,
    "CleanupView": d.CLEANUP,
    "CleanupRowView": d.CLEANUP["rows"][0],
    "Selector": d.CLEANUP["selector"],
    "UsageView": d.USAGE,
    "UsageRow": d.USAGE["rows"][0],
    "QuotasView": d.QUOTAS,
    "QuotaView": d.QUOTAS["quotas"][0],
    "MoveView": d.MOVE,
    "LayoutView": d.JOB_LAYOUT,
    "ReportJob": d.REPORT["content"]["jobs"][0],
    "ReportContent": d.REPORT["content"],
    "ReportView": d.REPORT,
    "ReportLine": d.REPORT_LINE,
    "ReportVerdict": d.REPORT_VERDICT,
    "ReadOnlyView": d.READ_ONLY,
    "UnsafeSettingView": d.UNSAFE_SETTING,
    "StorageView": d.STORAGE,
    "HolderView": d.STORAGE["limits"][0],
}
OURS = ("api", "core", "strategies")


def classes(of: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All schemas that are written in Python, with those that inherit from them."""
    for found in of.__subclasses__():
        yield found
        yield from classes(found)


CLASSES = {one.__name__: one for one in classes(BaseModel) if one.__module__.startswith(OURS)}
ANSWERS = answers_of(json.loads(client_views.DOCUMENT.read_text()))


@pytest.mark.parametrize("name", [name for name in ANSWERS if hasattr(views, name_of(name))])
def test_a_view_reads_what_its_schema_writes(name: str) -> None:
    schema = CLASSES[name]
    view: type[View] = getattr(views, name_of(name))
    for document in (answer(name), full_answer(name), DOCUMENTS.get(name, answer(name))):
        written = json.loads(schema.model_validate(document).model_dump_json())
        assert decode(view, written).raw == written


def test_the_views_are_those_of_the_openapi_document() -> None:
    document = json.loads(client_views.DOCUMENT.read_text())
    assert client_views.VIEWS.read_text() == render(document), "write it again: make openapi"


def test_fields_of_a_newer_server_are_kept_in_raw() -> None:
    user = decode(views.User, {**d.USER, "shoe_size": 43})
    assert user.raw["shoe_size"] == 43


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"id": 5}, "User.id is 5"),
        ({"disabled": "no"}, "User.disabled"),
        ({"created_at": "yesterday"}, "User.created_at is not a valid time"),
        ({"created_at": None}, "User.created_at"),
    ],
)
def test_an_answer_of_another_shape_is_told_by_field(change: dict[str, Any], what: str) -> None:
    with pytest.raises(UnexpectedAnswer, match=what):
        decode(views.User, {**d.USER, **change})


def test_a_missing_field_says_that_versions_differ() -> None:
    with pytest.raises(UnexpectedAnswer, match=r"has no 'role'.*does its version differ"):
        decode(views.User, {name: value for name, value in d.USER.items() if name != "role"})


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(UnexpectedAnswer, match="expected a User"):
        decode(views.User, document)
