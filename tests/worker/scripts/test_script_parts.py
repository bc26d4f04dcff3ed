"""The parts that a script's job is made of: its environment, its numbers, its secrets, its end."""

import io
import json
import os
import struct
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from core.spec.code_archive import BadArchive, unpack
from core.states import Outcome
from strategies.plan.run_directory import verify_checkpoint
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node
from tests.worker.script_orders import output_of, packed, script_order
from worker.node.attempts import Attempt
from worker.node.plain_files import open_plain, plain_files
from worker.preparing.environments import CannotBuild, build, requirements_of
from worker.ranks.judge import Evidence, RankEvidence, judge
from worker.ranks.tracebacks import remedy_for, traceback_error
from worker.scripts.event_files import masked_crc, read_records
from worker.scripts.masking import Masks
from worker.scripts.sandbox import Box, Level, folders_above, gpu_devices
from worker.scripts.script_metrics import ScriptMetrics
from worker.scripts.script_output import ScriptOutput
from worker.scripts.script_run import ScriptFolders
from worker.shipping.spool import read_piece

# ----------------------------------------------------------------------------------------- network


@pytest.mark.parametrize("level", Level)
def test_the_host_s_network_comes_with_its_rdma_devices_and_only_where_it_is_allowed(
    level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tmp_path / "infiniband"
    devices.mkdir()
    for name in ("uverbs0", "rdma_cm"):
        (devices / name).touch()
    monkeypatch.setattr("worker.scripts.sandbox.RDMA", str(devices))
    monkeypatch.setattr("worker.scripts.sandbox._bwrap", lambda: "/usr/bin/bwrap")
    unshared = {"--unshare-net", "--net"}
    for on_host in (False, True):
        box = Box(
            folder=tmp_path / "box",
            command=["true"],
            environment={},
            working_folder="/",
            binds=[],
            on_host_network=on_host,
        )
        (tmp_path / "box").mkdir(exist_ok=True)
        command, told = box.launch(level)
        shown = " ".join(command) + told.decode()
        assert bool(unshared.intersection(command)) is not on_host
        assert (f"{devices}/uverbs0" in shown, f"{devices}/rdma_cm" in shown) == (on_host, on_host)


# ------------------------------------------------------------------------------------ environments


def wheel(folder: Path, name: str, version: str, source: str, *, needs: str = "") -> None:
    """A wheel of one module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def test_an_environment_is_built_once_from_a_folder_of_wheels(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "tinynet", "1.2", "SIZE = 3\n")
    said: list[str] = []
    folders = [
        build(
            ["tinynet==1.2"],
            tmp_path / "cache",
            wheels=tmp_path / "wheels",
            say=said.append,
            cancelled=lambda: False,
        )
        for _ in range(2)
    ]
    assert folders[0] == folders[1]
    assert any("Building the environment: tinynet==1.2" in line for line in said)
    assert said[-1] == "The environment of 1 requirement is already built."
    assert list(folders[0].glob("lib/python*/site-packages/tinynet.py"))
    [pth] = folders[0].glob("lib/python*/site-packages/*.pth")
    assert any(Path(line, "torch").is_dir() for line in pth.read_text().split())


@pytest.mark.slow
def test_the_nodes_torch_stays_unless_the_program_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for torchvision: each of its versions wants one of torch, its newest the newest."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # this machine may bound versions itself
    wheels, ours = tmp_path / "wheels", metadata.version("torch").partition("+")[0]
    wheel(wheels, "vision", "1.0", "", needs=f"torch=={ours}")
    wheel(wheels, "vision", "2.0", "", needs="torch==99")
    wheel(wheels, "torch", "99", "")

    def installed(*requirements: str) -> set[str]:
        folder = build(
            requirements,
            tmp_path / "cache",
            wheels=wheels,
            say=lambda line: None,
            cancelled=lambda: False,
        )
        return {path.name for path in folder.glob("lib/python*/site-packages/*.dist-info")}

    assert installed("vision") == {"vision-1.0.dist-info"}
    assert installed("Torch>=99", "vision") == {"vision-2.0.dist-info", "torch-99.dist-info"}
    with pytest.raises(CannotBuild, match=r"vision 2.0 depends on torch==99 .*name torch among"):
        installed("vision==2")


@pytest.mark.slow
def test_a_package_that_can_not_be_had_is_named(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "tinynet", "1.2", "")
    for wanted in ("tinynet==7", "no-such-package-here"):
        with pytest.raises(CannotBuild, match=wanted):
            build(
                [wanted],
                tmp_path / "cache",
                wheels=tmp_path / "wheels",
                say=lambda line: None,
                cancelled=lambda: False,
            )
    assert not list((tmp_path / "cache").glob("environment-*/complete"))


def test_requirements_are_packages_and_nothing_that_runs_or_leads_away(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# ours\nEinops==0.8.1  # shapes\n\nnumpy>=2; python_version>='3.11'\n")
    assert requirements_of(file) == ["Einops==0.8.1", 'numpy>=2; python_version >= "3.11"']
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "x"\ndependencies = ["einops"]\n')
    assert requirements_of(project) == ["einops"]
    for line in (
        "-r other.txt",
        "--index-url https://example.org/simple",
        "-e .",
        "./local",
        "git+https://example.org/x.git",
        "x @ file:///etc/passwd",
        "/etc/passwd",
    ):
        file.write_text(line)
        with pytest.raises(CannotBuild):
            requirements_of(file)


# ----------------------------------------------------------------------------------------- numbers


def event(step: int, tag: str, value: float) -> bytes:
    """A record as TensorBoard's writer makes it."""
    content = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(content)]) + content
    record = b"\x09" + struct.pack("<d", 1.0) + b"\x10" + bytes([step])
    record += b"\x2a" + bytes([len(summary)]) + summary
    head = struct.pack("<Q", len(record))
    return (
        head + struct.pack("<I", masked_crc(head)) + record + struct.pack("<I", masked_crc(record))
    )


def test_crc_is_that_of_the_standard() -> None:
    """RFC 3720, B.4: 32 bytes of zeros have the CRC-32C 8a9136aa."""
    crc = (masked_crc(bytes(32)) - 0xA282EAD8) & 0xFFFFFFFF
    assert ((crc << 15) | (crc >> 17)) & 0xFFFFFFFF == 0x8A9136AA


def test_scalars_of_event_files_are_read_up_to_what_is_whole() -> None:
    whole = event(1, "loss", 2.0) + event(2, "loss", 1.5)
    records = read_records(whole + event(3, "loss", 1.0)[:-1])
    assert [(one.step, one.tag, one.value) for one in records.scalars] == [
        (1, "loss", 2.0),
        (2, "loss", 1.5),
    ]
    assert (records.end, records.is_broken) == (len(whole), False)
    damaged = bytearray(whole)
    damaged[20] ^= 1
    assert read_records(bytes(damaged)).is_broken
    assert read_records(b"\xff" * 100).is_broken


def test_numbers_come_from_the_log_and_from_event_files_once_each(tmp_path: Path) -> None:
    folders = ScriptFolders(Attempt(tmp_path / "job_a.1"))
    for folder in folders.own:
        folder.mkdir(parents=True)
    metrics = ScriptMetrics(folders)
    folders.metrics.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    metrics.collect(last=True)
    with folders.metrics.open("a") as file:
        file.write('ss": 2.0}\n')
    (folders.code / "runs").mkdir()
    (folders.code / "runs" / "events.out.tfevents.7").write_bytes(event(2, "train/acc", 0.5))
    metrics.collect(last=True)
    metrics.collect(last=True)
    lines = [json.loads(line) for line in folders.attempt.metrics.read_text().splitlines()]
    assert lines == [
        {"step": 1, "loss": 2.5},
        {"step": 2, "loss": 2.0},
        {"step": 2, "train/acc": 0.5},
    ]
    assert (metrics.first_loss, metrics.last_loss) == (2.5, 2.0)


# ------------------------------------------------------------------------------------------ output


def test_output_is_kept_while_the_script_runs_once_it_has_been_quiet(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    kept = ScriptOutput(output, tmp_path / "artifacts", tmp_path / "checkpoints", 2, kept_step=0)
    assert kept.look(now=0, step=5) is None
    (output / "epoch=1.ckpt").write_text("one")
    assert kept.look(now=1, step=5) is None  # it has just come
    assert kept.look(now=10, step=6) is None
    assert kept.look(now=30, step=7) == "step-000007"
    assert kept.look(now=99, step=8) is None  # nothing new
    (output / "epoch=1.ckpt").write_text("two, longer")
    (output / "link").symlink_to("/etc/passwd")
    (output / "a b.txt").touch()
    assert kept.conclude(step=7) == ("step-000008", ["a b.txt"])
    checkpoint = tmp_path / "checkpoints" / "step-000008"
    assert [file.path for file in verify_checkpoint(checkpoint).files] == ["epoch=1.ckpt"]
    assert (checkpoint / "epoch=1.ckpt").read_text() == "two, longer"
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["epoch=1.ckpt"]


def test_no_look_leaves_the_scripts_folder(tmp_path: Path) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    for folder in (own, others):
        (folder / "runs").mkdir(parents=True)
        (folder / "runs" / "file").write_text("text")
    assert [entry.name for entry in plain_files(own)] == ["runs/file"]
    os.close(open_plain(own, "runs/file"))
    (own / "runs" / "file").unlink()
    (own / "runs").rmdir()
    (own / "runs").symlink_to(others / "runs")
    (own / "linked").symlink_to(others / "runs" / "file")
    os.mkfifo(own / "pipe")
    assert list(plain_files(own)) == []
    for name in ("runs/file", "linked", "pipe"):
        with pytest.raises(OSError, match=r"symbolic|irectory|not a plain"):
            open_plain(own, name)


# --------------------------------------------------------------------------------- secrets and code


def test_a_secret_is_taken_out_of_a_log_wherever_a_piece_ends(tmp_path: Path) -> None:
    masks = Masks.of(["s3cret-value", "abc"])
    log = tmp_path / "stdout.log"
    log.write_text("it is s3cret-value, and s3cret")
    first = read_piece(log, 0, last=False, masks=masks)
    assert first == (24, "it is ***, and ")
    log.write_text("it is s3cret-value, and s3cret-value\n")
    assert read_piece(log, 24, last=False, masks=masks) == (13, "***\n")
    log.write_text("abc s3cret")
    assert read_piece(log, 0, last=True, masks=masks) == (10, "abc s3cret")


def test_unpacking_trusts_no_directory(tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    archive.write_bytes(packed({"a/b.py": "print(1)", "c.py": ""}))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "a" / "b.py").read_text() == "print(1)"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as opened:
        opened.writestr("../evil.py", "x")
    archive.write_bytes(content.getvalue())
    with pytest.raises(BadArchive, match="is not a valid path"):
        unpack(archive, tmp_path / "other")
    assert not (tmp_path / "evil.py").exists()


# --------------------------------------------------------------------------------- how it is judged


def test_the_last_exception_of_a_rank_is_found_in_its_output(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text(
        "a warning\nTraceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n    main()\n'
        "ValueError: learning rate is 7\n"
    )
    error = traceback_error(log)
    assert error is not None
    assert (error.type, error.message) == ("ValueError", "learning rate is 7")
    log.write_text("no such thing\n")
    assert traceback_error(log) is None


TOLD = [
    (
        "under torchrun",
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/code/train.py", line 3, in <module>\n'
        "[rank1]:     main()\n[rank1]: ValueError: learning rate is 7\n"
        "[rank1]:[W1122 ProcessGroup.cpp:1] Warning: destroy_process_group() was not called\n",
        ("ValueError", "learning rate is 7"),
    ),
    (
        "a chain, without a message",
        "Traceback (most recent call last):\n  File 'x', line 1\nKeyError: 'a'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File 'x', line 2\nAssertionError\n",
        ("AssertionError", ""),
    ),
    (
        "the program cannot be read",
        '  File "/job/code/train.py", line 1\n    def f(:\n          ^\n'
        "SyntaxError: invalid syntax\n",
        ("SyntaxError", "invalid syntax"),
    ),
    (
        "of a DataLoader's worker",
        "Traceback (most recent call last):\n  File 'x', line 2\n"
        "OSError: Caught OSError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n  File 'y', line 2\nOSError: disk\n\n",
        ("OSError", "disk"),
    ),
    (
        "and one that ended nothing",
        "Traceback (most recent call last):\n  File 'x', line 2\nValueError: mine\n"
        "Exception ignored in: <function Pool.__del__ at 0x7f>\n"
        "Traceback (most recent call last):\n  File 'y', line 2\nTypeError: theirs\n",
        ("ValueError", "mine"),
    ),
]


def test_the_exception_that_ended_a_rank_is_told_from_what_is_around_it(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    for what, text, expected in TOLD:
        log.write_text(text)
        error = traceback_error(log)
        assert error is not None, what
        assert (error.type, error.message) == expected, what


REMEDIES = [
    ("[Errno 2] No such file or directory: 'data/x/train.bin'", "--include data/x."),
    ("[Errno 2] No such file or directory: '/job/code/data/x/train.bin'", "--include data/x."),
    ("[Errno 2] No such file or directory: './data'", "--include data."),
    ("out.txt not found.", "--include out.txt."),
    ("[Errno 2] No such file or directory: 'runs/1/a.bin'", "--include runs/1."),
    ("[Errno 2] No such file or directory: 'other.txt'", ""),
    ("[Errno 2] No such file or directory: '/etc/data/x'", ""),
    ("[Errno 2] No such file or directory: '../data/x'", ""),
    ("learning rate is 7", ""),
]


def test_a_path_that_was_left_out_is_named_when_it_is_missed() -> None:
    left_out = ["data/", "out.txt", "runs/1/a.bin"]
    for message, ending in REMEDIES:
        remedy = remedy_for(message, left_out)
        assert remedy.endswith(ending), (message, remedy)
        assert bool(remedy) == bool(ending)
    assert "--folder" in remedy_for("[Errno 2] No such file or directory: 'a.txt'", ["./"])


def test_exit_codes_of_scripts_mean_nothing_and_memory_errors_are_told_apart(
    tmp_path: Path,
) -> None:
    evidence = Evidence("n1", [RankEvidence(0, 65)], None, 3, is_script=True)
    assert judge(evidence).outcome is Outcome.USER_ERROR
    log = tmp_path / "stderr.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "x", line 1\n'
        "torch.OutOfMemoryError: CUDA out of memory\n"
    )
    error = traceback_error(log)
    evidence = Evidence("n1", [RankEvidence(0, 1, error)], None, 3, is_script=True)
    assert judge(evidence).outcome is Outcome.OUT_OF_MEMORY


def test_of_a_machines_gpus_only_those_of_the_lease_are_inside() -> None:
    found = {f"nvidia{number}" for number in range(8)}
    found |= {"null", "sda", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset",
              "nvidia-caps"}  # fmt: skip
    steering = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert gpu_devices([5, 2], found) == [*steering, "/dev/nvidia5", "/dev/nvidia2"]
    assert gpu_devices([], found) == []
    instance = gpu_devices([1], found, has_instances=True)
    assert instance == [*steering, "/dev/nvidia1", "/dev/nvidia-caps"]
    assert gpu_devices([8], found) == steering  # not there: the script finds no GPU


def test_folders_above_what_is_mounted_are_made_from_the_outside_in() -> None:
    assert folders_above("/opt/a/b") == ["/opt", "/opt/a"]
    assert folders_above("/usr") == []


# ----------------------------------------------------------------------------------- through a node

FAILS = """
import os, sys
print("the token is", os.environ["HF_TOKEN"])
import tinynet
assert tinynet.SIZE == 3
raise RuntimeError("no data for " + os.environ["HF_TOKEN"])
"""


@pytest.mark.slow
def test_a_script_with_requirements_and_secrets_fails_with_its_own_words(
    api: FakeApi, node: Node, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels", "tinynet", "1.2", "SIZE = 3\n")
    api.secrets["HF_TOKEN"] = "hf_canary_12345"
    node.start(warm=False, TRAINYARD_WHEELS=str(tmp_path / "wheels"))
    files = {"train.py": FAILS, "requirements.txt": "tinynet==1.2\n"}
    key = api.order(script_order(api, files, requirements="requirements.txt", secrets=["HF_TOKEN"]))
    other = {"train.py": "", "requirements.txt": "tinynet==2\n"}
    missing = api.order(script_order(api, other, "job_missing", requirements="requirements.txt"))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.USER_ERROR, (record, output_of(api))
    assert "RuntimeError: no data for ***" in record.reason
    assert record.culprit_rank == 0
    api.wait_for(lambda: (o := api.observed(key)) is not None and o.kept)
    assert "the token is ***" in output_of(api)
    everything = str([api.heartbeats, api.logs, node.log.read_text()])
    assert "hf_canary_12345" not in everything
    assert "Building the environment: tinynet==1.2" in api.logs[key, -1, "stdout"]
    refused = api.wait_for_exit(missing)
    assert refused.outcome is Outcome.START_FAILED
    assert "tinynet==2" in refused.reason


def test_a_node_without_a_sandbox_says_so_and_starts_no_script(api: FakeApi, node: Node) -> None:
    node.start(warm=False, TRAINYARD_SANDBOX="none")
    key = api.order(script_order(api, "print('never')"))
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.START_FAILED
    assert "sandbox_unavailable" in record.reason
    last = api.last()
    assert last is not None
    assert last.inventory.sandbox == ""
    assert "TRAINYARD_SANDBOX" in last.inventory.no_sandbox
    assert output_of(api) == ""
