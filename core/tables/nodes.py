"""Nodes and their classes."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from core.states import NodeState
from core.tables.base import Base, Document, one_of


class NodeClass(Base):
    """Interchangeable nodes; a change of the hardware is a new version."""

    __tablename__ = "node_classes"

    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(default=1)
    hardware: Mapped[Document]
    """`strategies.planning.planner.Hardware`"""


class Node(Base):
    """A machine with GPUs, or with CPU slots."""

    __tablename__ = "nodes"
    __table_args__ = (CheckConstraint(one_of("state", NodeState), name="state"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    class_name: Mapped[str] = mapped_column(ForeignKey("node_classes.name"), index=True)
    state: Mapped[NodeState]
    reason: Mapped[str] = mapped_column(default="")
    """Why it is in this state, in a sentence."""
    inventory: Mapped[Document]
    """`core.messages.Inventory`"""
    telemetry: Mapped[Document | None]
    """`core.messages.Telemetry`, the last one."""
    peer_address: Mapped[str] = mapped_column(default="")
    """At which other nodes reach it, as it says itself."""
    boot_id: Mapped[str] = mapped_column(default="")
    incarnation: Mapped[str] = mapped_column(default="")
    """Changes with every start of the worker."""
    clean: Mapped[bool] = mapped_column(default=False)
    """The node's last word: no process of a finished attempt is left on it."""
    last_seen_at: Mapped[datetime | None]
    unreachable_since: Mapped[datetime | None]
    """A condition, not a state: what cannot be seen is not dead."""
    created_at: Mapped[datetime]
