"""A trainer without torch, for the tests: small steps, the same files, and failures on demand.

The loss is a function of seed and step, and every step is chained into a hash that its checkpoints
carry, so a step that was lost or done twice after a resume shows. What it should do wrong stands in
`behaviour.json` of the node's folder.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.run_directory import (
    Action,
    Control,
    Result,
    RunDirectory,
    checkpoint_name,
    finished_checkpoints,
    read_control,
    write_manifest,
)

EXIT_CODES = {"bad_data": 65, "bad_checkpoint": 66, "diverged": 67, "out_of_memory": 68}


class Failure(Exception):
    """What was asked for."""


def loss_of(seed: int, step: int) -> float:
    """The loss of a step: falls, and depends on the seed."""
    return 5.0 / (1 + 0.01 * step) + (seed % 7) * 0.001


def chain(before: str, step: int) -> str:
    """The hash after `step`."""
    return hashlib.sha256(f"{before}{step}".encode()).hexdigest()


class FakeRank:
    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.plan = directory.read_plan()
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_node = int(os.environ["LOCAL_WORLD_SIZE"])
        self.position = self.rank // self.on_node
        self.is_first_here = self.rank % self.on_node == 0
        self.node = directory.path.parent.parent
        self.behaviour: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError):
            self.behaviour = json.loads((self.node / "behaviour.json").read_text())
        self.stopping = self.saving = False
        self.sequence = 0
        self.step, self.hash = 0, ""

    def run(self) -> int:
        if self.behaviour.get("ignore_sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGTERM, self.terminated)
        for folder in (self.directory.checkpoints, self.directory.artifacts):
            folder.mkdir(exist_ok=True)
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
        (self.directory.path / f"rank-{self.rank}.devices").write_text(devices)
        # Last and at once: who waits for it finds all of it, and everything above.
        pid = str(os.getpid()).encode()
        write_atomically(self.directory.path / f"rank-{self.rank}.pid", pid)
        if self.behaviour.get("grandchild"):
            self.leave_grandchild()
        self.resume()
        sys.stdout.write(f"rank {self.rank} of {self.world} begins, ümläut\n")
        if self.behaviour.get("start_error"):
            raise Failure(self.behaviour["start_error"])
        steps = self.plan.spec.training.steps
        while self.step < steps and not self.stopping:
            self.one_step()
        if self.is_first_here:
            self.finish(finished=self.step >= steps)
        else:
            while not self.directory.result.exists():
                self.look_at_peers()
                time.sleep(0.01)
            while self.behaviour.get("linger"):
                time.sleep(1)
        return 0

    def one_step(self) -> None:
        while self.behaviour.get("hold_after_step") == self.step and not self.may_go_on():
            time.sleep(0.01)
        time.sleep(self.behaviour.get("step_s", 0.02))
        self.step += 1
        self.hash = chain(self.hash, self.step)
        self.fail_if_asked()
        if self.behaviour.get("fill_memory_at_step") == self.step and self.rank == 0:
            _ = [b"x" * (4 << 20) for _ in range(750)]
        self.look_at_peers()
        if self.rank == 0:
            seed = self.plan.spec.training.seed
            self.write_metrics(loss=loss_of(seed, self.step), tokens_per_s=1000.0)
        if self.is_first_here:
            every = self.plan.spec.checkpoint.every_steps
            self.look_at_control()
            if self.stopping or self.saving or (every and self.step % every == 0):
                self.save()
        elif not self.behaviour.get("ignore_control"):
            control = self.control()
            self.stopping |= control is not None and control.action is Action.STOP

    def may_go_on(self) -> bool:
        return (self.node / "go_on").exists()

    def look_at_control(self) -> None:
        if self.behaviour.get("ignore_control"):
            return
        control = self.control()
        if control is not None and control.sequence > self.sequence:
            self.sequence = control.sequence
            self.stopping |= control.action is Action.STOP
            self.saving |= control.action is Action.CHECKPOINT

    def control(self) -> Control | None:
        """As the real trainer: what is no request is passed over."""
        with contextlib.suppress(ValueError):
            return read_control(self.directory.control)
        return None

    def look_at_peers(self) -> None:
        """As gloo does: a peer that is gone is an error here."""
        if self.behaviour.get("ignore_peers") or self.directory.result.exists():
            return
        for peer in range(self.world):
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int((self.directory.path / f"rank-{peer}.pid").read_text())
                if peer != self.rank and not Path(f"/proc/{pid}/cwd").exists():
                    time.sleep(0.05)
                    if not self.directory.result.exists():
                        raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4711")

    def fail_if_asked(self) -> None:
        fail = self.behaviour.get("fail")
        if not fail or fail["rank"] != self.rank or fail["step"] != self.step:
            return
        kind = fail["kind"]
        if kind == "exception":
            raise Failure("fell over as asked")
        if kind in EXIT_CODES:
            raise SystemExit(EXIT_CODES[kind])
        if kind == "exit":
            raise SystemExit(7)
        if kind == "hang":
            while True:
                time.sleep(1)
        os.kill(os.getpid(), signal.Signals[kind])

    def terminated(self, *_: object) -> None:
        self.stopping = True

    def leave_grandchild(self) -> None:
        """A process of its own session, in another folder, that nobody waits for."""
        grandchild = subprocess.Popen(
            [sys.executable, "-c", "import os, time; os.chdir('/'); time.sleep(600)"],
            start_new_session=True,
        )
        path = self.directory.path.parent.parent / f"grandchild-{self.rank}.pid"
        path.write_text(str(grandchild.pid))

    def write_metrics(self, **values: object) -> None:
        with self.directory.metrics.open("a") as file:
            file.write(json.dumps({"step": self.step, "time": time.time(), **values}) + "\n")

    def save(self) -> str:
        self.saving = False
        name = checkpoint_name(self.step)
        final = self.directory.checkpoints / name
        if final.exists():
            return name
        aside = final.with_name(f"{name}.tmp-0")
        aside.mkdir()
        state = {"step": self.step, "hash": self.hash}
        mark = f"-{self.position}" if self.position else ""
        (aside / f"state{mark}.json").write_text(json.dumps(state))
        content = os.urandom(self.behaviour.get("checkpoint_bytes", 100))
        (aside / f".metadata{mark}").write_bytes(content)
        write_manifest(
            aside,
            step=self.step,
            layout=self.plan.plan.layout,
            node=self.position,
            num_nodes=self.world // self.on_node,
        )
        aside.rename(final)
        if self.rank == 0:
            self.write_metrics(event="checkpoint_saved", checkpoint=name)
        return name

    def resume(self) -> None:
        if self.plan.resume_from is None:
            return
        state = json.loads((Path(self.plan.resume_from) / "state.json").read_text())
        self.step, self.hash = state["step"], state["hash"]

    def finish(self, *, finished: bool) -> None:
        name = self.save()
        if finished and self.rank == 0:
            (self.directory.artifacts / "sample.txt").write_text("class Fake:\n")
        saved = finished_checkpoints(self.directory.checkpoints)
        assert saved[0].name == name
        seed = self.plan.spec.training.seed
        result = Result(
            finished=finished,
            step=self.step,
            loss_first=loss_of(seed, 1),
            loss_last=loss_of(seed, self.step),
            eval_loss=None,
            tokens_per_s=1000.0,
            wall_s=1.0,
            checkpoint=name,
            sample=None,
            reason="finished" if finished else "stopped",
        )
        write_atomically(self.directory.result, json_bytes(result))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--run-dir", type=Path)
    arguments = parser.parse_args(argv)
    try:
        return FakeRank(RunDirectory(arguments.run_dir)).run()
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        record = {"type": type(error).__name__, "message": str(error), "t_ns": time.time_ns()}
        path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
        write_atomically(path, json.dumps(record).encode())
        return 1


if __name__ == "__main__":
    sys.stdout.flush()
    sys.exit(main())
