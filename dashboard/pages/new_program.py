"""Form for a program: its files, the way to run it, and what it reads."""

import asyncio
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sentences import lease_words
from dashboard.viewer import ApiProblem, Viewer
from trainyard.errors import BadInput
from trainyard.packing import PackedCode, pack
from trainyard.transport.decoding import decode
from trainyard.views import Code, Dataset, Job, Lease, Model
from trainyard.wording import reference

ANSWERED = (400, 404, 409, 413, 415, 422, 429)
LAUNCHERS = ("python", "torchrun", "accelerate", "mpirun")
FIRST = {"entry": "main.py", "launcher": "python", "ranks": "1", "wall_time": "10min"}


async def show(viewer: Viewer) -> Response:
    """The empty form."""
    return await _page(viewer, FIRST, {}, ())


async def submit(viewer: Viewer) -> Response:
    """Pack the texts as an archive, and submit a job that runs one of them."""
    fields = await viewer.form_fields()
    form, files = dict(fields), beside(fields)
    try:
        texts = {**files, form.get("entry", ""): form.get("text", "")}
        packed = await asyncio.to_thread(packed_texts, form.get("entry", ""), texts)
        arguments = shlex.split(form.get("arguments", ""))
    except (BadInput, ValueError) as error:
        return await _page(viewer, form, files, [("text", f"{error}")])
    kept = await viewer.or_refusal(
        viewer.call("POST", "/v1/code", content=packed.content), ANSWERED
    )
    if isinstance(kept, ApiProblem):
        return await _page(viewer, form, files, kept.reasons)
    spec = spec_of(form, decode(Code, kept.json()).sha256, arguments)
    key = form.get("key") or secrets.token_urlsafe(16)
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/jobs", json=spec, idempotency_key=key), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, form, files, answer.reasons)
    return redirect(f"/jobs/{decode(Job, answer.json()).id}")


def beside(fields: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the files beside the one that is run: path -> text."""
    paths = [value for name, value in fields if name == "path"]
    contents = [value for name, value in fields if name == "content"]
    return dict(zip(paths, contents, strict=False))


def packed_texts(entry: str, texts: Mapping[str, str]) -> PackedCode:
    """Return an archive of files, by path; `entry` is the one that is run. Raises BadInput."""
    if not entry or not texts[entry].strip():
        raise BadInput("Give the name of the file to run, such as main.py, and its text.")
    with TemporaryDirectory() as folder:
        for path, text in texts.items():
            parts = PurePosixPath(path).parts
            if not parts or "\0" in path or any(part in ("/", "..") for part in parts):
                raise BadInput(f"{path!r} is not a path below the program's folder.")
            file = Path(folder, *parts)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text.replace("\r\n", "\n"), "utf-8")
            except OSError as error:
                raise BadInput(f"{path!r} cannot be a file: {error.strerror}.") from error
        return pack(folder, include=list(texts))


def spec_of(form: dict[str, str], code: str, arguments: list[str]) -> dict[str, object]:
    """Return the job of the form; what is not a number is sent as it is, to be refused."""
    ranks = form.get("ranks", "")
    entry = form.get("entry", "")
    script = {
        "entry": entry,
        "code": code,
        "launcher": form.get("launcher", ""),
        "arguments": arguments,
    }
    inputs = [{kind: form[kind]} for kind in ("dataset", "model") if form.get(kind)]
    spec: dict[str, object] = {
        "name": form.get("name") or Path(entry).stem,
        "script": script,
        "resources": {
            "ranks_per_node": int(ranks) if ranks.isdecimal() else ranks,
            "wall_time": form.get("wall_time", ""),
        },
    }
    if inputs:
        spec["inputs"] = inputs
    if form.get("lease"):
        spec["lease"] = form["lease"]
    return spec


async def _page(
    viewer: Viewer,
    form: Mapping[str, str],
    files: Mapping[str, str],
    reasons: Sequence[tuple[str, str]],
) -> Response:
    me, (leases, _), (datasets, _), (models, _) = await asyncio.gather(
        viewer.me(),
        viewer.page(Lease, "/v1/leases", {"state": ["booked", "active"]}),
        viewer.page(Dataset, "/v1/datasets", {"limit": 200}),
        viewer.page(Model, "/v1/models", {"limit": 200}),
    )
    name = me.user.name
    context = {
        "me": me,
        "section": "jobs",
        "form": form,
        "files": files.items(),
        "launchers": LAUNCHERS,
        "leases": [(lease.id, lease_words(lease)) for lease in leases if lease.kind == "booked"],
        "datasets": [reference(one.name, one.owner, name) for one in datasets],
        "models": [reference(one.name, one.owner, name) for one in models],
        "reasons": reasons,
        "key": secrets.token_urlsafe(16),
    }
    return render("new_program.html", context, status=422 if reasons else 200)
