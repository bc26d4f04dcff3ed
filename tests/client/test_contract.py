"""The client's views have exactly the fields of the API's schemas, and can read what they dump."""

import json
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from api import schemas
from api.admin import cleanup_schemas
from api.admin.unsafe_settings import UnsafeSettingView
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
from trainyard import (
    agenda_views,
    cleanup_views,
    lease_views,
    node_views,
    notice_views,
    operation_views,
    people_views,
    policy_views,
    script_views,
    storage_views,
    usage_views,
    views,
)
from trainyard.decoding import View, decode
from trainyard.errors import UnexpectedAnswer

PAIRS: list[tuple[type[View], type[BaseModel], dict[str, Any]]] = [
    (views.User, schemas.UserView, d.USER),
    (views.Token, schemas.TokenView, d.TOKEN),
    (views.NewToken, schemas.TokenMade, d.NEW_TOKEN),
    (people_views.Session, people_schemas.SessionView, d.SESSION),
    (views.Link, schemas.LinkView, d.LINK),
    (views.PlanAnswer, schemas.PlanView, d.PLAN_ANSWER),
    (views.Accuracy, schemas.AccuracyView, d.ACCURACY),
    (views.AccuracyRow, schemas.AccuracyRow, d.ACCURACY["rows"][0]),
    (views.ClassPlan, schemas.ClassPlan, d.CLASS_PLAN),
    (views.Cost, cost.Cost, d.COST),
    (views.StepTime, cost.StepTime, d.STEP_TIME),
    (views.Traffic, traffic.Traffic, d.TRAFFIC),
    (views.Advice, advice.Advice, d.ADVICE),
    (views.Seat, seats.Seat, d.SEAT),
    (views.TimeSlot, seats.TimeSlot, d.TIME_SLOT),
    (views.Plan, planner.Plan, d.PLAN),
    (views.Result, schemas.Result, d.RESULT),
    (views.Job, schemas.JobView, d.ended()),
    (views.Difference, schemas.Difference, d.LOSS_DIFFERENCE),
    (views.Certificate, schemas.Certificate, d.CERTIFICATE),
    (views.Comparison, schemas.ComparisonView, d.COMPARISON),
    (views.StudyJob, schemas.StudyJobView, d.STUDY["jobs"][0]),
    (views.Study, schemas.StudyView, d.STUDY),
    (views.Measured, schemas.Measured, d.STUDY_REPORT["points"][1]),
    (views.StudyReport, schemas.StudyReport, d.STUDY_REPORT),
    (agenda_views.AgendaJob, agenda_schemas.AgendaJobView, d.AGENDA_JOB),
    (agenda_views.AgendaPlan, agenda_schemas.AgendaPlanView, d.AGENDA_PLAN),
    (agenda_views.Agenda, agenda_schemas.AgendaView, d.AGENDA),
    (views.PreflightCheck, schemas.PreflightCheck, d.PREFLIGHT["checks"][0]),
    (views.Preflight, schemas.PreflightView, d.PREFLIGHT),
    (views.Attempt, schemas.AttemptView, d.ATTEMPT),
    (views.Event, schemas.EventView, d.event(1, "Started.")),
    (views.Series, schemas.Series, d.SERIES),
    (views.Metrics, schemas.MetricsView, d.METRICS),
    (views.LogLine, schemas.LogLine, d.LOG_LINE),
    (views.Logs, schemas.LogsView, d.LOGS),
    (views.Checkpoint, schemas.CheckpointView, d.CHECKPOINT),
    (views.Artifact, schemas.ArtifactView, d.ARTIFACT),
    (views.Dataset, schemas.DatasetView, d.DATASET),
    (views.Model, schemas.ModelView, d.MODEL),
    (views.ModelFile, schemas.ModelFile, d.MODEL["files"][0]),
    (views.Hardware, schemas.Hardware, d.NODE["hardware"]),
    (views.Telemetry, schemas.Telemetry, d.NODE["telemetry"]),
    (views.Node, schemas.NodeView, d.NODE),
    (views.Enrolment, schemas.EnrolmentView, d.ENROLMENT),
    (views.Lease, schemas.LeaseView, d.LEASE),
    (views.AuditEntry, schemas.AuditView, d.AUDIT),
    (lease_views.Offer, lease_schemas.OfferView, d.OFFER),
    (lease_views.Wait, lease_schemas.WaitView, d.WAIT),
    (lease_views.Displaced, lease_schemas.DisplacedView, d.DISPLACED),
    (lease_views.Occurrence, lease_schemas.OccurrenceView, d.OCCURRENCE),
    (lease_views.Maintenance, lease_schemas.MaintenanceView, d.MAINTENANCE),
    (lease_views.Feed, lease_schemas.FeedView, d.FEED),
    (lease_views.Charge, lease_schemas.ChargeView, d.LEASE["charge"]),
    (lease_views.Reason, lease_schemas.ReasonView, d.REASON),
    (lease_views.Left, lease_schemas.LeftView, d.LEFT),
    (lease_views.NodeVerdict, lease_schemas.NodeVerdict, d.NODE_VERDICT),
    (lease_views.BlockVerdict, lease_schemas.VerdictView, d.BLOCK_VERDICT),
    (views.FreeHour, lease_schemas.FreeHour, d.AVAILABILITY["hours"][0]),
    (views.Availability, lease_schemas.AvailabilityView, d.AVAILABILITY),
    (lease_views.Forecast, lease_schemas.ForecastView, d.FORECAST),
    (lease_views.ForecastDay, lease_schemas.ForecastDayView, d.FORECAST["days"][0]),
    (views.Me, schemas.Me, d.ME),
    (script_views.Code, script_schemas.CodeView, d.CODE),
    (script_views.CodeLine, script_schemas.CodeLine, d.CODE_LINE),
    (script_views.Secret, script_schemas.SecretView, d.SECRET),
    (people_views.Lab, people_schemas.LabView, d.LAB),
    (people_views.Invite, people_schemas.InviteView, d.INVITE),
    (people_views.NewInvite, people_schemas.InviteMade, d.INVITE_MADE),
    (people_views.Grant, people_schemas.GrantView, d.GRANT),
    (policy_views.Window, policy_schemas.WindowView, d.WINDOW),
    (policy_views.Bands, policy_schemas.BandsView, d.BANDS),
    (policy_views.Span, policy_schemas.SpanView, d.BANDS["bands"][0]),
    (policy_views.Policy, policy_schemas.PolicyView, d.POLICY),
    (policy_views.PolicyText, policy_schemas.PolicyText, d.POLICY_TEXT),
    (policy_views.AffectedLease, policy_schemas.AffectedLease, d.AFFECTED_LEASE),
    (policy_views.PolicyPlan, policy_schemas.PolicyPlan, d.POLICY_PLAN),
    (policy_views.WindowPlan, policy_schemas.WindowPlan, d.WINDOW_PLAN),
    (people_views.Import, people_schemas.ImportView, d.IMPORT),
    (people_views.ImportRow, people_schemas.ImportRow, d.IMPORT["rows"][0]),
    (notice_views.Notice, notification_schemas.NoticeView, d.NOTICE),
    (notice_views.NoticeChoices, notification_schemas.ChoicesView, d.CHOICES),
    (notice_views.NewWebhook, notification_schemas.WebhookMade, d.WEBHOOK),
    (node_views.InTheWay, node_schemas.InTheWayView, d.IN_THE_WAY),
    (cleanup_views.Cleanup, cleanup_schemas.CleanupView, d.CLEANUP),
    (cleanup_views.CleanupRow, cleanup_schemas.CleanupRowView, d.CLEANUP["rows"][0]),
    (cleanup_views.Selector, cleanup_schemas.Selector, d.CLEANUP["selector"]),
    (usage_views.Usage, usage_schemas.UsageView, d.USAGE),
    (usage_views.UsageRow, usage_schemas.UsageRow, d.USAGE["rows"][0]),
    (usage_views.Quotas, usage_schemas.QuotasView, d.QUOTAS),
    (usage_views.Quota, usage_schemas.QuotaView, d.QUOTAS["quotas"][0]),
    (people_views.Move, people_schemas.MoveView, d.MOVE),
    (views.JobLayout, job_layout.LayoutView, d.JOB_LAYOUT),
    (views.ReportJob, report_schemas.ReportJob, d.REPORT["content"]["jobs"][0]),
    (views.ReportContent, report_schemas.ReportContent, d.REPORT["content"]),
    (views.Report, report_schemas.ReportView, d.REPORT),
    (views.ReportLine, report_schemas.ReportLine, d.REPORT_LINE),
    (views.ReportVerdict, report_schemas.ReportVerdict, d.REPORT_VERDICT),
    (operation_views.ReadOnly, ReadOnlyView, d.READ_ONLY),
    (operation_views.UnsafeSetting, UnsafeSettingView, d.UNSAFE_SETTING),
    (storage_views.Storage, StorageView, d.STORAGE),
    (storage_views.StorageHolder, HolderView, d.STORAGE["limits"][0]),
]


@pytest.mark.parametrize(("view", "schema", "document"), PAIRS, ids=[p[0].__name__ for p in PAIRS])
def test_a_view_reads_what_the_schema_writes(
    view: type[View], schema: type[BaseModel], document: dict[str, Any]
) -> None:
    written = json.loads(schema.model_validate(document).model_dump_json())
    read = decode(view, written)
    assert read.raw == written


@pytest.mark.parametrize(("view", "schema", "document"), PAIRS, ids=[p[0].__name__ for p in PAIRS])
def test_a_view_has_the_fields_of_its_schema(
    view: type[View], schema: type[BaseModel], document: dict[str, Any]
) -> None:
    ours = {item.name for item in fields(view)} - {"raw"}
    assert ours == set(schema.model_fields)


def test_fields_of_a_newer_server_are_kept_in_raw() -> None:
    user = decode(views.User, {**d.USER, "shoe_size": 43})
    assert user.raw["shoe_size"] == 43


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"id": 5}, "User.id is 5"),
        ({"disabled": "no"}, "User.disabled"),
        ({"created_at": "yesterday"}, "User.created_at is no time"),
        ({"created_at": None}, "User.created_at"),
    ],
)
def test_an_answer_of_another_shape_is_told_by_field(change: dict[str, Any], what: str) -> None:
    with pytest.raises(UnexpectedAnswer, match=what):
        decode(views.User, {**d.USER, **change})


def test_a_missing_field_says_that_versions_differ() -> None:
    with pytest.raises(UnexpectedAnswer, match=r"has no 'role'.*another version"):
        decode(views.User, {name: value for name, value in d.USER.items() if name != "role"})


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(UnexpectedAnswer, match="expected a User"):
        decode(views.User, document)
