"""Questions before a dangerous act: what it will do, in numbers, and a way back. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dashboard.formats import counted
from trainyard.views import InTheWay, Job, Lease, User

NODE_ACTS = {
    "drain": ("Drain", "Running jobs continue to their end; nothing new starts on it."),
    "maintenance": (
        "Take into maintenance",
        "Nothing new starts on it. It is in maintenance as soon as nothing runs on it.",
    ),
    "quarantine": (
        "Quarantine",
        "Nothing new starts on it until it is resumed. Use this for a node that you suspect to "
        "be faulty.",
    ),
    "retire": (
        "Retire",
        "The node's token stops working. This cannot be undone: the machine has to be enrolled "
        "again.",
    ),
}


@dataclass(frozen=True)
class Question:
    """The content of the page that asks before an act."""

    title: str
    consequence: str
    effects: list[str]
    """Things that the act touches, counted; empty if it touches nothing."""
    action: str
    """Address to which the answer is posted."""
    button: str
    back: str
    undo: str
    """The way to undo it; empty if there is none."""
    fields: dict[str, str] = field(default_factory=dict)
    """Hidden fields of the answer."""


def before_node_act(node_id: str, act: str, found: InTheWay) -> Question:
    """Return the question before an act of staff on a node."""
    verb, consequence = NODE_ACTS[act]
    effects = []
    if found.jobs:
        people = counted(len({job.user for job in found.jobs}), "person", "people")
        effects.append(f"{counted(len(found.jobs), 'running job')} of {people}")
    effects += _of_leases(found.leases)
    if act == "retire" and effects:
        consequence = f"It is refused while jobs run or leases are open. {consequence}"
    return Question(
        title=f"{verb} {found.node}?",
        consequence=consequence,
        effects=effects,
        action=f"/nodes/{node_id}/{act}",
        button=f"{verb} {found.node}",
        back="/nodes",
        undo="" if act == "retire" else "Resume on the page of nodes puts it back into service.",
    )


def before_disabling(user: User, jobs: Sequence[Job], leases: Sequence[Lease]) -> Question:
    """Return the question before an account is disabled."""
    effects = [counted(len(jobs), "running job") + ": stopped with a checkpoint"] if jobs else []
    booked = [lease for lease in leases if lease.state == "booked"]
    active = [lease for lease in leases if lease.state == "active"]
    if booked:
        effects.append(f"{counted(len(booked), 'booked lease')}: cancelled")
    if active:
        effects.append(f"{counted(len(active), 'active lease')}: ended")
    return Question(
        title=f"Disable the account of {user.name}?",
        consequence="All sessions and tokens of the account end at once. Jobs and files are kept.",
        effects=effects,
        action=f"/admin/people/{user.id}/disable",
        button=f"Disable {user.name}",
        back="/admin/people",
        undo="The account can be enabled again; its leases and sessions do not come back.",
    )


def before_role(user: User, role: str) -> Question:
    """Return the question before a person gets another role."""
    rights = {
        "user": "sees and changes only what is their own or shared with them",
        "staff": "may clean up leases, drain nodes, invite people and see everyone's work",
        "admin": "may do everything, also to other administrators",
    }
    return Question(
        title=f"Give {user.name} the role {role}?",
        consequence=f"{user.name} is {user.role} now. A person with the role {role} "
        f"{rights.get(role, 'has other rights')}.",
        effects=[],
        action=f"/admin/people/{user.id}/role",
        button=f"Change role to {role}",
        back="/admin/people",
        undo="The role can be changed back at any time.",
        fields={"role": role},
    )


def _of_leases(leases: Sequence[Lease]) -> list[str]:
    found = []
    for state, words in (("active", "active lease"), ("booked", "booked lease")):
        of_state = [lease for lease in leases if lease.state == state]
        if of_state:
            people = counted(len({lease.user for lease in of_state}), "person", "people")
            found.append(f"{counted(len(of_state), words)} of {people}")
    return found
