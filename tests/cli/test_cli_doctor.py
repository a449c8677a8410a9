"""`accsd doctor`: each line says OK or what to do, and a failure is exit code 1."""

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from accsd import embedded
from accsd.db import install
from accsd.history import clocks
from tests.support import compose
from tests.support.cli import Cli, Said
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import fail, node, pass_time, started, step, submit, workflow
from tests.support.library import empty_database, name_in, url_as
from tests.support.own_server import PGBOUNCER, bouncing


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    return clusters.get(SERVER_NAMES[0])


class Patient:
    """A machine with these settings, and what the doctor says of it."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.config: Path = folder / "accsd.toml"
        self.cli: Cli = Cli(url)
        self.state: Path = folder / "state"
        self.set("")

    def set(self, config: str, state: Path | None = None) -> None:
        self.config.write_text(f'{config}\n[node]\nstate_dir = "{state or self.state}"\n')

    async def examined(self, *options: str) -> Said:
        return await self.cli("--config", str(self.config), "doctor", *options)

    async def findings(self, *options: str) -> dict[str, dict[str, Any]]:
        """By check; of several the last."""
        said = await self.examined("-o", "json", *options)
        assert "Traceback" not in said.err
        return {finding["check"]: finding for finding in said.json}


@pytest.fixture
def patient(tmp_path: Path, db_url: str) -> Patient:
    return Patient(tmp_path, db_url)


async def test_a_healthy_machine_is_told_so_by_a_real_process(patient: Patient, conn: Connection):
    await node(conn, render=1)
    said = await patient.cli.process("--config", str(patient.config), "doctor")
    said.ends(0, "OK    database", "OK    schema        version 1", "OK    LISTEN        a notification came back")
    said.ends(
        0, "OK    clock", "OK    pooler", "OK    channels", "OK    nodes         1 of 1", "OK    dead letters  none"
    )
    said.ends(0, "WARN  storage", "which only this machine has", "→ with several machines set storage.url")
    said.ends(0, "OK    state folder", "OK    disk")
    objects = patient.state / "objects"
    assert [path for path in objects.rglob("*") if path.is_file()] == []  # the probe is gone


@pytest.mark.parametrize("options", [(), ("--node",)])
async def test_a_node_with_an_agents_login_is_well(
    server: TestServer, db_url: str, conn: Connection, tmp_path: Path, options: tuple[str, ...]
):
    """What that login may not see is left out, and said to be; so on a correctly installed node nothing fails."""
    await install(conn, with_roles=True)
    patient = Patient(tmp_path, url_as(server, db_url, "accs_agent"))
    said = await patient.examined(*options)
    said.ends(0, "OK    fleet         this is an agent's login: the fleet is checked on the control host")
    assert ("FAIL" in said.out, "db install --roles" in said.out) == (False, False)
    for command in (["nodes"], ["jobs"], ["top", "--once"], ["dead", "list"]):
        refused = (await patient.cli(*command)).ends(
            2, "permission denied", "→ this is an agent's login; ask on the control"
        )
        assert "db install" not in refused.err
    reader = Cli(url_as(server, db_url, "accs_reader"))
    (await reader("nodes", "drain", "n1")).ends(3)
    await node(conn, render=1)
    assert "agent's login" not in (await reader("nodes", "drain", "n1")).ends(2).err


async def test_the_database_of_accsd_up_is_not_said_to_come_from_the_environment(tmp_path: Path):
    state = tmp_path / "state"
    with embedded.running(state / "postgres") as found:
        patient = Patient(tmp_path, None)
        said = await patient.examined()
        shown = await patient.cli("--config", str(patient.config), "config", "show", "--origin", "--changed")
    assert found.url
    said.ends(1, f"the PostgreSQL of `accsd up` in {state / 'postgres'}")
    assert "ACC_DB_URL" not in said.out.splitlines()[0]
    assert "ACC_DB_URL" not in shown.ends(0, "database.url").out


async def test_what_keeps_a_node_from_a_service_is_told(patient: Patient, conn: Connection):
    await node(conn, enc=1, thumb=1)
    for service in ("enc", "thumb"):
        words = "the Docker engine does not answer\n→ start it"
        await conn.fetchval("SELECT accs.note_obstacle('n1', $1, $2)", service, words)
    found = (await patient.findings())["obstacle"]
    assert found["text"] == "n1 takes no enc, thumb now: the Docker engine does not answer"
    assert found["do"] == "on n1: start it"


async def test_nodes_that_share_a_login_are_one_circle_of_trust(patient: Patient, conn: Connection):
    for name in ("n1", "n2", "n3"):
        await node(conn, name)
    await conn.execute("UPDATE nodes SET login = CASE name WHEN 'n3' THEN 'accs_node_n3' ELSE 'accs_agent' END")
    found = (await patient.findings())["logins"]
    assert found["text"].startswith("2 nodes share accs_agent: each could act for the others")


async def test_what_is_not_safe_in_the_server_is_a_warning(patient: Patient, conn: Connection):
    is_safe = await conn.fetchval("SHOW fsync") == "on"
    durability = (await patient.findings())["durability"]
    assert durability["verdict"] == ("OK" if is_safe else "WARN")
    assert is_safe or "fsync" in durability["text"]


async def test_a_setting_that_is_wrong_ends_the_examination(patient: Patient):
    patient.set("pol_sec = 3")
    said = await patient.examined()
    said.ends(1, "FAIL  settings", 'did you mean "poll_sec"?')
    assert "database" not in said.out


async def test_a_database_that_is_away_fails_once_and_the_rest_is_looked_at(tmp_path: Path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        patient = Patient(tmp_path, f"postgresql://a@127.0.0.1:{nobody.getsockname()[1]}/x")
        said = await patient.examined()
    said.ends(1, "FAIL  database", "→ start PostgreSQL, or correct ACC_DB_URL", "storage", "disk")
    assert said.out.count("FAIL") == 1
    assert "schema" not in said.out


async def test_a_database_without_the_schema_names_the_command(server: TestServer, tmp_path: Path):
    async with empty_database(server) as url:
        said = await Patient(tmp_path, url).examined()
    said.ends(1, "OK    database", "FAIL  schema", "→ run `accsd db install`")


async def test_a_clock_with_which_nothing_may_be_removed_is_a_failure(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
):
    patient.set('[retention]\njobs = "30d"')
    assert (await patient.findings())["retention"]["verdict"] == "OK"
    monkeypatch.setattr(clocks, "MAY_BE_AHEAD", timedelta(days=-1))  # the same clock is a day too far ahead
    said = (await patient.examined()).ends(1, "nothing leaves the database")
    assert "FAIL  retention" in said.out


async def test_another_prefix_of_channels_is_a_failure(patient: Patient):
    patient.set('notify_channel_prefix = "studio_"')
    found = await patient.findings()
    assert found["channels"]["verdict"] == "FAIL"
    assert "ACC_NOTIFY_CHANNEL_PREFIX=accs_" in found["channels"]["do"]


async def test_work_that_nobody_does_is_seen(patient: Patient, conn: Connection):
    shape = await workflow(conn)
    await conn.execute("INSERT INTO jobs (workflow_id) VALUES ($1)", shape)
    await node(conn, render=1)
    await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn))
    await pass_time(conn, 3600)
    found = await patient.findings()
    assert (found["nodes"]["verdict"], found["builder"]["verdict"], found["dead letters"]["verdict"]) == (
        "WARN",
        "FAIL",
        "WARN",
    )
    assert "accsd --role builder" in found["builder"]["do"]
    assert "accsd dead list" in found["dead letters"]["do"]


async def test_a_store_that_cannot_be_used_is_a_failure(patient: Patient, tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    patient.set(f'[storage]\nurl = "file://{tmp_path / "file"}"')
    assert (await patient.findings())["storage"]["verdict"] == "FAIL"
    patient.set(f'[storage]\nurl = "file://{tmp_path / "shared"}"')
    assert (await patient.findings())["storage"]["verdict"] == "OK"


async def test_a_disk_below_its_watermark_is_a_failure(patient: Patient, tmp_path: Path):
    patient.config.write_text(f'[node]\nstate_dir = "{patient.state}"\nmin_free_disk = "1000t"\n')
    disk = (await patient.findings())["disk"]
    assert (disk["verdict"], disk["do"]) == ("FAIL", "make room there, or lower node.min_free_disk")


async def test_docker_matters_only_to_a_node_with_a_compose_file(patient: Patient, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no docker there
    assert (await patient.findings())["docker"]["verdict"] == "WARN"
    file = tmp_path / "compose.yaml"
    file.write_text("services: {}\n")
    patient.set(f'[compose]\nfile = "{file}"')
    docker = (await patient.findings())["docker"]
    assert (docker["verdict"], "install docker" in docker["do"]) == ("FAIL", True)


@pytest.mark.skipif(compose.why_not() is not None, reason="no Docker engine with the images of the tests")
async def test_docker_and_compose_are_really_asked(patient: Patient, tmp_path: Path):
    file = tmp_path / "compose.yaml"
    file.write_text(
        f'services:\n  good:\n    image: {compose.BUSYBOX}\n    command: "true"\n    labels: {{accs.mode: run}}\n'
        "  absent:\n    image: accsd-no-such-image\n    labels: {accs.mode: run, accs.command: '[\"true\"]'}\n"
    )
    patient.set(f'[compose]\nfile = "{file}"')
    found = await patient.findings()
    assert {found[check]["verdict"] for check in ("docker", "docker engine", "docker compose")} == {"OK"}
    assert "absent, good" in found["compose file"]["text"]
    assert (found["images"]["verdict"], "accsd-no-such-image" in found["images"]["text"]) == ("WARN", True)
    file.write_text("services:\n  bad:\n    image: x\n    labels: {accs.mode: fly}\n")
    assert (await patient.findings())["compose file"]["verdict"] == "FAIL"


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
async def test_a_pooler_is_noticed_and_the_way_past_it(server: TestServer, db_url: str, tmp_path: Path):
    assert server.launched is not None
    async with bouncing(server.launched, name_in(db_url)) as url:
        patient = Patient(tmp_path, url)
        found = await patient.findings()
        assert (found["pooler"]["verdict"], found["LISTEN"]["verdict"]) == ("WARN", "WARN")
        assert "ACC_DB_LISTEN_URL" in found["LISTEN"]["do"]
        patient.set(f'[database]\nlisten_url = "{db_url}"')
        found = await patient.findings()
        assert (found["pooler"]["verdict"], found["LISTEN"]["verdict"]) == ("OK", "OK")


async def test_a_plain_service_whose_program_is_missing_is_a_failure(patient: Patient):
    patient.set('[services.render]\nrunner = "process"\ncommand = ["no-such-program-at-all"]')
    (await patient.examined()).ends(1, "FAIL  services", "render: its program is not there", "services.render.command")
    patient.set('[services.render]\nrunner = "process"\ncommand = ["python3"]')
    assert (await patient.findings())["services"]["verdict"] == "OK"


async def test_one_node_is_looked_at_by_name(patient: Patient, conn: Connection):
    await node(conn, "n1", render=1)
    said = await patient.examined("--node", "n1")
    said.ends(0, "n1 is awake", "n1 offers render × 1", "n1 has no wake_method")
    (await patient.examined("--node", "n9")).ends(1, 'there is no node "n9"', "→ `accsd nodes`")


async def asleep(conn: Connection, name: str, method: str, networks: str = "{}", **fields: str) -> None:
    await conn.fetch(
        "SELECT * FROM accs.register_node($1, '{}', '{\"render\": 1}', $2, $3, $4, $5, $6::text::cidr[])",
        name,
        method,
        fields.get("mac"),
        fields.get("provider_ref"),
        fields.get("script"),
        networks,
    )
    await conn.fetch("SELECT accs.node_leaves($1, 'sleep')", name)


async def test_each_way_to_wake_a_node_is_looked_at_from_here(patient: Patient, conn: Connection, tmp_path: Path):
    script = tmp_path / "wake.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o777)  # anybody could change it
    await asleep(
        conn, "n1", "wol", "{10.9.8.0/24}", mac="52:54:00:00:00:01", provider_ref="studio/1", script=str(script)
    )
    said = (await patient.examined("--node", "n1")).ends(1, "n1 is woken by wol, then provider, then script")
    said.ends(1, "WARN  packets", "in none of the networks of n1 (10.9.8.0/24)", "→ keep a machine awake there")
    said.ends(1, "FAIL  provider", 'the provider "studio", which is not in [wake.providers]')
    said.ends(1, "FAIL  script", "can be written by others", "`accsd doctor --node` on n1")
    script.chmod(0o755)
    await conn.fetch("SELECT * FROM accs.register_node('n2', p_networks => '{10.9.8.0/24}')")
    patient.set('[wake.providers.studio]\nurl = "https://studio.example/{ref}"')
    found = await patient.findings("--node", "n1")
    assert {found[check]["verdict"] for check in ("packets", "provider", "script", "relay")} == {"OK"}
    assert "n2 can send the packet for n1" in found["relay"]["text"]


async def test_why_the_last_wake_went_wrong_is_said(patient: Patient, conn: Connection):
    await asleep(conn, "n1", "wol", mac="52:54:00:00:00:01")
    try_id, seen = uuid4(), await conn.fetchval("SELECT last_seen FROM nodes")
    await conn.fetch("SELECT accs.claim_wake('n1', $1, 'wol', NULL, $2)", try_id, seen)
    failed = {"error": "no magic packet could be sent"}
    await conn.fetch("SELECT accs.record_wake('n1', $1, false, NULL, 'not woken', $2)", try_id, failed)
    last = (await patient.findings("--node", "n1"))["last wake"]
    assert (last["verdict"], last["text"]) == ("WARN", "wol: no magic packet could be sent")


async def test_a_cycle_needs_another_machine_and_a_yes(patient: Patient, conn: Connection):
    await node(conn, "n1", render=1)
    (await patient.examined("--cycle")).ends(2, "--cycle needs --node NAME")
    (await patient.cli("--config", str(patient.config), "doctor", "--node", "n1", "--cycle", stdin="n\n")).ends(
        1, "Abort"
    )
    assert await conn.fetchval("SELECT count(*) FROM accs.node_orders") == 0
    said = await patient.examined("--node", "n1", "--cycle", "--yes")
    said.ends(1, "FAIL  cycle", "n1 has no wake_method: it would not come back", "→ set node.wake_method")
    assert await conn.fetchval("SELECT count(*) FROM accs.node_orders") == 0
    patient.config.write_text(f'[node]\nname = "n1"\nstate_dir = "{patient.state}"\n')
    (await patient.examined("--node", "n1", "--cycle", "--yes")).ends(1, "this machine can't wake itself")


@pytest.mark.parametrize(
    ("settings", "verdict", "words"),
    [
        ("", "OK", "does not sleep by itself"),
        ('method = "script"\nscript = "{folder}/none.sh"', "FAIL", "none.sh can't be run"),
        ('method = "provider"\nprovider_ref = "studio/1"', "FAIL", "which is not in [wake.providers]"),
        ('method = "script"\nscript = "{folder}/sleep.sh"', "OK", "by {folder}/sleep.sh"),
    ],
)
async def test_how_this_machine_sleeps_is_looked_at_here(
    patient: Patient, tmp_path: Path, settings: str, verdict: str, words: str
):
    (tmp_path / "sleep.sh").write_text("#!/bin/sh\n")
    (tmp_path / "sleep.sh").chmod(0o755)
    sleep = settings.format(folder=tmp_path)
    woken = f'wake_method = "script"\nscript = "{tmp_path}/wake.sh"'
    patient.config.write_text(
        f'[sleep]\nveto_users = false\nveto_inhibitors = false\n{sleep}\n[node]\nname = "n1"\n{woken}\n'
    )
    found = await patient.findings("--node")
    assert (found["sleep"]["verdict"], words.format(folder=tmp_path) in found["sleep"]["text"]) == (verdict, True)
    assert ("vetoes" in found) == bool(settings)


async def test_a_node_that_is_woken_by_packets_needs_its_mac(patient: Patient):
    patient.config.write_text('[node]\nname = "n1"\nwake_method = "wol"\n')
    card = (await patient.findings("--node"))["network card"]
    assert (card["verdict"], "node.mac is not set; " in card["text"]) == ("FAIL", True)


async def test_a_machine_that_would_sleep_for_ever_is_a_failure(patient: Patient, tmp_path: Path):
    (tmp_path / "keep-awake").touch()
    patient.set(f'[sleep]\nmethod = "suspend"\nveto_files = ["{tmp_path}/keep-*"]')
    found = await patient.findings("--node")
    assert (found["sleep"]["verdict"], found["sleep"]["text"]) == ("FAIL", "it would sleep, and nobody could wake it")
    assert f"it would stay awake now: {tmp_path}/keep-awake is there" in found["vetoes"]["text"]


async def test_the_way_of_magic_packets_matters_where_somebody_is_woken_by_them(patient: Patient, conn: Connection):
    patient.set('[wake]\ninterface = "lo"')  # it has no broadcast address
    quiet = (await patient.findings())["wake-on-LAN"]
    assert (quiet["verdict"], "no node is woken so" in quiet["text"]) == ("OK", True)
    await conn.fetch("SELECT * FROM accs.register_node('n1', '{}', '{}', 'wol', '52:54:00:00:00:01')")
    assert (await patient.findings())["wake-on-LAN"]["verdict"] in ("WARN", "FAIL")
    patient.set('[wake]\ninterface = "lo"\nbroadcast = ["10.0.0.255"]')
    assert (await patient.findings())["wake-on-LAN"]["verdict"] == "OK"
