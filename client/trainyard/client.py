"""Entry point of the SDK."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx2

from trainyard.resources.admin import Admin
from trainyard.resources.agendas import Agendas
from trainyard.resources.calendars import Calendars
from trainyard.resources.cleanups import Cleanups
from trainyard.resources.code_archives import CodeArchives
from trainyard.resources.courses import Courses
from trainyard.resources.datasets import Datasets
from trainyard.resources.jobs import Jobs
from trainyard.resources.leases import Leases
from trainyard.resources.maintenance import MaintenanceHours
from trainyard.resources.models import Models
from trainyard.resources.nodes import Nodes
from trainyard.resources.notifications import Notifications
from trainyard.resources.people import People
from trainyard.resources.policies import Policies
from trainyard.resources.reports import Reports
from trainyard.resources.secret_values import Secrets
from trainyard.resources.sessions import Sessions
from trainyard.resources.shares import Shares
from trainyard.resources.studies import Studies
from trainyard.resources.templates import Templates
from trainyard.resources.tokenizers import Tokenizers
from trainyard.resources.tokens import Tokens
from trainyard.resources.uploads import Uploads
from trainyard.resources.usage import Usage
from trainyard.resources.waitlist import Waitlist
from trainyard.resources.workbenches import Workbenches
from trainyard.resources.workspaces import YourWorkspace
from trainyard.transport import config
from trainyard.transport.connection import Connection, Patience
from trainyard.transport.decoding import decode
from trainyard.views import Me, Storage


class Trainyard:
    """A Trainyard server.

        Trainyard()                              # as `trainyard login` left it
        Trainyard("https://gpu.example.edu")     # the token that `login` kept for it
        Trainyard(base_url, token)               # or TRAINYARD_URL and TRAINYARD_TOKEN
        Trainyard(patience=Patience(retries=0))  # fail at once

    Not for several threads at a time. Close it, or use it in a `with`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        patience: Patience | None = None,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.connection = Connection(
            config.resolve(base_url, token),
            timeout_s=timeout_s,
            patience=patience,
            transport=transport,
            sleep=sleep,
        )
        self.jobs = Jobs(self.connection)
        self.studies = Studies(self.connection)
        self.agendas = Agendas(self.connection)
        self.reports = Reports(self.connection)
        self.datasets = Datasets(self.connection)
        self.models = Models(self.connection)
        self.tokenizers = Tokenizers(self.connection)
        self.courses = Courses(self.connection)
        self.templates = Templates(self.connection)
        self.shares = Shares(self.connection)
        self.uploads = Uploads(self.connection)
        self.nodes = Nodes(self.connection)
        self.leases = Leases(self.connection)
        self.waitlist = Waitlist(self.connection)
        self.calendars = Calendars(self.connection)
        self.maintenance = MaintenanceHours(self.connection)
        self.code = CodeArchives(self.connection)
        self.secrets = Secrets(self.connection)
        self.tokens = Tokens(self.connection)
        self.sessions = Sessions(self.connection)
        self.admin = Admin(self.connection)
        self.cleanups = Cleanups(self.connection)
        self.notifications = Notifications(self.connection)
        self.usage = Usage(self.connection)
        self.people = People(self.connection)
        self.policies = Policies(self.connection)
        self.workspace = YourWorkspace(self.connection)
        self.workbenches = Workbenches(self.connection)

    @property
    def url(self) -> str:
        """The server's address."""
        return self.connection.url

    def me(self) -> Me:
        """Return the signed-in user with the number of their waiting and running jobs."""
        return decode(Me, self.connection.get("/v1/me"))

    def storage(self) -> Storage:
        """Return your stored items, with their limits and retention times."""
        return decode(Storage, self.connection.get("/v1/me/storage"))

    def close(self) -> None:
        """Close all connections."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
