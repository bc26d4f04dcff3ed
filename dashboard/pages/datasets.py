"""The texts that jobs can train on. An upload goes from the browser straight to the API."""

import asyncio
from collections.abc import Sequence

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sent_file import read_sent_file
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Dataset, DatasetRows, RowPreview, Tokenizer, Upload

ANSWERED = (403, 404, 409)
MOST_UPLOADS = 20  # listed; `trainyard uploads list` has all
UPLOAD_ANSWERED = (400, *ANSWERED, 413, 422, 507)


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return await _page(viewer, None)


async def upload(viewer: Viewer) -> Response:
    """Keep the one file that a browser without scripts has sent."""
    sent = await read_sent_file(viewer)
    asked = {"name": sent.fields.get("name", ""), "format": sent.fields.get("format", "text")}
    try:
        await viewer.call("POST", "/v1/datasets", query=asked, content=sent.content)
    except ApiProblem as refused:
        if refused.status not in UPLOAD_ANSWERED:
            raise
        return await _page(viewer, refused)
    return redirect("/datasets")


async def delete(viewer: Viewer) -> Response:
    """Remove one of one's own."""
    try:
        await viewer.call("DELETE", f"/v1/datasets/{viewer.part('dataset_id')}")
    except ApiProblem as refused:
        if refused.status not in ANSWERED:
            raise
        return await _page(viewer, refused)
    return redirect("/datasets")


async def preview(viewer: Viewer) -> Response:
    """One dataset, its first rows as tokens by the tokenizer that the address names."""
    path, tokenizer = f"/v1/datasets/{viewer.part('dataset_id')}", viewer.query("tokenizer")
    me, dataset, (tokenizers, _) = await asyncio.gather(
        viewer.me(), viewer.get(Dataset, path), viewer.page(Tokenizer, "/v1/tokenizers")
    )
    rows: Sequence[RowPreview] = ()
    refused: ApiProblem | None = None
    try:
        asked = {"tokenizer": tokenizer or "bytes"}
        rows = (await viewer.get(DatasetRows, f"{path}/rows", asked)).rows
    except ApiProblem as problem:
        if problem.status not in (404, 422):
            raise
        refused = problem
    context = {
        "me": me,
        "section": "datasets",
        "dataset": dataset,
        "tokenizers": tokenizers,
        "tokenizer": tokenizer,
        "rows": rows,
        "refused": refused,
    }
    return render("dataset.html", context)


async def delete_upload(viewer: Viewer) -> Response:
    """Delete an upload that was broken off."""
    try:
        await viewer.call("DELETE", f"/v1/uploads/{viewer.part('upload_id')}")
    except ApiProblem as refused:
        if refused.status not in ANSWERED:
            raise
        return await _page(viewer, refused)
    return redirect("/datasets")


async def _page(viewer: Viewer, refused: ApiProblem | None) -> Response:
    me, (datasets, has_more), (uploads, _) = await asyncio.gather(
        viewer.me(), viewer.page(Dataset, "/v1/datasets"), viewer.page(Upload, "/v1/uploads")
    )
    context = {
        "me": me,
        "section": "datasets",
        "datasets": datasets,
        "has_more": has_more,
        "uploads": [upload for upload in uploads if upload.format != "file"][:MOST_UPLOADS],
        "refused": refused,
    }
    return render("datasets.html", context, status=refused.status if refused else 200)
