"""Exit codes, from which a script can tell what happened."""

from enum import IntEnum

from trainyard.errors import (
    ApiError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    NotFound,
    NotSignedIn,
    ServerFailed,
    TooMany,
    TrainyardError,
    UnexpectedAnswer,
)


class ExitCode(IntEnum):
    """Exit code: one number for each case that a script would handle differently."""

    OK = 0
    """Done. With `follow` or `submit --follow`: the job succeeded."""
    JOB_FAILED = 1
    """A followed job failed or was cancelled. With `verify`: not the same curve. With `reports
    check`: not what the server wrote."""
    BAD_INPUT = 2
    """Wrong usage, input that the server refused (400, 413, 422), or a plan that can't run."""
    NOT_ALLOWED = 3
    """Not signed in, or not permitted (401, 403)."""
    DOES_NOT_FIT = 3
    """Result of `plan`: the job needs more memory than any node class has.

    For `agenda`: its jobs do not all end in time.
    """
    NOT_FOUND = 4
    """No such job, node, lease or dataset (404)."""
    CONFLICT = 5
    """Valid input, but wrong at this time: taken, already ended, over a limit (409, 429).

    With `verify`: no verdict, or none yet.
    """
    UNREACHABLE = 6
    """No server there, or it failed (5xx). Trying again later may help."""
    INTERRUPTED = 130
    """Ctrl-C. A followed job continues."""


def code_for(error: TrainyardError) -> ExitCode:
    """Return the exit code of an error."""
    if isinstance(error, NotSignedIn | Forbidden):
        return ExitCode.NOT_ALLOWED
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, Conflict) and error.code == "over_time":
        return ExitCode.DOES_NOT_FIT
    if isinstance(error, Conflict | TooMany):
        return ExitCode.CONFLICT
    if isinstance(error, ConnectionFailed | ServerFailed | UnexpectedAnswer):
        return ExitCode.UNREACHABLE
    return ExitCode.BAD_INPUT


def as_document(error: TrainyardError) -> dict[str, object]:
    """Return the JSON that `--json` prints about an error, on stderr."""
    if not isinstance(error, ApiError):
        return {"error": {"code": type(error).__name__, "detail": str(error)}}
    items = [{"param": i.param, "code": i.code, "message": i.message} for i in error.errors]
    return {
        "error": {
            "status": error.status,
            "code": error.code,
            "param": error.param,
            "detail": error.detail,
            "errors": items,
        }
    }
