"""What people are told, how they choose to be told, and a test of it."""

from core.base.clock import utc_now
from core.notices.notices import NoticeKind, notify
from core.tables.people import User
from tests.api.conftest import World


def user_id(world: World, name: str) -> str:
    found: str = world.admin.get(f"/v1/users/{name}").json()["id"]
    return found


def test_one_sees_ones_own_notices_and_nobody_elses(world: World) -> None:
    ann = user_id(world, "ann")
    with world.database.write() as session:
        assert session.get(User, ann) is not None
        facts: dict[str, object] = {"message": "Your lease ends in 15 minutes."}
        notify(session, ann, NoticeKind.LEASE_ENDING, "lease_1", facts, now=utc_now())
    [seen] = world.ann.get("/v1/me/notifications").json()["data"]
    assert (seen["title"], seen["state"]) == ("Your lease ends soon", "waiting")
    assert seen["message"] == "Your lease ends in 15 minutes."
    assert world.bob.get("/v1/me/notifications").json()["data"] == []
    older = world.ann.get(f"/v1/me/notifications?after={seen['id']}").json()
    assert older["data"] == []


def test_one_chooses_how_one_is_told(world: World) -> None:
    assert world.ann.get("/v1/me/notifications/choices").json()["every"] == "mail"
    wanted = {"every": "digest", "kinds": {"block_offered": "mail", "lease_idle": "off"}}
    chosen = world.ann.put("/v1/me/notifications/choices", json=wanted).json()
    assert (chosen["every"], chosen["kinds"]) == ("digest", wanted["kinds"])
    assert world.ann.put("/v1/me/notifications/choices", json={}).json()["kinds"] == {}
    wrong = world.ann.put("/v1/me/notifications/choices", json={"kinds": {"gossip": "mail"}})
    assert wrong.status_code == 422


def test_a_webhook_is_set_with_a_secret_shown_once(world: World) -> None:
    inside = world.ann.put("/v1/me/webhook", json={"url": "https://169.254.169.254/latest"})
    assert (inside.status_code, inside.json()["code"]) == (422, "bad_webhook")
    made = world.ann.put("/v1/me/webhook", json={"url": "https://example.org/hook"}).json()
    assert made["secret"].startswith("ty_")
    seen = world.ann.get("/v1/me/notifications/choices").json()
    assert seen["webhook"] == "https://example.org/hook"
    assert made["secret"] not in str(seen)
    assert world.ann.delete("/v1/me/webhook").status_code == 204
    assert world.ann.get("/v1/me/notifications/choices").json()["webhook"] is None


def test_a_test_says_at_once_where_it_could_not_go(world: World) -> None:
    answer = world.ann.post("/v1/me/notifications/test", json={"channel": "mail"})
    assert answer.status_code == 202
    assert (answer.json()["state"], answer.json()["error"]) == (
        "kept",
        "No mail server is set up here.",
    )
    world.ann.put("/v1/me/webhook", json={"url": "https://example.org/hook"})
    answer = world.ann.post("/v1/me/notifications/test", json={"channel": "webhook"})
    assert answer.json()["state"] == "waiting"
    assert world.ann.post("/v1/me/notifications/test", json={"channel": "off"}).status_code == 422
