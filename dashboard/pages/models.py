"""Models and tokenizers of a person: where they came from, and which jobs used them."""

import asyncio
import re

from starlette.responses import Response

from dashboard.rendering import render
from dashboard.viewer import Viewer
from trainyard.views import Model, Tokenizer

LIMIT = 100
VERSION = re.compile(r"@\d+$")


async def show_all(viewer: Viewer) -> Response:
    """The newest models."""
    me, (models, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Model, "/v1/models", {"limit": LIMIT})
    )
    context = {"me": me, "section": "datasets", "models": models, "has_more": has_more}
    return render("models.html", context)


async def show(viewer: Viewer) -> Response:
    """One model, with its other versions among the newest models."""
    path = f"/v1/models/{viewer.part('model_id')}"
    me, model, (models, _) = await asyncio.gather(
        viewer.me(), viewer.get(Model, path), viewer.page(Model, "/v1/models", {"limit": LIMIT})
    )
    name = VERSION.sub("", model.name)
    versions = [one for one in models if VERSION.sub("", one.name) == name]
    versions.sort(key=lambda one: -one.version)
    context = {"me": me, "section": "datasets", "model": model, "versions": versions}
    return render("model.html", context)


async def show_tokenizers(viewer: Viewer) -> Response:
    """The newest tokenizers."""
    me, (tokenizers, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Tokenizer, "/v1/tokenizers", {"limit": LIMIT})
    )
    context = {"me": me, "section": "datasets", "tokenizers": tokenizers, "has_more": has_more}
    return render("tokenizers.html", context)
