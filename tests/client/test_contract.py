"""The client's views are written from the API's schemas, and read what those dump."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from api.admin.routes_read_only import ReadOnlyView
from api.admin.routes_unsafe_settings import UnsafeSettingView
from api.admin.schemas_audit import AuditView
from api.admin.schemas_cleanups import CleanupRowView, CleanupView, Selector
from api.agendas.schemas import AgendaJobView, AgendaPlanView, AgendaView
from api.contract import client_views
from api.contract.client_views import name_of, render
from api.files.routes_storage import HolderView, StorageView
from api.files.schemas import DatasetView, ModelFile, ModelView
from api.jobs import routes_layout as job_layout
from api.jobs.schemas import (
    AccuracyView,
    ArtifactView,
    AttemptView,
    CheckpointView,
    ClassPlan,
    JobView,
    PlanView,
    PreflightCheck,
    PreflightView,
)
from api.leases.schemas import (
    AvailabilityView,
    ChargeView,
    DisplacedView,
    FeedView,
    ForecastDayView,
    ForecastView,
    FreeHour,
    LeaseView,
    LeftView,
    MaintenanceView,
    NodeVerdict,
    OccurrenceView,
    OfferView,
    ReasonView,
    VerdictView,
    WaitView,
)
from api.nodes.schemas import EnrolmentView, InTheWayView, NodeView, RunningJobView
from api.people.schemas import (
    GrantView,
    ImportRow,
    ImportView,
    LabView,
    LinkView,
    Me,
    MoveView,
    UserView,
)
from api.people.schemas_notifications import ChoicesView, NoticeView, WebhookMade
from api.people.schemas_usage import QuotasView, QuotaView, UsageRow, UsageView
from api.policies.schemas import (
    AffectedLease,
    BandsView,
    PolicyPlan,
    PolicyText,
    PolicyView,
    SpanView,
    WindowPlan,
    WindowView,
)
from api.records.schemas import LogLine, Series
from api.scripts.schemas import CodeLine, CodeView, SecretView
from api.sign_in.schemas import InviteMade, InviteView, SessionView, TokenMade, TokenView
from api.studies.schemas import ComparisonView, StudyJobView, StudyReport, StudyView
from api.studies.schemas_reports import (
    ReportContent,
    ReportJob,
    ReportLine,
    ReportVerdict,
    ReportView,
)
from api.watching.schemas import LogsView, MetricsView
from api.web.schemas import EventView
from core.wire.messages import Telemetry
from strategies.plan import planner, seats
from strategies.plan.estimates import advice, cost, traffic
from strategies.plan.hardware import Hardware
from strategies.plan.run_directory import Result
from strategies.plan.trust.accuracy import AccuracyRow
from strategies.plan.trust.certificate import Certificate, Difference
from strategies.plan.trust.scaling import Measured
from tests.client import documents as d
from trainyard import views
from trainyard.errors import UnexpectedAnswer
from trainyard.transport.decoding import View, decode

DOCUMENTS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (UserView, d.USER),
    (TokenView, d.TOKEN),
    (TokenMade, d.NEW_TOKEN),
    (SessionView, d.SESSION),
    (LinkView, d.LINK),
    (PlanView, d.PLAN_ANSWER),
    (AccuracyView, d.ACCURACY),
    (AccuracyRow, d.ACCURACY["rows"][0]),
    (ClassPlan, d.CLASS_PLAN),
    (cost.Cost, d.COST),
    (cost.StepTime, d.STEP_TIME),
    (traffic.Traffic, d.TRAFFIC),
    (advice.Advice, d.ADVICE),
    (seats.Seat, d.SEAT),
    (seats.TimeSlot, d.TIME_SLOT),
    (planner.Plan, d.PLAN),
    (Result, d.RESULT),
    (JobView, d.ended()),
    (Difference, d.LOSS_DIFFERENCE),
    (Certificate, d.CERTIFICATE),
    (ComparisonView, d.COMPARISON),
    (StudyJobView, d.STUDY["jobs"][0]),
    (StudyView, d.STUDY),
    (Measured, d.STUDY_REPORT["points"][1]),
    (StudyReport, d.STUDY_REPORT),
    (AgendaJobView, d.AGENDA_JOB),
    (AgendaPlanView, d.AGENDA_PLAN),
    (AgendaView, d.AGENDA),
    (PreflightCheck, d.PREFLIGHT["checks"][0]),
    (PreflightView, d.PREFLIGHT),
    (AttemptView, d.ATTEMPT),
    (EventView, d.event(1, "Started.")),
    (Series, d.SERIES),
    (MetricsView, d.METRICS),
    (LogLine, d.LOG_LINE),
    (LogsView, d.LOGS),
    (CheckpointView, d.CHECKPOINT),
    (ArtifactView, d.ARTIFACT),
    (DatasetView, d.DATASET),
    (ModelView, d.MODEL),
    (ModelFile, d.MODEL["files"][0]),
    (Hardware, d.NODE["hardware"]),
    (Telemetry, d.NODE["telemetry"]),
    (NodeView, d.NODE),
    (EnrolmentView, d.ENROLMENT),
    (LeaseView, d.LEASE),
    (AuditView, d.AUDIT),
    (OfferView, d.OFFER),
    (WaitView, d.WAIT),
    (DisplacedView, d.DISPLACED),
    (OccurrenceView, d.OCCURRENCE),
    (MaintenanceView, d.MAINTENANCE),
    (FeedView, d.FEED),
    (ChargeView, d.LEASE["charge"]),
    (ReasonView, d.REASON),
    (LeftView, d.LEFT),
    (NodeVerdict, d.NODE_VERDICT),
    (VerdictView, d.BLOCK_VERDICT),
    (FreeHour, d.AVAILABILITY["hours"][0]),
    (AvailabilityView, d.AVAILABILITY),
    (ForecastView, d.FORECAST),
    (ForecastDayView, d.FORECAST["days"][0]),
    (Me, d.ME),
    (CodeView, d.CODE),
    (CodeLine, d.CODE_LINE),
    (SecretView, d.SECRET),
    (LabView, d.LAB),
    (InviteView, d.INVITE),
    (InviteMade, d.INVITE_MADE),
    (GrantView, d.GRANT),
    (WindowView, d.WINDOW),
    (BandsView, d.BANDS),
    (SpanView, d.BANDS["bands"][0]),
    (PolicyView, d.POLICY),
    (PolicyText, d.POLICY_TEXT),
    (AffectedLease, d.AFFECTED_LEASE),
    (PolicyPlan, d.POLICY_PLAN),
    (WindowPlan, d.WINDOW_PLAN),
    (ImportView, d.IMPORT),
    (ImportRow, d.IMPORT["rows"][0]),
    (NoticeView, d.NOTICE),
    (ChoicesView, d.CHOICES),
    (WebhookMade, d.WEBHOOK),
    (RunningJobView, d.RUNNING_JOB),
    (InTheWayView, d.IN_THE_WAY),
    (CleanupView, d.CLEANUP),
    (CleanupRowView, d.CLEANUP["rows"][0]),
    (Selector, d.CLEANUP["selector"]),
    (UsageView, d.USAGE),
    (UsageRow, d.USAGE["rows"][0]),
    (QuotasView, d.QUOTAS),
    (QuotaView, d.QUOTAS["quotas"][0]),
    (MoveView, d.MOVE),
    (job_layout.LayoutView, d.JOB_LAYOUT),
    (ReportJob, d.REPORT["content"]["jobs"][0]),
    (ReportContent, d.REPORT["content"]),
    (ReportView, d.REPORT),
    (ReportLine, d.REPORT_LINE),
    (ReportVerdict, d.REPORT_VERDICT),
    (ReadOnlyView, d.READ_ONLY),
    (UnsafeSettingView, d.UNSAFE_SETTING),
    (StorageView, d.STORAGE),
    (HolderView, d.STORAGE["limits"][0]),
]


@pytest.mark.parametrize(
    ("schema", "document"), DOCUMENTS, ids=[schema.__name__ for schema, _ in DOCUMENTS]
)
def test_a_view_reads_what_its_schema_writes(
    schema: type[BaseModel], document: dict[str, Any]
) -> None:
    written = json.loads(schema.model_validate(document).model_dump_json())
    view: type[View] = getattr(views, name_of(schema.__name__))
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
        ({"created_at": "yesterday"}, "User.created_at is not a time"),
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
