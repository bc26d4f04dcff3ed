"""Errors of talking to Trainyard. The text of each error says what to do next.

TrainyardError
|-- NotConfigured            no address, or a settings file that cannot be read
|-- BadInput                 refused here, before anything was sent
|-- ConnectionFailed         the server did not answer, after all tries
|-- UnexpectedAnswer         the server answered, but not as Trainyard does
`-- ApiError                 status, code, param, detail, errors: the server refused
    |-- Invalid              400, 413, 415, 422: the request is wrong
    |-- NotSignedIn          401
    |-- Forbidden            403
    |-- NotFound             404: absent, or another user's
    |-- Conflict             409: valid in itself, but not now
    |-- TooMany              429: retry_after_s says when to try again
    `-- ServerFailed         5xx

    try:
        job = client.jobs.create(Path("gpt.yaml").read_text())
    except trainyard.Invalid as error:
        for item in error.errors:
            print(item.param, item.message)
    except trainyard.TrainyardError as error:
        print(error)
"""

from collections.abc import Mapping
from dataclasses import dataclass


class TrainyardError(Exception):
    """Base of all errors that this package raises on purpose."""


class NotConfigured(TrainyardError):
    """No usable address or settings file."""


class BadInput(TrainyardError):
    """The input was refused before anything was sent."""


class ConnectionFailed(TrainyardError):
    """No answer from the server, after all tries."""


class UnexpectedAnswer(TrainyardError):
    """An answer that is not Trainyard's: another server, a proxy, or another version."""


@dataclass(frozen=True)
class Item:
    """One fault of a request."""

    param: str
    code: str
    message: str


class ApiError(TrainyardError):
    """The server refused. `errors` lists every reason that it gave."""

    advice = ""

    def __init__(
        self,
        status: int,
        *,
        code: str,
        detail: str,
        param: str | None = None,
        errors: tuple[Item, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.param = param
        self.errors = errors
        self.retry_after_s = retry_after_s
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"{self.param}: {self.detail}" if self._param_is_news() else self.detail]
        lines += [
            f"  {item.message}" if item.param in item.message else f"  {item.param}: {item.message}"
            for item in self.errors
            if item.message not in self.detail
        ]
        return "\n".join(lines + ([advice] if (advice := self._advice()) else []))

    def _advice(self) -> str:
        return self.advice

    def _param_is_news(self) -> bool:
        named = any(item.param == self.param and item.message for item in self.errors)
        return bool(self.param) and str(self.param) not in self.detail and not named


class Invalid(ApiError):
    """The request is wrong, regardless of the present state."""


class NotSignedIn(ApiError):
    """No token, or one that is unknown, expired or revoked."""

    advice = "Sign in with `trainyard login`, or set TRAINYARD_TOKEN to a valid token."

    def _advice(self) -> str:
        return "" if self.code == "wrong_password" else self.advice


class Forbidden(ApiError):
    """The user's role does not allow the request."""


class NotFound(ApiError):
    """The object is absent or belongs to another user: the two look the same."""


class Conflict(ApiError):
    """The request is valid in itself, but not in the present state."""


class TooMany(ApiError):
    """A rate or count limit was exceeded."""


class ServerFailed(ApiError):
    """The server failed. Trying again is safe: creates carry an idempotency key."""

    advice = (
        "The fault is the server's, not yours. Try again; if this persists, tell an administrator."
    )


KINDS: Mapping[int, type[ApiError]] = {
    401: NotSignedIn,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: TooMany,
}


def kind_of(status: int) -> type[ApiError]:
    """Return the class for an HTTP status of 400 or more."""
    return KINDS.get(status, ServerFailed if status >= 500 else Invalid)
