"""The texts that jobs can train on. An upload goes from the browser straight to the API."""

import asyncio

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sent_file import read_sent_file
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Dataset, DatasetRows, Tokenizer, Upload

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
    answer = await viewer.or_refusal(
        viewer.call("POST", "/v1/datasets", query=asked, content=sent.content), UPLOAD_ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
    return redirect("/datasets")


async def delete(viewer: Viewer) -> Response:
    """Remove one of one's own."""
    answer = await viewer.or_refusal(
        viewer.call("DELETE", f"/v1/datasets/{viewer.part('dataset_id')}"), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
    return redirect("/datasets")


async def preview(viewer: Viewer) -> Response:
    """One dataset, its first rows as tokens by the tokenizer that the address names."""
    path, tokenizer = f"/v1/datasets/{viewer.part('dataset_id')}", viewer.query("tokenizer")
    me, dataset, (tokenizers, _) = await asyncio.gather(
        viewer.me(), viewer.get(Dataset, path), viewer.page(Tokenizer, "/v1/tokenizers")
    )
    asked = {"tokenizer": tokenizer or "bytes"}
    answer = await viewer.or_refusal(viewer.get(DatasetRows, f"{path}/rows", asked), (404, 422))
    context = {
        "me": me,
        "section": "datasets",
        "dataset": dataset,
        "tokenizers": tokenizers,
        "tokenizer": tokenizer,
        "rows": answer.rows if isinstance(answer, DatasetRows) else (),
        "refused": answer if isinstance(answer, ApiProblem) else None,
    }
    return render("dataset.html", context)


async def delete_upload(viewer: Viewer) -> Response:
    """Delete an upload that was broken off."""
    answer = await viewer.or_refusal(
        viewer.call("DELETE", f"/v1/uploads/{viewer.part('upload_id')}"), ANSWERED
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
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
