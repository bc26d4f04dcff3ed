"""Requests and answers about templates."""

from typing import Any

from pydantic import Field

from api.web.schemas import Body, Moment, View
from api.web.text_types import PlainText
from core.spec.template import TemplateKind


class TemplateFieldView(View):
    """A field that the person who starts a template may set."""

    field: str
    """Path of the field, such as `training.learning_rate`."""
    label: str
    """Name of the field in the form; empty: its path."""
    hint: str
    choices: list[str | int | float | bool]
    """Values that are allowed; empty: any."""
    minimum: float | None
    maximum: float | None


class TemplateView(View):
    """A job, script or agenda with locked and open fields."""

    id: str
    name: str
    owner: str
    """Name of its owner."""
    kind: TemplateKind
    version: int
    """Number of its content; jobs that were started from an earlier one keep what they had."""
    description: str
    spec: dict[str, Any]
    """The job or agenda; open fields have their defaults here."""
    open: list[TemplateFieldView]
    """Fields that you may set. All others are locked."""
    created_at: Moment
    changed_at: Moment


class NewStart(Body):
    """Values of a template's open fields."""

    values: dict[str, Any] = Field(default_factory=dict, max_length=100)
    """Value by path: `{"training.learning_rate": 0.001}`."""
    spec: dict[str, Any] | None = None
    """Instead of values: the whole spec. A locked field that differs is refused."""
    lease: PlainText | None = None
    """Booked lease to run in; an agenda needs one."""
    anyway: bool = False
    """Submit an agenda even if not all of its jobs end in the lease."""


class StartView(View):
    """Result of a start: a job or an agenda."""

    job: str | None
    """Id of the job; null for an agenda."""
    agenda: str | None
    """Id of the agenda; null for a job."""


class FilledTemplateView(View):
    """A template's spec with values filled in; nothing is submitted."""

    spec: dict[str, Any]
