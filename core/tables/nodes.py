"""Nodes and their classes."""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    ForeignKey,
    Index,
    String,
    func,
    or_,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.base.node_names import folded
from core.states import NodeState, Sharing
from core.tables.base import Base, Document, one_of
from core.tables.kinds import SlotState


class NodeClass(Base):
    """Interchangeable nodes; a change of the hardware is a new version."""

    __tablename__ = "node_classes"

    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(default=1)
    hardware: Mapped[Document]
    """`strategies.plan.planner.Hardware`"""
    fabric: Mapped[Document] = mapped_column(default=dict, server_default="{}")
    """`core.wire.messages.Fabric`"""


class Node(Base):
    """A machine with GPUs, or with CPU slots."""

    __tablename__ = "nodes"
    __table_args__ = (
        CheckConstraint(one_of("state", NodeState), name="state"),
        CheckConstraint(one_of("sharing", Sharing), name="sharing"),
        # A migration that copies this table on SQLite has to make this index again.
        Index("ix_nodes_folded_name", func.lower(text("name")), unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    class_name: Mapped[str] = mapped_column(ForeignKey("node_classes.name"), index=True)
    state: Mapped[NodeState]
    reason: Mapped[str] = mapped_column(default="")
    """Reason for its state, in a sentence."""
    slots: Mapped[int] = mapped_column(default=1, server_default="1")
    """Slots of its class, against which holds are counted: a GPU that fails does not change it."""
    sharing: Mapped[Sharing] = mapped_column(default=Sharing.NONE, server_default="none")
    inventory: Mapped[Document]
    """`core.wire.messages.Inventory`"""
    telemetry: Mapped[Document | None]
    """`core.wire.messages.Telemetry`, the last one."""
    peer_address: Mapped[str] = mapped_column(default="", server_default="")
    """Address at which other nodes reach it, as it reported."""
    boot_id: Mapped[str] = mapped_column(default="")
    incarnation: Mapped[str] = mapped_column(default="")
    """Changes with every start of the worker."""
    clean: Mapped[bool] = mapped_column(default=False)
    """True if none of its slots is dirty: a heartbeat that changes nothing does not read them."""
    last_seen_at: Mapped[datetime | None]
    unreachable_since: Mapped[datetime | None]
    """Start of its silence: a condition, not a state. The node's jobs may still run."""
    created_at: Mapped[datetime]

    @classmethod
    def is_called(cls, name: str) -> ColumnElement[bool]:
        """Return the condition that `name` is the node's name, in any spelling."""
        return func.lower(cls.name) == folded(name)

    @classmethod
    def goes_by(cls, id_or_name: str) -> ColumnElement[bool]:
        """Return the condition that `id_or_name` is the node's id or name."""
        return or_(cls.id == id_or_name, cls.is_called(id_or_name))


class NodeSlot(Base):
    """One slot of a node: a GPU, or a CPU slot. Written by `core.leases.node_slots` alone."""

    __tablename__ = "node_slots"
    __table_args__ = (CheckConstraint(one_of("state", SlotState), name="state"),)

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    device_uuid: Mapped[str] = mapped_column(default="", server_default="")
    """UUID of its GPU, by which its state goes with it; empty for a CPU slot."""
    link_group: Mapped[int | None]
    """Number of the group of slots that it shares NVLink bridges with; None: of no such group."""
    state: Mapped[SlotState]
    reason: Mapped[str] = mapped_column(default="", server_default="")
    """Reason why it is out of service, in a sentence."""
    set_by: Mapped[str | None]
    """Id of the person who took it out of service, or of its node, which reported it unfit."""
    lease_id: Mapped[str | None] = mapped_column(ForeignKey("leases.id"), index=True)
    """Lease that has it now."""


class NodeProof(Base):
    """Proof of a node by `trainyard prove`; never changed, named by its own hash."""

    __tablename__ = "proofs"
    __table_args__ = (Index("ix_proofs_node_id_proven_at", "node_id", "proven_at"),)

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the canonical text of `content`, in hex."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    proven_at: Mapped[datetime]
    content: Mapped[Document]
    """`strategies.plan.trust.proof.Proof`"""
