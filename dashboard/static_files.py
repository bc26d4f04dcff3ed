"""Style sheets, scripts and vendored libraries, served from memory of their names alone."""

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


class StaticFiles:
    """Every file below static/, read once. Browsers ask again each time and get 304."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(ROOT).as_posix(): (path.read_bytes(), MEDIA_TYPES[path.suffix])
            for path in sorted(ROOT.rglob("*"))
            if path.is_file()
        }
        self._etags = {
            name: f'"{sha256(content).hexdigest()[:20]}"'
            for name, (content, _) in self._files.items()
        }

    async def answer(self, request: Request) -> Response:
        """The file that the address names."""
        name = str(request.path_params["path"])
        if name not in self._files:
            return PlainTextResponse("There is no such file.", status_code=404)
        content, media_type = self._files[name]
        headers = {
            "ETag": self._etags[name],
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
        }
        if request.headers.get("if-none-match") == self._etags[name]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)
