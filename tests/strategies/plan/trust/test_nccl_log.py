"""The transports are read from NCCL's log: lines in the format of its sources."""

import pytest

from strategies.plan.trust.nccl_log import NcclLog, read_log, transport_of, warnings_of

NVLINK_AND_IB = """\
gpu-1:4711:4711 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.5<0>
g1:4711:4720 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.5<0>
gpu-1:4711:4720 [0] NCCL INFO Using network IB
gpu-1:4711:4720 [0] NCCL INFO Channel 00/02 :    0   1   2   3
gpu-1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
gpu-1:4711:4720 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
gpu-1:4711:4720 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu-1:4711:4720 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/1/GDRDMA
"""
SOCKETS = """\
gpu-1:4711:4720 [0] NCCL INFO NET/IB : No device found.
gpu-1:4711:4720 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0> [1]eth1:fe80::9a03:9bff<0>
gpu-1:4711:4720 [0] NCCL INFO Using network Socket
gpu-1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
gpu-1:4711:4720 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
"""


def log_of(text: str, adapters: tuple[str, ...] = ()) -> NcclLog:
    return read_log(text.splitlines(), adapters)


@pytest.mark.parametrize(("text", "nodes", "sentence"), [
    (
        NVLINK_AND_IB,
        2,
        "NVLink or PCIe peer-to-peer within the node; "
        "InfiniBand (mlx5_0, mlx5_1, GPUDirect) between nodes",
    ),
    (
        NVLINK_AND_IB.replace(":1/IB", ":1/RoCE").replace("1/GDRDMA", "1"),
        2,
        "NVLink or PCIe peer-to-peer within the node; "
        "RoCE (mlx5_0, mlx5_1, GPUDirect on some channels) between nodes",
    ),
    (
        SOCKETS,
        2,
        "shared memory of the host within the node; TCP sockets (eth0, eth1) between nodes",
    ),
    (
        "h:1:1 [0] NCCL INFO Channel 00 : 0[7000] -> 1[8000] via P2P/IPC/read\n"
        "h:1:1 [0] NCCL INFO Channel 01 : 1[8000] -> 0[7000] via SHM/direct",
        1,
        "NVLink or PCIe peer-to-peer and shared memory of the host within the node",
    ),
    (
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA",
        2,
        "AWS Libfabric (GPUDirect) between nodes",
    ),
    (
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0",
        2,
        "InfiniBand (through the memory of the host) between nodes",
    ),
    ("gpu-1:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0", 1, None),
])  # fmt: skip
def test_the_transport_is_a_sentence(text: str, nodes: int, sentence: str | None) -> None:
    assert transport_of([log_of(text)], nodes=nodes) == sentence


def test_the_ranks_transports_are_taken_together() -> None:
    first, second = NVLINK_AND_IB.splitlines()[:6], NVLINK_AND_IB.splitlines()[6:]
    logs = [read_log(first), read_log(second)]
    assert transport_of(logs, nodes=2) == transport_of([log_of(NVLINK_AND_IB)], nodes=2)


def test_nodes_with_rdma_adapters_that_use_sockets_get_a_warning() -> None:
    with_adapters = log_of(SOCKETS, ("mlx5_0",))
    (warning,) = warnings_of([log_of(SOCKETS), with_adapters], nodes=2)
    assert warning.startswith(
        "The nodes use TCP sockets although they have RDMA adapters (mlx5_0). "
    )
    assert not warnings_of([log_of(SOCKETS)], nodes=2)
    assert not warnings_of([with_adapters], nodes=1)
    assert not warnings_of([log_of(NVLINK_AND_IB, ("mlx5_0",))], nodes=2)
