"""GPUs of this node from the worker's start to its end: slots, health, hand-over.

A GPU that is not fit for jobs stays in the inventory with the reason; the others go on. It is fit
again as soon as the cause has gone; one that failed in an attempt rests first, then must compute.
"""

import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from core.states import GpuHealth
from core.wire.messages import Gpu
from strategies.plan.hardware import GpuSpeeds
from worker.gpus.holders import fault_of_use
from worker.gpus.links import Ends, link_groups
from worker.gpus.nvml import Device, Fault, Nvml, Reading
from worker.gpus.slots import KnownGpu, assign_slots
from worker.gpus.speeds import measured_speeds
from worker.gpus.torch_view import TorchView
from worker.node.cores import numa_of

ALLOWED = "CUDA_VISIBLE_DEVICES"
REST_S = 600.0  # of a GPU that failed in an attempt, so that the retry gets another one
RELEASE_S = 20.0  # for the driver to free the memory of a process that has just ended
UVM, LOAD_UVM = Path("/dev/nvidia-uvm"), ("nvidia-modprobe", "-u", "-c=0")

log = structlog.get_logger()


class DriverBroken(Exception):
    """The machine has GPUs that cannot be listed; the message says what to do."""


class Failure(NamedTuple):
    """Failure of a GPU in an attempt."""

    rests_until: float
    """End of its rest on the monotonic clock."""
    attempt: str
    """The attempt's name in a sentence."""


class NodeGpus:
    """Slots of the node's GPUs and their health at the last look."""

    def __init__(self, slots_file: Path, *, limit: int | None, wake: Callable[[], None]) -> None:
        """Find the GPUs and ask torch for them. `limit` is the largest number of slots; `wake` is
        called when health may have changed. Raises DriverBroken."""
        self._nvml = Nvml()
        self._torch = TorchView(wake)
        self._lock = threading.Lock()
        self._idle_gib: dict[str, float] = {}
        self._occupied_since: dict[str, float] = {}
        self._faults: dict[str, Fault | None] = {}
        self._failures: dict[str, Failure] = {}
        self._speeds: dict[str, GpuSpeeds] = {}
        allowed = os.environ.get(ALLOWED)
        reading = self._nvml.read()
        if reading.devices or reading.num_silent:
            load_uvm()
        self.known: Sequence[KnownGpu] = assign_slots(
            slots_file, reading.devices, allowed=allowed, limit=limit
        )
        if not self.known and reading.error and allowed != "":
            raise DriverBroken(
                f"{reading.error} A node with GPUs cannot join before that. To offer its CPU cores "
                f"alone, start the worker with {ALLOWED} set to an empty string."
            )
        self.devices: dict[str, Device] = {}
        self._torch.ask([one.uuid for one in reading.devices if one.uuid in self._uuids()])
        self.look(held=(), roots=())

    def _uuids(self) -> set[str]:
        return {gpu.uuid for gpu in self.known}

    def look(self, *, held: Collection[str], roots: Collection[int]) -> list[Gpu]:
        """Read the health of every GPU; return them in order of slots.

        `held` are the UUIDs of GPUs that live attempts have, `roots` the attempts' processes.
        """
        with self._lock:
            reading = self._nvml.read()
            self.devices = {one.uuid: one for one in reading.devices if one.uuid in self._uuids()}
            groups = link_groups([self._ends(gpu) for gpu in self.known])
            found = [
                self._gpu(slot, gpu, reading, gpu.uuid in held, {*roots, os.getpid()}).model_copy(
                    update={"link_group": groups[slot]}
                )
                for slot, gpu in enumerate(self.known)
            ]
        back = [
            uuid
            for uuid, device in self.devices.items()
            if device.fault is None and uuid not in self._torch.answers and not self._rests(uuid)
        ]
        if back:
            self._torch.ask_aside(back, suspected=self._failures.keys())
        return found

    def _ends(self, gpu: KnownGpu) -> Ends | None:
        device = self.devices.get(gpu.uuid)
        is_whole = device is not None and device.instance is None
        return Ends(device.pci_address, device.peers) if device and is_whole else None

    def note_failure(self, uuid: str, attempt: str, *, seconds_ago: float) -> None:
        """Let a GPU rest that failed in an attempt. One whose rest is over by now is offered on."""
        if seconds_ago < REST_S:
            until = time.monotonic() + REST_S - max(0.0, seconds_ago)
            self._failures[uuid] = Failure(until, attempt)
            self._torch.forget(uuid)

    def _rests(self, uuid: str) -> bool:
        failure = self._failures.get(uuid)
        return failure is not None and time.monotonic() < failure.rests_until

    def measure(self, speeds_file: Path, *, idle: bool) -> None:
        """Measure unknown GPUs that are fit for jobs, if the node is idle; see `speeds`."""
        fit: dict[str, list[str]] = {gpu.name: [] for gpu in self.known}
        for gpu in self.known:
            if self._faults[gpu.uuid] is None:
                fit[gpu.name].append(gpu.uuid)
        self._speeds = measured_speeds(speeds_file, fit, idle=idle)

    def uuids_of(self, slots: Collection[int]) -> list[str]:
        """Return the UUIDs of slots, in their order."""
        return [self.known[slot].uuid for slot in slots if slot < len(self.known)]

    def minors_of(self, slots: Collection[int]) -> tuple[int, ...]:
        """Return N of each /dev/nvidiaN of these slots; MIG instances of one GPU share it."""
        minors = [self.known[slot].minor for slot in slots if slot < len(self.known)]
        return tuple(dict.fromkeys(minor for minor in minors if minor is not None))

    def numa_nodes(self) -> list[int | None]:
        """Return the NUMA node of each slot's GPU, as far as the kernel tells it."""
        return [numa_of(gpu.pci_address) for gpu in self.known]

    def why_unfit(self, slots: Collection[int]) -> str:
        """Return the reason why no job may start on these slots now; empty if one may."""
        for slot in slots:
            if slot >= len(self.known):
                return f"GPU {slot} does not exist on this node any more."
            fault = self._faults[self.known[slot].uuid]
            if fault is not None:
                return f"GPU {slot} is not fit for jobs. {fault.reason}"
        return ""

    def may_clear(self, slots: Collection[int]) -> bool:
        """Return True if every fault of these slots is memory in use for a moment only, which the
        driver may still free."""
        since = time.monotonic() - RELEASE_S
        faulty = [uuid for uuid in self.uuids_of(slots) if self._faults[uuid] is not None]
        return all(self._occupied_since.get(uuid, -math.inf) > since for uuid in faulty)

    def _gpu(
        self, slot: int, gpu: KnownGpu, reading: Reading, has_attempt: bool, roots: Collection[int]
    ) -> Gpu:
        fault = self._fault(gpu, reading, has_attempt, roots)
        self._note(slot, gpu.uuid, fault)
        return Gpu(
            index=slot,
            name=gpu.name,
            memory_gib=gpu.memory_gib,
            uuid=gpu.uuid,
            pci_address=gpu.pci_address,
            speeds=self._speeds.get(gpu.name),
            health=GpuHealth.HEALTHY if fault is None else fault.health,
            reason="" if fault is None else fault.reason[:500],
        )

    def _fault(
        self, gpu: KnownGpu, reading: Reading, has_attempt: bool, roots: Collection[int]
    ) -> Fault | None:
        device = self.devices.get(gpu.uuid)
        if device is None:
            self._torch.forget(gpu.uuid)
            return missing(reading)
        if device.fault is not None:
            self._torch.forget(gpu.uuid)
            return device.fault
        if self._rests(gpu.uuid):
            self._torch.forget(gpu.uuid)
        answer = self._torch.answers.get(gpu.uuid)
        failure = self._failures.get(gpu.uuid)
        if failure is not None and answer != "":
            return Fault(GpuHealth.FAILED, failed_sentence(failure.attempt, answer))
        self._failures.pop(gpu.uuid, None)
        if answer:
            is_driver = "driver" in answer.lower() and "too old" in answer.lower()
            return Fault(GpuHealth.DRIVER if is_driver else GpuHealth.UNSEEN, answer)
        if answer is None:
            return Fault(GpuHealth.UNSEEN, "It has just come back; torch is asked for it.")
        if not device.uses and not has_attempt:
            seen = device.used_gib - device.graphics_gib
            self._idle_gib[gpu.uuid] = min(seen, self._idle_gib.get(gpu.uuid, seen))
        idle_gib = self._idle_gib.get(gpu.uuid, 0.0)
        return fault_of_use(device, roots, has_attempt=has_attempt, idle_gib=idle_gib)

    def _note(self, slot: int, uuid: str, fault: Fault | None) -> None:
        """Keep the fault, and log a change of health."""
        before = self._faults.get(uuid)
        if fault is None or fault.health is not GpuHealth.OCCUPIED:
            self._occupied_since.pop(uuid, None)
        else:
            self._occupied_since.setdefault(uuid, time.monotonic())
        self._faults[uuid] = fault
        if (before and before.health) != (fault and fault.health):
            if fault is None:
                log.info("gpu_fit_again", gpu=slot, uuid=uuid)
            else:
                log.warning(
                    "gpu_unfit", gpu=slot, uuid=uuid, health=fault.health, reason=fault.reason
                )

    def close(self) -> None:
        """Release the driver."""
        self._nvml.close()


def missing(reading: Reading) -> Fault:
    """Return the fault of a GPU that the driver does not show."""
    if reading.error:
        return Fault(GpuHealth.DRIVER, reading.error)
    if not reading.devices and not reading.num_silent:
        return Fault(
            GpuHealth.DRIVER,
            "The NVIDIA driver is not loaded, or its library is missing. Look at `nvidia-smi` on "
            "the node.",
        )
    return Fault(
        GpuHealth.LOST,
        "The GPU has fallen off the bus: the driver does not show it any more. Look for `Xid` in "
        "`dmesg` on the node; reboot the node when its other jobs have ended. If the GPU was "
        "removed permanently, stop the worker, delete gpus.json in its data directory and start it "
        "again.",
    )


def failed_sentence(attempt: str, answer: str | None) -> str:
    """Return the reason of a GPU that failed in an attempt; `answer` is torch's after its rest."""
    failed = f"It failed in {attempt}, whose end says how."
    if answer is None:
        return (
            f"{failed} It rests for {REST_S / 60:.0f} minutes; then it is offered again by itself "
            "if it computes."
        )
    return (
        f"{failed} After its rest: {answer} Drain the node, reset the GPU "
        "(`nvidia-smi --gpu-reset`) or reboot, and restart the worker."
    )


def load_uvm() -> None:
    """Load nvidia-uvm, which CUDA loads at its first use; a sandboxed program may not."""
    command = shutil.which(LOAD_UVM[0])
    if UVM.exists() or command is None:
        return
    done = subprocess.run([command, *LOAD_UVM[1:]], capture_output=True, check=False)
    if done.returncode or not UVM.exists():
        log.warning("no_nvidia_uvm", said=done.stderr.decode(errors="replace").strip()[:300])
