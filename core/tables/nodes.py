"""Nodes and their classes."""

from datetime import datetime

from sqlalchemy import (
    JSON,
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
from core.states import NodeState
from core.tables.base import Base, Document, one_of


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
        # A migration that copies this table on SQLite has to make this index again.
        Index("ix_nodes_folded_name", func.lower(text("name")), unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    class_name: Mapped[str] = mapped_column(ForeignKey("node_classes.name"), index=True)
    state: Mapped[NodeState]
    reason: Mapped[str] = mapped_column(default="")
    """Reason for its state, in a sentence."""
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
    """True if the node last reported that no process of a finished attempt is left on it."""
    unfit_slots: Mapped[list[int]] = mapped_column(JSON, default=list, server_default="[]")
    """Slots whose GPU is not fit for jobs, as the inventory tells with the reasons."""
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
