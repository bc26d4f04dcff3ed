"""File in a form that a browser sends without scripts: whole, in one request."""

from dataclasses import dataclass

from starlette.datastructures import UploadFile

from dashboard.viewer import TooLarge, Viewer

MOST_BYTES = 32 << 20  # held in memory; with scripts a file goes to the API in parts
MOST_FIELDS = 8


@dataclass(frozen=True)
class SentFile:
    """A file, and the other fields of its form."""

    name: str
    content: bytes
    fields: dict[str, str]


async def read_sent_file(viewer: Viewer) -> SentFile:
    """Read the one file of a form.

    Raises ApiProblem (401) before a stranger's bytes are read, TooLarge for more than MOST_BYTES.
    """
    await viewer.me()
    announced = viewer.request.headers.get("content-length", "")
    if not announced.isdigit() or int(announced) > MOST_BYTES:
        raise TooLarge(
            f"Without scripts a file of at most {MOST_BYTES:,} bytes can be sent. Use the "
            "trainyard command, or allow scripts on this page."
        )
    async with viewer.request.form(max_files=1, max_fields=MOST_FIELDS) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        files = [value for value in form.values() if isinstance(value, UploadFile)]
        content = await files[0].read() if files else b""
        return SentFile(files[0].filename or "" if files else "", content, fields)
