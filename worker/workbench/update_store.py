"""JupyterLab's store of updates, which waits for no disk.

It has to outlive the server, for `unwritten`, and not the machine. With a flush of the disk for
each key it is up to a second behind a fast typist, and that second is lost if the server dies. The
server reads this file as its configuration, from a copy; it imports nothing of ours.
"""

from typing import Any

from jupyter_server_ydoc.stores import SQLiteYStore


class UpdateStore(SQLiteYStore):  # type: ignore[misc]
    """Store of updates in a database that is written when the operating system likes."""

    async def _init_db(self) -> None:
        await super()._init_db()
        async with self.lock:  # not within another task's transaction
            cursor = await self._db.cursor()
            await cursor.execute("PRAGMA synchronous = OFF")


def configure(config: Any) -> None:
    """Let the server use this store."""
    config.YDocExtension.ystore_class = UpdateStore


if "get_config" in globals():  # read as a configuration
    configure(globals()["c"])
