"""What pages show beside the things themselves: last outcomes, where a service fails, months, offers of tools."""

from tests.support.cluster import Connection
from tests.support.factory import fail, node, pass_time, started, step, submit, submit_to, workflow
from tests.support.gateway import Gateway
from tests.support.schedules import schedule, settle_all


async def test_a_list_of_schedules_has_their_last_outcomes_the_oldest_first(gateway: Gateway, conn: Connection):
    await schedule(conn, 60, name="minutely")
    await schedule(conn, 3600, name="hourly")
    await pass_time(conn, 130)
    await settle_all(conn)
    plain = (await gateway.get("/schedules", scope="read")).json()["items"]
    assert all("recent" not in each for each in plain)
    found = (await gateway.get("/schedules?recent=5", scope="read")).json()["items"]
    by_name = {each["name"]: each["recent"] for each in found}
    assert by_name["hourly"] == []
    assert [(each["outcome"], each["reason"]) for each in by_name["minutely"]] == [
        ("caught_up", "late"),
        ("skipped", "overlap"),
    ]
    assert by_name["minutely"][0]["due_at"] < by_name["minutely"][1]["due_at"]


async def test_a_service_says_on_which_machines_it_fails(gateway: Gateway, conn: Connection):
    await node(conn, "well", render=2)
    await node(conn, "ill", render=2)
    await submit(conn, step("a", max_attempts=1))
    (task,) = await started(conn, on="ill", owner="ill")
    await fail(conn, task, owner="ill", message="the card is gone")
    shown = (await gateway.get("/services/render", scope="read")).json()
    [evidence] = shown["evidence"]
    assert (evidence["node"], evidence["failed"], evidence["passed"]) == ("ill", 1, 0)
    assert evidence["last_message"] == "the card is gone"
    await conn.execute("SELECT accs.count_events()")
    [ended] = (await gateway.get("/services/render", scope="read")).json()["outcomes"]
    assert (ended["error"], ended["done"], ended["seconds"]) == (1, 0, 1800)


async def test_the_system_names_its_daemons_months_and_what_is_kept(gateway: Gateway):
    shown = (await gateway.get("/system", scope="read")).json()
    assert {each["state"] for each in shown["months"]} == {"in the database"}
    assert any(each["month"].startswith("task_events_") for each in shown["months"])
    assert "Finished jobs: for ever" in shown["retention"]
    assert shown["daemons"] == []


async def test_what_nodes_offer_as_tools_is_listed_with_what_became_of_it(gateway: Gateway, conn: Connection):
    await node(conn, "n1", prober=1)
    await conn.execute(
        "INSERT INTO accs.tool_offers (tool, node, service, document) VALUES ('media.probe', 'n1', 'prober', $1)",
        {"name": "media.probe", "service": "prober"},
    )
    [offer] = (await gateway.get("/tools?offered=true", scope="read")).json()["items"]
    assert (offer["name"], offer["node"], offer["state"]) == ("media.probe", "n1", "not accepted")


async def test_the_timeline_ends_with_what_a_machine_does_now(gateway: Gateway, conn: Connection):
    """No sample has been taken yet of the task that has just begun."""
    await node(conn, "n1", render=1)
    await submit(conn)
    await started(conn)
    await pass_time(conn, 5)
    [lane] = (await gateway.get("/fleet/timeline", scope="read")).json()["lanes"]
    assert lane["intervals"][-1]["state"] == "busy"
    await pass_time(conn, 3600)
    [lane] = (await gateway.get("/fleet/timeline", scope="read")).json()["lanes"]
    assert lane["intervals"][-1]["state"] == "away"


async def test_how_long_ago_is_told_by_the_clock_of_the_database_and_not_by_the_gateway_s(
    gateway: Gateway, conn: Connection
):
    """Here the one is five hours ahead of the other."""
    await pass_time(conn, 5 * 3600)
    await node(conn, "gpu-1", render=1)
    flow = await workflow(conn, step("frame"), name="media")
    for _ in range(2):
        await submit_to(conn, flow)
    await conn.execute(
        "SELECT accs.pause('node', 'gpu-1', 'dusty', 'anna'), accs.pause('service', 'render', 'x', 'anna')"
    )
    await pass_time(conn, 90)
    shown = (await gateway.get("/nodes/gpu-1", scope="read")).json()
    assert shown["why"] == "drained 1m30s ago by anna: dusty"
    assert 90 <= shown["drained_for_seconds"] < 100
    service = (await gateway.get("/services", scope="read")).json()["items"]
    assert [each["state"] for each in service if each["service"] == "render"] == ["paused 1m30s ago by anna: x"]
    several = (await gateway.get("/jobs/0", scope="read")).json()
    assert "media, submitted 1m30s ago" in str(several)
