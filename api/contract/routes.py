"""The client that this server carries: a wheel of the very code that is installed beside it.

People get their command line from the server that they use, so no package index comes between and
both are of one version. The wheel is the same, byte for byte, in every API process of a version.
"""

import base64
import csv
import io
import zipfile
from functools import cache
from hashlib import sha256
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, Depends, Response

from api.web.auth import anyone
from api.web.process import ProcessDep
from api.web.schemas import View
from core.base.errors import NotFound

DISTRIBUTION, PACKAGE = "trainyard-client", "trainyard"
MADE_AT = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip file can tell: no build differs by it
TAGS = "Wheel-Version: 1.0\nGenerator: trainyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

router = APIRouter(tags=["client"])


class ClientView(View):
    """The client that this server carries."""

    version: str
    filename: str
    url: str
    sha256: str
    """SHA-256 of the wheel. The address in `command` ends with it, so that pip checks its
    download."""
    command: str
    """Shell command that installs or updates the command line and the Python package."""


@router.get("/v1/client", dependencies=[Depends(anyone)])
def get_client(process: ProcessDep) -> ClientView:
    """Return the address of this server's client and the command that installs it."""
    wheel = client_wheel()
    url = f"{process.url}/client/{quote(wheel.filename, safe='+')}"
    return ClientView(
        version=wheel.version,
        filename=wheel.filename,
        url=url,
        sha256=wheel.sha256,
        command=f"pip install '{url}#sha256={wheel.sha256}'",
    )


@router.get("/client/{filename}", dependencies=[Depends(anyone)], response_class=Response)
def download_client(filename: str) -> Response:
    """Download the client's wheel, to be installed with pip."""
    wheel = client_wheel()
    if filename != wheel.filename:
        raise NotFound(f"This server offers {wheel.filename}; GET /v1/client returns its address.")
    return Response(wheel.content, media_type="application/octet-stream")


class Wheel:
    """A built distribution, in memory."""

    def __init__(self, version: str, files: dict[str, bytes]) -> None:
        self.version = version
        self.filename = f"{DISTRIBUTION.replace('-', '_')}-{version}-py3-none-any.whl"
        self.content = _archive(files, record=f"{_information(version)}/RECORD")
        self.sha256 = sha256(self.content).hexdigest()


@cache
def client_wheel() -> Wheel:
    """Build the wheel of the installed client, once.

    Source: the binary distribution format, packaging.python.org (PEP 427, PEP 376 for RECORD).
    """
    installed = distribution(DISTRIBUTION)
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    files = {
        path.relative_to(folder.parent).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    information = _information(installed.version)
    for name in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        files[f"{information}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{information}/WHEEL"] = TAGS.encode()
    return Wheel(installed.version, files)


def _information(version: str) -> str:
    return f"{DISTRIBUTION.replace('-', '_')}-{version}.dist-info"


def _archive(files: dict[str, bytes], *, record: str) -> bytes:
    """Return a zip of the files, with the record of their hashes and sizes as the last one."""
    told = io.StringIO()
    rows = csv.writer(told, lineterminator="\n")
    for name, content in files.items():
        hashed = base64.urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={hashed}", len(content)])
    rows.writerow([record, "", ""])
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in [*files.items(), (record, told.getvalue().encode())]:
            entry = zipfile.ZipInfo(name, MADE_AT)
            entry.external_attr = 0o644 << 16
            target.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()
