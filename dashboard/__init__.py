"""The web pages, rendered from the public API's own answers.

`create(app)` is all that the API needs: `app.include_router(dashboard.create(app))`, after its own
routes.
"""

from dashboard.site_map import create

__all__ = ["create"]
