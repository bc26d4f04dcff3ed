"""JupyterLab of a workbench: the command that serves it on a socket inside, and its kernel.

The lock is at the API, and the socket is its user's alone; so it asks for no token of its own. Host
and Origin reach it unchanged, by which it refuses requests of other pages itself. Documents are
kept by the server as they are typed (jupyter-collaboration), not by a browser now and then.
"""

import importlib.util
import json
import shutil
from pathlib import Path

from worker.workbench import unwritten
from worker.workbench.porter import AFTER_SERVER, SOCKET

NEEDED = ("jupyterlab", "jupyter_collaboration", "ipykernel")
UPDATE_STORE = Path(__file__).with_name("update_store.py")
CLOCK = Path(__file__).with_name("clock")  # an extension of ours: the minutes that are left
SHARE, CONFIG = "share", "config"  # of the porter's folder: where Jupyter looks first
# The grammar of international URLs takes half of the start to compile. jsonschema does without it,
# and no schema of Jupyter's has such a URL.
START = """\
import sys
sys.modules["rfc3987_syntax"] = None
from jupyterlab.labapp import main
sys.exit(main())
"""
NEWS = "@jupyterlab/apputils-extension:announcements"  # asks for leave to fetch them


def why_not_installed() -> str:
    """Return the reason why this node has no JupyterLab; empty if it has."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"JupyterLab is not installed on this node ({', '.join(missing)} missing). An "
        "administrator installs it with the extra `workbench`: pip install '.[workbench]'"
    )


def server_command(python: str, home: str) -> list[str]:
    """Return the command of the server. `python` is the node's: packages of the workbench's own
    environment are for its kernels."""
    options = {
        "ServerApp.sock": SOCKET,
        "ServerApp.sock_mode": "0600",
        "ServerApp.root_dir": home,
        "ServerApp.open_browser": "False",
        "ServerApp.allow_root": "True",  # the user of a namespace may have the number 0
        "ServerApp.allow_remote_access": "True",  # the API has checked the host
        "ServerApp.terminals_enabled": "True",
        "IdentityProvider.token": "",
        "LabApp.extension_manager": "readonly",
        "LabApp.check_for_updates_class": "jupyterlab.handlers.announcements.NeverCheckForUpdate",
        "SQLiteYStore.db_path": unwritten.STORE,
        "BaseFileIdManager.db_path": unwritten.FILE_IDS,
    }
    return [
        *(python, "-c", START),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def server_variables(porter: str, *, python: str, home: str) -> dict[str, str]:
    """Return the server's variables, and the porter's: the command that writes what the server has
    not, if it dies. `porter` is the porter's folder inside."""
    program = f"{porter}/worker/workbench/{Path(unwritten.__file__).name}"
    return {
        AFTER_SERVER: json.dumps([python, program, home]),
        "JUPYTER_PATH": f"{porter}/{SHARE}",
        "JUPYTER_CONFIG_PATH": f"{porter}/{CONFIG}",
        "JUPYTER_RUNTIME_DIR": "/tmp/jupyter",  # keys of kernels, which need not last
        "JUPYTER_PREFER_ENV_PATH": "1",
    }


def place_settings(folder: Path, python: str) -> None:
    """Write into the porter's folder the kernel that notebooks start with, the interpreter of the
    workbench's environment, the pages' settings and their clock, and the server's store."""
    extension = folder / SHARE / "labextensions" / "trainyard-clock"
    (extension / "static").mkdir(parents=True)
    shutil.copyfile(CLOCK / "package.json", extension / "package.json")
    shutil.copyfile(CLOCK / "clock.js", extension / "static" / "clock.js")
    settings = folder / CONFIG / "labconfig"
    settings.mkdir(parents=True)
    (settings / "page_config.json").write_text(json.dumps({"disabledExtensions": {NEWS: True}}))
    shutil.copyfile(UPDATE_STORE, folder / CONFIG / "jupyter_server_config.py")
    kernel = folder / SHARE / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": "Python 3", "language": "python"})
    )
