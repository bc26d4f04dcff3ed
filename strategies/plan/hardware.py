"""One node of a class, as the planner sees it. Torch-free."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Hardware(BaseModel):
    """One node of a class. `memory_gib` is per GPU, or the whole host's RAM on CPU."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    class_name: str
    device: Literal["cpu", "cuda"]
    slots: int = Field(ge=1)
    memory_gib: float = Field(gt=0)
    model: str | None = None
    no_sandbox: str = ""
    """Reason why scripts cannot be sandboxed here; empty if they can, or it is not known."""
    no_gang_sandbox: str = ""
    """Reason why scripts that run on several of these nodes cannot be sandboxed."""
