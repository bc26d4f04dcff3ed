"""The question before a dangerous act names what it touches, in numbers, and the way back."""

from dashboard.questions import NODE_ACTS, before_disabling, before_node_act, before_role
from tests.answers import answer
from tests.dashboard.fake_api import job, lease, me
from trainyard.transport.decoding import decode
from trainyard.views import InTheWay, Job, Lease, User


def test_a_nodes_question_counts_jobs_leases_and_people() -> None:
    running = [
        {"id": f"job_{number}", "name": f"j{number}", "user": user}
        for number, user in enumerate(("ann", "ann", "bob"))
    ]
    leases = [
        {**lease().model_dump(mode="json"), "user": user, "state": state}
        for user, state in (("ann", "active"), ("bob", "booked"), ("cid", "booked"))
    ]
    fields = {"node": "east-01", "state": "ready", "jobs": running, "leases": leases}
    found = decode(InTheWay, answer("InTheWayView", **fields))
    for act in NODE_ACTS:
        question = before_node_act("node_1", act, found)
        assert question.effects == [
            "3 running jobs of 2 people",
            "1 active lease of 1 person",
            "2 booked leases of 2 people",
        ]
        assert question.action == f"/nodes/node_1/{act}"
        assert bool(question.undo) == (act != "retire")


def test_an_idle_node_has_no_effects() -> None:
    fields = {"node": "east-01", "state": "ready", "jobs": [], "leases": []}
    found = decode(InTheWay, answer("InTheWayView", **fields))
    assert before_node_act("node_1", "drain", found).effects == []


def test_disabling_counts_what_ends_and_a_role_says_what_it_may() -> None:
    user = decode(User, me().user.model_dump(mode="json"))
    booked = decode(Lease, lease().model_dump(mode="json"))
    active = decode(Lease, {**lease().model_dump(mode="json"), "state": "active"})
    running = decode(Job, job().model_dump(mode="json"))
    assert before_disabling(user, [running], [booked, booked, active]).effects == [
        "1 running job: stopped with a checkpoint",
        "2 booked leases: cancelled",
        "1 active lease: ended",
    ]
    question = before_role(user, "admin")
    assert question.title == "Give ada the role admin?"
    assert "may do everything" in question.consequence
    assert question.fields == {"role": "admin"}
