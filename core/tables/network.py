"""Hosts that programs may reach, as administrators listed them."""

from sqlalchemy import JSON, CheckConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.tables.base import Base, one_of
from core.tables.kinds import ListOwner


class NetworkList(Base):
    """List of the hosts that programs of a node class, or of a lab, may reach."""

    __tablename__ = "network_lists"
    __table_args__ = (CheckConstraint(one_of("owner", ListOwner), name="owner"),)

    owner: Mapped[ListOwner] = mapped_column(primary_key=True)
    owner_id: Mapped[str] = mapped_column(primary_key=True)
    """Name of the class, or id of the lab."""
    hosts: Mapped[list[str]] = mapped_column(JSON)
    """Hosts and groups, as `core.spec.hosts` writes them."""
