"""The client's views are written from the API's schemas, and read what those dump."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from api import client_views, schemas
from api.admin import cleanup_schemas
from api.admin.unsafe_settings import UnsafeSettingView
from api.client_views import name_of, render
from api.files.storage import HolderView, StorageView
from api.jobs import agenda_schemas, job_layout, report_schemas
from api.leases import lease_schemas
from api.nodes import node_schemas
from api.people import notification_schemas, people_schemas, usage_schemas
from api.policies import policy_schemas
from api.read_only import ReadOnlyView
from api.scripts import script_schemas
from strategies.planning import advice, cost, planner, seats, traffic
from tests.client import documents as d
from trainyard import views
from trainyard.errors import UnexpectedAnswer
from trainyard.transport.decoding import View, decode

DOCUMENTS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (schemas.UserView, d.USER),
    (schemas.TokenView, d.TOKEN),
    (schemas.TokenMade, d.NEW_TOKEN),
    (people_schemas.SessionView, d.SESSION),
    (schemas.LinkView, d.LINK),
    (schemas.PlanView, d.PLAN_ANSWER),
    (schemas.AccuracyView, d.ACCURACY),
    (schemas.AccuracyRow, d.ACCURACY["rows"][0]),
    (schemas.ClassPlan, d.CLASS_PLAN),
    (cost.Cost, d.COST),
    (cost.StepTime, d.STEP_TIME),
    (traffic.Traffic, d.TRAFFIC),
    (advice.Advice, d.ADVICE),
    (seats.Seat, d.SEAT),
    (seats.TimeSlot, d.TIME_SLOT),
    (planner.Plan, d.PLAN),
    (schemas.Result, d.RESULT),
    (schemas.JobView, d.ended()),
    (schemas.Difference, d.LOSS_DIFFERENCE),
    (schemas.Certificate, d.CERTIFICATE),
    (schemas.ComparisonView, d.COMPARISON),
    (schemas.StudyJobView, d.STUDY["jobs"][0]),
    (schemas.StudyView, d.STUDY),
    (schemas.Measured, d.STUDY_REPORT["points"][1]),
    (schemas.StudyReport, d.STUDY_REPORT),
    (agenda_schemas.AgendaJobView, d.AGENDA_JOB),
    (agenda_schemas.AgendaPlanView, d.AGENDA_PLAN),
    (agenda_schemas.AgendaView, d.AGENDA),
    (schemas.PreflightCheck, d.PREFLIGHT["checks"][0]),
    (schemas.PreflightView, d.PREFLIGHT),
    (schemas.AttemptView, d.ATTEMPT),
    (schemas.EventView, d.event(1, "Started.")),
    (schemas.Series, d.SERIES),
    (schemas.MetricsView, d.METRICS),
    (schemas.LogLine, d.LOG_LINE),
    (schemas.LogsView, d.LOGS),
    (schemas.CheckpointView, d.CHECKPOINT),
    (schemas.ArtifactView, d.ARTIFACT),
    (schemas.DatasetView, d.DATASET),
    (schemas.ModelView, d.MODEL),
    (schemas.ModelFile, d.MODEL["files"][0]),
    (schemas.Hardware, d.NODE["hardware"]),
    (schemas.Telemetry, d.NODE["telemetry"]),
    (schemas.NodeView, d.NODE),
    (schemas.EnrolmentView, d.ENROLMENT),
    (schemas.LeaseView, d.LEASE),
    (schemas.AuditView, d.AUDIT),
    (lease_schemas.OfferView, d.OFFER),
    (lease_schemas.WaitView, d.WAIT),
    (lease_schemas.DisplacedView, d.DISPLACED),
    (lease_schemas.OccurrenceView, d.OCCURRENCE),
    (lease_schemas.MaintenanceView, d.MAINTENANCE),
    (lease_schemas.FeedView, d.FEED),
    (lease_schemas.ChargeView, d.LEASE["charge"]),
    (lease_schemas.ReasonView, d.REASON),
    (lease_schemas.LeftView, d.LEFT),
    (lease_schemas.NodeVerdict, d.NODE_VERDICT),
    (lease_schemas.VerdictView, d.BLOCK_VERDICT),
    (lease_schemas.FreeHour, d.AVAILABILITY["hours"][0]),
    (lease_schemas.AvailabilityView, d.AVAILABILITY),
    (lease_schemas.ForecastView, d.FORECAST),
    (lease_schemas.ForecastDayView, d.FORECAST["days"][0]),
    (schemas.Me, d.ME),
    (script_schemas.CodeView, d.CODE),
    (script_schemas.CodeLine, d.CODE_LINE),
    (script_schemas.SecretView, d.SECRET),
    (people_schemas.LabView, d.LAB),
    (people_schemas.InviteView, d.INVITE),
    (people_schemas.InviteMade, d.INVITE_MADE),
    (people_schemas.GrantView, d.GRANT),
    (policy_schemas.WindowView, d.WINDOW),
    (policy_schemas.BandsView, d.BANDS),
    (policy_schemas.SpanView, d.BANDS["bands"][0]),
    (policy_schemas.PolicyView, d.POLICY),
    (policy_schemas.PolicyText, d.POLICY_TEXT),
    (policy_schemas.AffectedLease, d.AFFECTED_LEASE),
    (policy_schemas.PolicyPlan, d.POLICY_PLAN),
    (policy_schemas.WindowPlan, d.WINDOW_PLAN),
    (people_schemas.ImportView, d.IMPORT),
    (people_schemas.ImportRow, d.IMPORT["rows"][0]),
    (notification_schemas.NoticeView, d.NOTICE),
    (notification_schemas.ChoicesView, d.CHOICES),
    (notification_schemas.WebhookMade, d.WEBHOOK),
    (node_schemas.RunningJobView, d.RUNNING_JOB),
    (node_schemas.InTheWayView, d.IN_THE_WAY),
    (cleanup_schemas.CleanupView, d.CLEANUP),
    (cleanup_schemas.CleanupRowView, d.CLEANUP["rows"][0]),
    (cleanup_schemas.Selector, d.CLEANUP["selector"]),
    (usage_schemas.UsageView, d.USAGE),
    (usage_schemas.UsageRow, d.USAGE["rows"][0]),
    (usage_schemas.QuotasView, d.QUOTAS),
    (usage_schemas.QuotaView, d.QUOTAS["quotas"][0]),
    (people_schemas.MoveView, d.MOVE),
    (job_layout.LayoutView, d.JOB_LAYOUT),
    (report_schemas.ReportJob, d.REPORT["content"]["jobs"][0]),
    (report_schemas.ReportContent, d.REPORT["content"]),
    (report_schemas.ReportView, d.REPORT),
    (report_schemas.ReportLine, d.REPORT_LINE),
    (report_schemas.ReportVerdict, d.REPORT_VERDICT),
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
