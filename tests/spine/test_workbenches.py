"""Workbenches on a whole platform: terminals in a sandbox, through the connection of their node."""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import expect, sync_playwright
from websockets.exceptions import InvalidStatus

from standalone import valkey
from tests import chromium
from tests.running import Running, own_port, running_platform, wait_for
from tests.spine.jobs import get
from tests.spine.workbenches import WITHIN_S, Looking, open_socket, start
from trainyard.client import Trainyard
from trainyard.resources.sessions import sign_in
from trainyard.transport.config import Access
from trainyard.transport.connection import Connection
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import why_not_installed

pytestmark = [
    pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here"),
    pytest.mark.xdist_group("workbenches"),
]
PASSWORD = "a long enough password"
SAVES_AT_ITS_END = (
    'sh -c \'trap "echo bye > ~/saved; exit" HUP; echo re""ady; while :; do sleep 0.1; done\'\n'
)


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    # No recipe is trained here, so nothing needs to import torch.
    with running_platform({"TRAINYARD_WARM_LAUNCHER": "false"}) as running:
        yield running


@pytest.fixture(scope="module")
def job(platform: Running) -> str:
    """A terminal that runs."""
    with platform.http() as client:
        return start(client)


def end_all(client: httpx2.Client) -> None:
    """End all workbenches, and wait until what they kept is there."""
    left = [one["id"] for one in client.get("/v1/workbenches").raise_for_status().json()["data"]]
    for one in left:
        client.post(f"/v1/jobs/{one}/cancel").raise_for_status()
    for one in left:
        wait_for(lambda one=one: get(client, one)["state"] == "cancelled", what="its end")


@contextmanager
def second_api(platform: Running) -> Iterator[str]:
    """Another API process on the same database and Redis; yields its address."""
    port = own_port()
    environment = {
        "TRAINYARD_DATABASE_URL": platform.data.database_url,
        "TRAINYARD_REDIS_URL": valkey.url(platform.data.path),
        "TRAINYARD_STORE": str(platform.data.store),
        "TRAINYARD_PORT": str(port),
    }
    other = subprocess.Popen([sys.executable, "-m", "api.main"], env={**os.environ, **environment})
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        other.terminate()
        other.wait(timeout=30)


def test_a_terminal_is_at_home_in_the_workspace_and_sees_nothing_of_the_platform(
    platform: Running, job: str
) -> None:
    with Looking.at(platform, job, rows=33, columns=99) as look:
        look.type("pwd; stty size; tty; ls -d /work /root /job/sdk/* 2>/dev/null; echo do''ne\n")
        shown = look.wait_for("done").decode()
        assert "/job/workspace" in shown
        assert "33 99" in shown
        assert "/dev/pts/0" in shown
        look.type(
            "env | grep -c TRAINYARD_; env | grep -i -c -E 'token|redis|database'; echo e''nd\n"
        )
        assert "\r\n0\r\nend" in look.wait_for("end").decode()


def test_what_was_shown_while_nobody_looked_is_shown_again_from_where_one_left(
    platform: Running, job: str
) -> None:
    with Looking.at(platform, job, "again") as look:
        assert look.facts["is_new"] is True
        look.type("X=kept; (sleep 0.3; echo mean''while) & echo bef''ore\n")
        look.wait_for("before")
        seen = look.offset
    with Looking.at(platform, job, "again", offset=seen) as look:
        assert look.facts["is_new"] is False
        shown = look.wait_for("meanwhile")
        assert b"before" not in shown
        look.type("echo =$X=\n")
        look.wait_for("=kept=")


@pytest.mark.slow
def test_two_people_of_one_account_see_one_terminal_through_two_api_processes(
    platform: Running, job: str
) -> None:
    with second_api(platform) as url:

        def through_the_other() -> Looking | None:
            try:
                return Looking.at(platform, job, "shared", url=url)
            except (OSError, InvalidStatus):
                return None  # it starts

        with (
            wait_for(through_the_other, what="the second API", within_s=60) as far,
            Looking.at(platform, job, "shared") as near,
        ):
            near.type("echo from ne''ar\n")
            far.wait_for("from near")
            far.type("head -c 600000 /dev/zero | tr '\\0' x; echo; echo from f''ar\n")
            assert len(near.wait_for("from far")) > 600_000
            assert len(far.wait_for("from far")) > 600_000


def test_the_death_of_the_api_costs_a_reconnect_and_not_the_terminal(
    platform: Running, job: str
) -> None:
    with Looking.at(platform, job, "kept") as look:
        look.type("Y=alive; echo re''ady\n")
        look.wait_for("ready")
        seen = look.offset
        platform.process("api").kill()
        look.wait_for_end()

    def again() -> Looking | None:
        try:
            return Looking.at(platform, job, "kept", offset=seen)
        except (OSError, InvalidStatus):
            return None

    with wait_for(again, what="the terminal", within_s=60) as look:
        look.type("echo =$Y=\n")
        look.wait_for("=alive=")


def test_nobody_else_enters_and_no_foreign_page_does_with_ones_cookie(
    platform: Running, job: str
) -> None:
    path = f"/v1/workbenches/{job}/terminals/1"
    with Trainyard(platform.url, platform.token) as ada:
        ada.admin.add_user("eve", password=PASSWORD)
    with closing(Connection(Access(platform.url, None))) as connection:
        other = sign_in(connection, "eve", PASSWORD).secret

    def refused(**given: str) -> int:
        token = given.pop("token", None)
        with pytest.raises(InvalidStatus) as caught:
            open_socket(platform.url, path, token=token, **given)
        return caught.value.response.status_code

    assert refused() == 401
    assert refused(token="ty_nonsense") == 401
    assert refused(token=other) == 404
    with platform.http() as client:
        signed_in = client.post(
            "/v1/sessions", json={"name": "ada", "password": "correct horse battery"}
        )
        cookie = signed_in.headers["set-cookie"].split(";")[0]
    assert refused(Cookie=cookie) == 403
    assert refused(Cookie=cookie, Origin="http://evil.example") == 403
    assert refused(Cookie=cookie, Origin=f"http://x.localhost:{platform.port}") == 403
    with open_socket(platform.url, path, Cookie=cookie, Origin=platform.url) as opened:
        assert opened.recv(timeout=WITHIN_S)
    tunnel = f"/v1/node/workbenches/{job}/1/tunnel"
    with pytest.raises(InvalidStatus) as caught:
        open_socket(platform.url, tunnel, token=platform.token)
    assert caught.value.response.status_code == 401


@pytest.mark.browser
def test_a_browser_shows_the_terminal_and_goes_on_after_the_api_was_away(
    platform: Running, job: str
) -> None:
    found = chromium.find()
    if found is None:
        pytest.skip("there is no Chromium here")
    with platform.http() as client, sync_playwright() as playwright:
        link = client.post("/v1/me/login-link").raise_for_status().json()["url"]
        browser = playwright.chromium.launch(executable_path=found)
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(link)
        page.click("button[type=submit]")
        page.wait_for_url("**/jobs")
        page.goto(f"{platform.url}/workbenches")
        page.click(f'a[href="/workbenches/{job}"]')
        rows = page.locator(".xterm-rows")
        expect(rows).to_contain_text("$", timeout=20_000)
        page.keyboard.type("Z=browser; echo se''en\n")
        expect(rows).to_contain_text("seen", timeout=20_000)
        expect(page).to_have_title(re.compile("ends .* min left"))
        platform.process("api").kill()
        expect(page.locator("#bench-line")).to_contain_text("Trying again", timeout=20_000)
        expect(page.locator("#bench-line")).to_have_text("", timeout=60_000)
        page.keyboard.type("echo =$Z=\n")
        expect(rows).to_contain_text("=browser=", timeout=20_000)
        assert errors == []
        browser.close()


def test_the_command_line_sits_in_front_of_it_reconnects_and_leaves(
    platform: Running, job: str
) -> None:
    pid, screen = pty.fork()
    if pid == 0:
        os.environ |= {"TRAINYARD_URL": platform.url, "TRAINYARD_TOKEN": platform.token}
        cli = "from trainyard.cli import main; main()"
        arguments = ["workbench", "open", job, "--terminal", "cli"]
        os.execv(sys.executable, [sys.executable, "-c", cli, *arguments])
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    os.set_blocking(screen, False)
    shown = bytearray()

    def shows(text: bytes) -> bool:
        with suppress(BlockingIOError, OSError):
            shown.extend(os.read(screen, 65536))
        return text in shown

    def wait_to_see(text: bytes) -> None:
        wait_for(lambda: shows(text), what=f"{text!r} in {bytes(shown)!r}", within_s=60)

    try:
        wait_to_see(b"min left")  # in the title
        os.write(screen, b"W=cli; stty size; echo re''ady\n")
        wait_to_see(b"ready\r\n")
        assert b"31 97" in shown
        os.kill(pid, signal.SIGWINCH)
        platform.process("api").kill()
        wait_to_see(b"connection lost")
        del shown[:]
        wait_to_see(b"min left")
        os.write(screen, b"echo =$W=\n")
        wait_to_see(b"=cli=")
        assert b"ready" not in shown  # what was seen is not shown again
        os.write(screen, b"\x1d")
        wait_to_see(b"You have left; it goes on")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(screen)


def test_stock_ssh_and_scp_go_in_and_lead_nowhere_else(
    platform: Running, job: str, tmp_path: Path
) -> None:
    if shutil.which("ssh") is None or find_spec("asyncssh") is None:
        pytest.skip("there is no OpenSSH client, or no asyncssh, here")
    environment = {
        **os.environ,
        "XDG_CONFIG_HOME": str(tmp_path),
        "TRAINYARD_URL": platform.url,
        "TRAINYARD_TOKEN": platform.token,
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    cli = (sys.executable, "-c", "from trainyard.cli import main; main()")
    done = run(*cli, "ssh", job, "--", "pwd; echo out >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "/job/workspace\n", "out\n")
    config, host = str(tmp_path / "trainyard" / "ssh" / "config"), f"{job}.trainyard"
    on_terminal = run("ssh", "-F", config, "-tt", host, "tty; echo agent=$SSH_AUTH_SOCK")
    assert "/dev/pts/" in on_terminal.stdout
    assert on_terminal.stdout.endswith("agent=\n")  # text mode has turned CR LF into LF
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(os.urandom(1_000_000))
    assert run("scp", "-F", config, str(sent), f"{host}:sent").returncode == 0
    assert run("scp", "-F", config, f"{host}:sent", str(back)).returncode == 0
    assert back.read_bytes() == sent.read_bytes()
    assert "sent" in run("ssh", "-F", config, host, "ls ~").stdout.split()  # at home, to be kept
    assert run("ssh", "-F", config, "-W", "192.0.2.1:80", host).returncode == 255
    refused = ("-R", "9999:localhost:22", "-o", "ExitOnForwardFailure=yes")
    assert run("ssh", "-F", config, *refused, host, "true").returncode == 255
    other_key = tmp_path / "other"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other_key))
    strange = ("-o", f"IdentityFile={other_key}", "-F", "none", "-o", "StrictHostKeyChecking=no")
    way = next(line.strip() for line in Path(config).read_text().splitlines() if "Proxy" in line)
    proxy = way.replace("ProxyCommand ", "ProxyCommand=").replace("%n", host)
    known = ("-o", f"UserKnownHostsFile={tmp_path / 'known'}")
    assert "Permission denied" in run("ssh", *strange, *known, "-o", proxy, host, "true").stderr


def test_rsync_goes_through_trainyard_ssh(platform: Running, job: str, tmp_path: Path) -> None:
    if shutil.which("rsync") is None or shutil.which("ssh") is None:
        pytest.skip("there is no rsync, or no OpenSSH client, here")
    if find_spec("asyncssh") is None:
        pytest.skip("there is no asyncssh here")
    environment = {
        **os.environ,
        "XDG_CONFIG_HOME": str(tmp_path),
        "TRAINYARD_URL": platform.url,
        "TRAINYARD_TOKEN": platform.token,
    }
    cli = (sys.executable, "-c", "from trainyard.cli import main; main()")
    subprocess.run([*cli, "ssh", job, "--", "true"], env=environment, check=True, timeout=60)
    way = f"ssh -F {tmp_path / 'trainyard' / 'ssh' / 'config'}"
    sent, back = tmp_path / "sent", tmp_path / "back"
    for name in ("one", "two words", "deep/er"):
        (sent / name).parent.mkdir(parents=True, exist_ok=True)
        (sent / name).write_bytes(os.urandom(300_000))
    there = f"{job}.trainyard:synced/"

    def sync(*paths: str) -> str:
        command = ["rsync", "-a", "--stats", "-e", way, *paths]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    sync(f"{sent}/", there)
    (sent / "one").write_bytes((sent / "one").read_bytes() + b"more")
    assert "Number of regular files transferred: 1" in sync(f"{sent}/", there)
    sync(there, f"{back}/")
    for name in ("one", "two words", "deep/er"):
        assert (back / name).read_bytes() == (sent / name).read_bytes()


def test_a_second_one_cannot_write_to_the_workspace_and_is_at_home_elsewhere(
    platform: Running, job: str
) -> None:
    with platform.http() as client:
        second = start(client)
        with Looking.at(platform, second) as look:
            look.type("echo home=$HOME; touch /job/workspace/x || echo read-o''nly\n")
            assert b"home=/tmp" in look.wait_for("read-only")
        client.post(f"/v1/jobs/{second}/cancel").raise_for_status()


def test_it_is_listed_with_its_end_and_what_it_saves_at_its_end_stays(
    platform: Running, job: str
) -> None:
    with platform.http() as client, Trainyard(platform.url, platform.token) as sdk:
        listed = {one.id: one for one in sdk.workbenches.list()}
        assert listed[job].kind == "terminal"
        assert listed[job].ends_at is not None
        with Looking.at(platform, job, "last") as look:
            look.type(SAVES_AT_ITS_END)
            look.wait_for("ready")
            client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
            look.wait_for_end()
        wait_for(lambda: get(client, job)["state"] == "cancelled", what="its end", within_s=20)
        assert job not in {one.id for one in sdk.workbenches.list()}

        def kept() -> bool:
            return "saved" in {one.path for one in sdk.workspace.list()}

        wait_for(kept, what="what a program saved when it was told to end", within_s=20)
        with pytest.raises(InvalidStatus) as caught:
            Looking.at(platform, job)
        assert caught.value.response.status_code == 409


@pytest.mark.browser
def test_a_notebook_runs_in_the_browser_and_what_was_typed_last_is_kept(
    platform: Running,
) -> None:
    if why := why_not_installed() or ("" if chromium.find() else "there is no Chromium here"):
        pytest.skip(why)
    with platform.http() as client:
        end_all(client)  # the only one that is there writes to the workspace
        notebook = start(client, kind="jupyter", resources={"wall_time": "14min"})
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium.find())
            page = browser.new_page()
            page.goto(client.post("/v1/me/login-link").raise_for_status().json()["url"])
            page.click("button[type=submit]")
            page.wait_for_url("**/jobs")
            page.goto(f"{platform.url}/workbenches")
            page.click("text=Open JupyterLab")
            page.click(".jp-LauncherCard[data-category=Notebook]")
            page.wait_for_selector("text=Python 3 | Idle")
            assert page.url.startswith(f"http://{notebook.removeprefix('job_')}-1.localhost:")
            page.click(".jp-NotebookPanel .cm-content >> nth=0")
            page.keyboard.type("print('sum', 20 + 22)")
            page.keyboard.press("Shift+Enter")
            page.wait_for_selector("text=sum 42")
            expect(page.locator("#trainyard-clock")).to_contain_text(re.compile("ends .*1[34] min"))
            expect(page).to_have_title(re.compile("^! ends .* min left · .*Untitled"))
            expect(page.locator(".Toastify__toast")).to_contain_text("min left")
            page.keyboard.type("# typed in the last moment")
            client.post(f"/v1/jobs/{notebook}/cancel").raise_for_status()
            wait_for(
                lambda: get(client, notebook)["state"] == "cancelled", what="its end", within_s=30
            )
            browser.close()

        def kept() -> bool:
            found = client.get("/v1/workspace/content", params={"path": "Untitled.ipynb"})
            return "sum 42" in found.text and "# typed in the last moment" in found.text

        wait_for(kept, what="the notebook, with its output and its last words", within_s=20)
