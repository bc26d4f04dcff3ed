"""The client's views have exactly the fields of the API's schemas, and can read what they dump."""

import json
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from api import schemas
from strategies.planning import advice, cost, seats, traffic
from tests.client import documents as d
from trainyard import views
from trainyard.decoding import View, decode
from trainyard.errors import UnexpectedAnswer

PAIRS: list[tuple[type[View], type[BaseModel], dict[str, Any]]] = [
    (views.User, schemas.UserView, d.USER),
    (views.Token, schemas.TokenView, d.TOKEN),
    (views.NewToken, schemas.TokenMade, d.NEW_TOKEN),
    (views.Link, schemas.LinkView, d.LINK),
    (views.PlanAnswer, schemas.PlanView, d.PLAN_ANSWER),
    (views.ClassPlan, schemas.ClassPlan, d.CLASS_PLAN),
    (views.Cost, cost.Cost, d.COST),
    (views.StepTime, cost.StepTime, d.STEP_TIME),
    (views.Traffic, traffic.Traffic, d.TRAFFIC),
    (views.Advice, advice.Advice, d.ADVICE),
    (views.Seat, seats.Seat, d.SEAT),
    (views.TimeSlot, seats.TimeSlot, d.TIME_SLOT),
    (views.Plan, schemas.Plan, d.PLAN),
    (views.Result, schemas.Result, d.RESULT),
    (views.Job, schemas.JobView, d.ended()),
    (views.Difference, schemas.Difference, d.LOSS_DIFFERENCE),
    (views.Certificate, schemas.Certificate, d.CERTIFICATE),
    (views.Comparison, schemas.ComparisonView, d.COMPARISON),
    (views.StudyJob, schemas.StudyJobView, d.STUDY["jobs"][0]),
    (views.Study, schemas.StudyView, d.STUDY),
    (views.Measured, schemas.Measured, d.STUDY_REPORT["points"][1]),
    (views.StudyReport, schemas.StudyReport, d.STUDY_REPORT),
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
    (views.FreeHour, schemas.FreeHour, d.AVAILABILITY["hours"][0]),
    (views.Availability, schemas.AvailabilityView, d.AVAILABILITY),
    (views.Me, schemas.Me, d.ME),
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
