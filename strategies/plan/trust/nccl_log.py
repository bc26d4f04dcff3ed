"""Transports between ranks, as NCCL's log names them.

Lines of the subsystems INIT and NET, as NCCL's sources write them (src/transport/p2p.cc, shm.cc,
net.cc, net_ib, net_socket):

    NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.5<0>
    NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0>
    NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
"""

import re
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

DEVICES = re.compile(r"NCCL INFO NET/(\w+) : Using (\[\d+\].*)")
DEVICE = re.compile(r"\[\d+\]([^\s:\[\]]+):(?:\d+/(\w+))?")
CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : .* via (\S.*\S)")
NETWORK = re.compile(r"NET/([^/]+)")
WITHIN_NODE = {"P2P": "NVLink or PCIe peer-to-peer", "SHM": "shared memory of the host"}
IB, SOCKET = "IB", "Socket"
NAMES = {IB: "InfiniBand", SOCKET: "TCP sockets"}


class NcclLog(BaseModel):
    """Devices and channels of one rank, read from its log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    devices: dict[str, list[str]] = {}
    """Adapters or interfaces that NCCL found, by network (`IB`, `Socket`, a plugin's name)."""
    has_roce: bool = False
    """True if one of the adapters is on Ethernet."""
    paths: list[str] = []
    """Distinct paths of channels, sorted: `P2P/CUMEM`, `NET/IB/0/GDRDMA`."""
    adapters: list[str] = []
    """RDMA adapters that the rank's machine lists."""


def read_log(lines: Iterable[str], adapters: Sequence[str] = ()) -> NcclLog:
    """Return the devices and paths in the lines; others are ignored."""
    devices: dict[str, list[str]] = {}
    paths, links = set(), set()
    for line in lines:
        if found := DEVICES.search(line):
            listed = DEVICE.findall(found[2])
            devices[found[1]] = [name for name, _ in listed]
            links |= {link for _, link in listed}
        elif found := CHANNEL.search(line):
            paths.add(found[1])
    return NcclLog(
        devices=devices, has_roce="RoCE" in links, paths=sorted(paths), adapters=list(adapters)
    )


def transport_of(logs: Sequence[NcclLog], *, nodes: int) -> str | None:
    """Return a sentence about the transports of all ranks; None if the logs name no channel."""
    paths = {path for log in logs for path in log.paths}
    within = [
        name
        for kind, name in WITHIN_NODE.items()
        if any(path.split("/")[0] == kind for path in paths)
    ]
    parts = [f"{' and '.join(within)} within the node"] if within else []
    networks = sorted({found[1] for path in paths if (found := NETWORK.match(path))})
    where = "between nodes" if nodes > 1 else "within the node"
    parts += [f"{network_text(network, logs, paths)} {where}" for network in networks]
    return "; ".join(parts) or None


def network_text(network: str, logs: Sequence[NcclLog], paths: Iterable[str]) -> str:
    """Return `InfiniBand (mlx5_0, GPUDirect)`."""
    name = "RoCE" if network == IB and any(log.has_roce for log in logs) else network
    details = sorted({device for log in logs for device in log.devices.get(network, [])})
    if network != SOCKET:
        direct = [path.endswith("/GDRDMA") for path in paths if path.startswith(f"NET/{network}/")]
        some = "GPUDirect" if all(direct) else "GPUDirect on some channels"
        details.append(some if any(direct) else "through the memory of the host")
    return f"{NAMES.get(name, name)}" + (f" ({', '.join(details)})" if details else "")


def warnings_of(logs: Sequence[NcclLog], *, nodes: int) -> list[str]:
    """Return a warning if nodes with RDMA adapters use TCP sockets."""
    over_sockets = any(path.startswith(f"NET/{SOCKET}/") for log in logs for path in log.paths)
    adapters = sorted({name for log in logs for name in (*log.devices.get(IB, []), *log.adapters)})
    if nodes == 1 or not over_sockets or not adapters:
        return []
    return [
        f"The nodes use TCP sockets although they have RDMA adapters ({', '.join(adapters)}). Look "
        "at NCCL_IB_DISABLE, NCCL_NET and NCCL_IB_HCA, at the state of the adapters' ports, and at "
        "the limit of locked memory (ulimit -l), which must be unlimited."
    ]
