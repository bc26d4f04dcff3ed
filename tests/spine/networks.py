"""Machines of a test: network namespaces that hang on one bridge, each by a cable of its own."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NETWORK = "10.99.7"
HUB = f"{NETWORK}.1"
_numbers = itertools.count(2)


@dataclass(frozen=True)
class Machine:
    """A network namespace with one interface."""

    name: str
    cable: str
    """The end of its cable that is on the bridge."""
    address: str

    @property
    def command(self) -> list[str]:
        """What starts a program in it: only the network is another."""
        return ["nsenter", f"--net=/run/netns/{self.name}"]

    def plug(self, *, is_in: bool) -> None:
        """Its cable: what is sent while it is out is lost, and nobody is told."""
        ip("link", "set", self.cable, "up" if is_in else "down")


def why_none() -> str:
    """Why no network namespace can be made here; empty where one can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    for program in ("ip", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    name = f"ty-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if done.returncode != 0:
        return f"ip netns add: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


@contextmanager
def machines(*names: str) -> Iterator[list[Machine]]:
    """One for each name, and a bridge that has the address HUB on this machine."""
    tag = os.getpid() % 100_000
    bridge = f"tyb{tag}"
    made: list[Machine] = []
    ip("link", "add", bridge, "type", "bridge")
    try:
        ip("address", "add", f"{HUB}/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for name in names:
            made.append(_machine(f"ty-{name}-{tag}", bridge, next(_numbers)))
        yield made
    finally:
        for machine in made:
            ip("netns", "del", machine.name)
        ip("link", "del", bridge)


def _machine(name: str, bridge: str, number: int) -> Machine:
    cable, inner = f"tyc{number}-{os.getpid() % 10_000}", "eth0"
    machine = Machine(name, cable, f"{NETWORK}.{number}")
    ip("netns", "add", name)
    ip("link", "add", cable, "type", "veth", "peer", "name", inner, "netns", name)
    ip("link", "set", cable, "master", bridge, "up")
    for words in (
        ("address", "add", f"{machine.address}/24", "dev", inner),
        ("link", "set", inner, "up"),
        ("link", "set", "lo", "up"),
    ):
        ip("-n", name, *words)
    return machine


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
