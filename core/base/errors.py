"""Errors of callers and of the service. Every error becomes a problem document.

ServiceError                    code, status, param
|-- BadRequest                  400, 422: the request itself is wrong
|   `-- NotSupportedYet         422
|-- Unauthenticated             401
|-- Forbidden                   403
|-- NotFound                    404: absent, or somebody else's
|-- Conflict                    409: right in itself, wrong now
|   |-- StaleEpoch              409: from an attempt that is no longer the job's current one
|   `-- HourTaken               409: the node is held by another lease
|-- TooLarge                    413
|-- TooMany                     429
`-- Unavailable                 503
"""

from collections.abc import Sequence
from datetime import datetime


class ServiceError(Exception):
    """Base of all errors. The message tells a person the fault and the next step."""

    status = 500
    code = "internal"
    title = "Internal error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param


class BadRequest(ServiceError):
    """The request is wrong, whatever the state of the world."""

    status = 422
    code = "invalid"
    title = "Invalid request"


class NotSupportedYet(BadRequest):
    """A thing the API knows by name and can't do yet."""

    code = "not_supported_yet"
    title = "Not supported yet"


class Unauthenticated(ServiceError):
    """The token is missing, unknown, expired or revoked."""

    status = 401
    code = "unauthenticated"
    title = "Not signed in"


class Forbidden(ServiceError):
    """The caller is known, but its role does not allow this."""

    status = 403
    code = "forbidden"
    title = "Not allowed"


class NotFound(ServiceError):
    """The object is absent, or somebody else's: both look the same from outside."""

    status = 404
    code = "not_found"
    title = "Not found"


class Conflict(ServiceError):
    """The request is right in itself, wrong in the present state."""

    status = 409
    code = "conflict"
    title = "Conflict"


class StaleEpoch(Conflict):
    """A write about an attempt that is no longer the current one."""

    code = "stale_epoch"
    title = "Stale epoch"


class HourTaken(Conflict):
    """Another lease, offer or maintenance holds one of these hours on this node."""

    code = "node_taken"
    title = "Node taken"

    def __init__(
        self, message: str, *, param: str | None = None, choices: Sequence[datetime] = ()
    ) -> None:
        super().__init__(message, param=param)
        self.choices = list(choices)
        """The nearest starts that are free."""


class TooLarge(ServiceError):
    """The body is over its cap."""

    status = 413
    code = "too_large"
    title = "Too large"


class TooMany(ServiceError):
    """A rate or a count limit is exceeded."""

    status = 429
    code = "too_many"
    title = "Too many"


class Unavailable(ServiceError):
    """A service that this request needs is not available now; trying again later may work."""

    status = 503
    code = "unavailable"
    title = "Unavailable"
