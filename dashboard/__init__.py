"""The web pages, rendered from the public API's own answers.

`create(app)` is all that the API needs: `app.include_router(dashboard.create(app))`, after its own
routes. `nothing_here(app)` answers browsers at addresses that nothing stands for.
"""

from dashboard.site_map import create, nothing_here

__all__ = ["create", "nothing_here"]
