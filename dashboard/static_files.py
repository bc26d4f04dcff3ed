"""Style sheets, scripts and vendored libraries, served from memory of their names alone."""

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

ROOT = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
    "": "text/plain; charset=utf-8",
}


VERSIONED = re.compile(r"^[0-9a-f]{12}/")
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class File:
    """One file below static/."""

    content: bytes
    media_type: str
    etag: str


@cache
def files() -> dict[str, File]:
    """All of them by name, read once."""
    return {
        path.relative_to(ROOT).as_posix(): File(
            content := path.read_bytes(),
            MEDIA_TYPES[path.suffix],
            f'"{sha256(content).hexdigest()[:20]}"',
        )
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
    }


@cache
def version() -> str:
    """Names what all of them hold now. It stands in their addresses, so that browsers keep them."""
    etags = "".join(name + file.etag for name, file in files().items())
    return sha256(etags.encode()).hexdigest()[:12]


def address(name: str) -> str:
    """Return the address of a file for a page; scripts find each other by relative addresses."""
    return f"/static/{version()}/{name}"


async def answer(request: Request) -> Response:
    """The file that the address names, also under the version of a page that another API made
    during an upgrade; then, and without a version, browsers ask again each time."""
    path = str(request.path_params["path"])
    file = files().get(VERSIONED.sub("", path))
    if file is None:
        return PlainTextResponse("This file does not exist.", status_code=404)
    headers = {
        "ETag": file.etag,
        "Cache-Control": FOR_EVER if path.startswith(version()) else "no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
