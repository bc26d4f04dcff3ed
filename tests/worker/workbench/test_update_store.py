"""The store of updates of JupyterLab's server, as its configuration names it."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("jupyter_server_ydoc") is None:
    pytest.skip("jupyter-collaboration is not installed here", allow_module_level=True)

from traitlets.config.loader import PyFileConfigLoader

from worker.workbench.jupyter import CONFIG, place_settings


def test_the_server_s_store_waits_for_no_disk_and_keeps_what_it_is_given(tmp_path: Path) -> None:
    place_settings(tmp_path, "python")
    loader = PyFileConfigLoader("jupyter_server_config.py", path=str(tmp_path / CONFIG))
    config = loader.load_config()
    config.SQLiteYStore.db_path = str(tmp_path / "documents.db")  # an option of the server
    store_class = config.YDocExtension.ystore_class

    async def keep() -> tuple[int, list[bytes]]:
        async with store_class(path="room", config=config) as store:
            await store.write(b"one")
            await store.write(b"two")
            cursor = await store._db.cursor()
            await cursor.execute("PRAGMA synchronous")
            [synchronous] = await cursor.fetchone()
            return synchronous, [update async for update, *_ in store.read()]

    assert asyncio.run(keep()) == (0, [b"one", b"two"])
    assert (tmp_path / "documents.db").is_file()
