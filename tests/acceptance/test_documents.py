"""Every command that the README, the quickstart, the media example, the fleet guide and the pages on schedules, events
and conditions show is run, in order, as it stands there. What is put in another's place (a host, a folder, an image) is
named in the test."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import uuid
import wave
import zlib
from array import array
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path

import asyncpg
import pytest

from accsd import embedded
from accsd.embedded.binaries import wheel_binaries
from accsd.settings import ProbeSettings
from tests.support import daemon
from tests.support.cluster import DEBIAN_15, Connection
from tests.support.compose import PYTHON, why_not
from tests.support.eventually import eventually, eventually_sync
from tests.support.judge_programs import why_no_judge
from tests.support.library import opened
from tests.support.own_server import own_server
from tests.support.schedules import jobs_of, plan_all, told

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "media-pipeline"
# What is not run here, and why. Whoever adds a command to a document meets this list.
ELSEWHERE = {
    "make install": "this very environment was made by it",
    "make test": "this very run",
    "make demo": "tests/acceptance/test_demo.py",
}


def blocks(document: str, language: str = "sh") -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def runnable(block: str) -> str:
    """Without the commands that run elsewhere."""
    lines = [line for line in block.splitlines() if line.partition("#")[0].strip() not in ELSEWHERE]
    return "\n".join(lines) + "\n"


def replaced(text: str, **others: str) -> str:
    """Each of these must be there to be replaced."""
    for wanted, other in others.items():
        assert wanted in text, text
        text = text.replace(wanted, other)
    return text


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody's terminal, with nothing of ours in it but the installed commands."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ours = {"HOME": str(tmp_path), "STATE_DIRECTORY": str(tmp_path / "state"), "PATH": path, "NO_COLOR": "1"}
    return {**os.environ, **ours}


@pytest.fixture
def project(shell: dict[str, str]) -> Iterator[dict[str, str]]:
    """The same with a compose project of its own, which is gone at the end; skipped where there is no compose."""
    if reason := why_not():
        pytest.skip(reason)
    name = f"accsd-test-{uuid.uuid4().hex[:10]}"
    yield shell | {"COMPOSE_PROJECT_NAME": name, "ACC_COMPOSE_PROJECT": name}
    listed = ["docker", "ps", "-aq", "--filter", f"label=com.docker.compose.project={name}"]
    if found := subprocess.run(listed, capture_output=True, check=True, timeout=30).stdout.decode().split():
        subprocess.run(["docker", "rm", "-f", "-v", *found], capture_output=True, check=True, timeout=60)


def bash(script: str, folder: Path, environ: Mapping[str, str], stdin: str = "") -> str:
    """`stdin` is what a person types when asked: a file, so that each command leaves the rest to the next."""
    (folder / "typed").write_text(stdin)
    with (folder / "typed").open("rb") as typed:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environ,
            stdin=typed,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            start_new_session=True,
        )
    assert ran.returncode == 0, f"{script}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@contextmanager
def terminal(command: str, folder: Path, environ: Mapping[str, str], ready: bytes) -> Generator[None]:
    """A command in a terminal of its own, until Ctrl-C."""
    log = folder / f"terminal-{uuid.uuid4().hex[:6]}.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        eventually_sync(lambda: ready in log.read_bytes() or daemon.poll() is not None, within=60)
        assert daemon.poll() is None, log.read_text()
        yield
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(timeout=60) == 0, log.read_text()
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait(timeout=10)


REGISTERED = b"node_registered"


# The quickstart


def test_the_quickstart(tmp_path: Path, shell: dict[str, str]):
    install, service, workflow, up, run, look, *_ = blocks("docs/quickstart.md")
    bash(runnable(install), tmp_path, shell)
    bash(service, tmp_path, shell)
    hello = tmp_path / "hello"
    bash(workflow, hello, shell)
    with terminal(up, hello, shell, REGISTERED):
        assert "greeting world" in bash(run, hello, shell)
        shown = bash(look, hello, shell)
        assert "done" in shown
        assert "card.txt" in shown


@pytest.mark.needs_docker
@pytest.mark.xdist_group("compose")
def test_the_quickstart_with_compose(tmp_path: Path, project: dict[str, str]):
    _, service, workflow, _, run, _, compose, up, again = blocks("docs/quickstart.md")
    bash(service, tmp_path, project)
    hello = tmp_path / "hello"
    bash(workflow, hello, project)
    bash(replaced(compose, **{"python:3.11-slim": PYTHON}), hello, project)
    with terminal(up, hello, project, REGISTERED):
        bash(run, hello, project)
        told = bash(again, hello, project)
        assert "greeting compose" in told
        assert "running → done" in told


# The README


def test_the_readme_shows_no_command_that_is_not_run(tmp_path: Path, shell: dict[str, str]):
    (commands,) = blocks("README.md")
    assert runnable(commands).strip() == ""


async def test_the_readme_s_workflow_and_sql(tmp_path: Path, shell: dict[str, str], db_url: str, conn: Connection):
    workflow, more, _ = blocks("README.md", "yaml")
    (tmp_path / "media.yaml").write_text(workflow + more)
    environ = shell | {"ACC_DB_URL": db_url}
    assert "created" in await in_bash("accsd workflows apply media.yaml", tmp_path, environ)
    statements, schedule = blocks("README.md", "sql")
    await conn.execute(statements)
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    assert await conn.fetchval("SELECT count(*) FROM job_tasks") == 12
    await conn.execute(schedule)
    assert "nightly" in await in_bash("accsd schedules list", tmp_path, environ)
    (job, _) = (await in_bash("accsd jobs -o name", tmp_path, environ)).split()
    assert "ingest" in await in_bash(f"accsd why {job}", tmp_path, environ)


async def test_the_page_on_schedules(tmp_path: Path, shell: dict[str, str], db_url: str, conn: Connection):
    """Every command of it, in its order, with a builder that plans and fires; a schedule by SQL, too."""
    environ = shell | {"ACC_DB_URL": db_url}
    (tmp_path / "backup.yaml").write_text("name: backup\nsteps: [{ key: pack, service: pack }]\n")
    await in_bash("accsd workflows apply backup.yaml", tmp_path, environ)
    (by_sql,) = blocks("docs/schedules.md", "sql")
    await conn.execute(replaced(by_sql, **{"'nightly'": "'by-sql'"}))
    with daemon.running(tmp_path, db_url, role="builder"):
        for commands in blocks("docs/schedules.md", "sh"):
            for command in (_ahead(line.partition(" #")[0]) for line in commands.splitlines()):
                if "hold" not in command:
                    await eventually(lambda: _is_planned(conn), within=10)
                said = await in_bash(command, tmp_path, environ)
                if "hold" in command:
                    await in_bash("accsd schedules hold --lift", tmp_path, environ)
                assert said, command
    states = await conn.fetch("SELECT name, state FROM schedules ORDER BY name")
    assert [tuple(row) for row in states] == [("by-sql", "active"), ("nightly", "ended")]


async def _is_planned(conn: Connection) -> bool:
    return await conn.fetchval("SELECT NOT EXISTS (SELECT FROM accs.agenda WHERE what = 'replan')")


def _ahead(command: str) -> str:
    """With a time that is ahead, whenever this runs."""
    tomorrow = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT02:30")
    return command.replace("2026-12-24T02:30", tomorrow)


async def test_the_page_on_events(tmp_path: Path, shell: dict[str, str], db_url: str, conn: Connection):
    """From top to bottom, with a builder: the events that pass the filter start a job each."""
    with daemon.running(tmp_path / "builder", db_url, role="builder"):
        await from_top_to_bottom("docs/events.md", tmp_path, shell | {"ACC_DB_URL": db_url}, conn)
        which = await conn.fetchval("SELECT id FROM schedules WHERE name = 'packing'")
        await eventually(lambda: _have_run(conn, which, 3), within=20)
    given = [job["options"] for job in await jobs_of(conn, which)]
    assert given == [{"order": n, "note": f"order {n}"} for n in (4711, 4712, 4712)]
    states = await conn.fetch("SELECT name, state, state_reason FROM schedules ORDER BY name")
    assert [tuple(row) for row in states] == [("packing", "active", None), ("ship-packed", "active", None)]


async def _have_run(conn: Connection, which: uuid.UUID, n: int) -> bool:
    return len(await jobs_of(conn, which)) == n and await conn.fetchval("SELECT count(*) FROM accs.inbox") == 0


async def test_the_page_on_conditions(tmp_path: Path, shell: dict[str, str], db_url: str, conn: Connection):
    """From top to bottom; then a planner finds all of its schedules good."""
    await from_top_to_bottom("docs/conditions.md", tmp_path, shell | {"ACC_DB_URL": db_url}, conn)
    async with opened(db_url) as db:
        await plan_all(db)
    assert await conn.fetch("SELECT name, state_reason FROM schedules WHERE state <> 'active'") == []
    which = await conn.fetchval("SELECT id FROM schedules WHERE name = 'tidy-when-full'")
    assert await told(conn, which) == [("fired", "condition")]
    (table,) = blocks("docs/conditions.md", "toml")
    assert ProbeSettings.model_validate(tomllib.loads(table)["probes"]).targets.keys() == {"shop"}


async def test_the_page_on_security(tmp_path: Path, shell: dict[str, str], db_url: str, conn: Connection):
    environ = shell | {"ACC_DB_URL": db_url, "ACC_GATEWAY_LISTEN": "127.0.0.1:8700"}
    await from_top_to_bottom("docs/security.md", tmp_path, environ, conn)
    tokens = await conn.fetch("SELECT name, revoked_at IS NOT NULL FROM accs.tokens ORDER BY name")
    assert [tuple(row) for row in tokens] == [("ci", True), ("laptop", True), ("studio", True)]
    actions = {row["action"] for row in await conn.fetch("SELECT action FROM accs.audit")}
    assert actions == {"create_token", "revoke_token", "put_actor", "create_code"}


async def from_top_to_bottom(document: str, folder: Path, environ: Mapping[str, str], conn: Connection) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(sh|sql)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language == "sql":
            await conn.execute(block)
        else:
            await in_bash(block, folder, environ)


def readme_s_compose_file() -> str:
    """With an image that is here."""
    *_, compose = blocks("README.md", "yaml")
    return replaced(compose, **{"studio/renderer": PYTHON, '"python", "-m", "render"': '"python3", "-c", "print(7)"'})


RENDER = "name: media\nsteps: [{ key: render, service: renderer, requires: { gpu: true } }]\n"


@pytest.mark.needs_docker
@pytest.mark.xdist_group("compose")
def test_the_page_on_the_http_api(tmp_path: Path, shell: dict[str, str]):
    """Another port than the usual one, which may be taken here."""
    (tmp_path / "hello.yaml").write_text("{name: hello, steps: [{key: greet, service: greeter}]}")
    greet = 'import sys; sys.stdin.readline(); print(\'hello\'); print(\'{"type": "result", "result": {}}\')'
    (tmp_path / "accsd.toml").write_text(
        f'[services.greeter]\nrunner = "process"\ncommand = ["python3", "-c", {json.dumps(greet)}]\n'
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = "accsd workflows apply hello.yaml\n" + "\n".join(blocks("docs/http-api.md"))
    script = replaced(script, **{"127.0.0.1:8460": address}).replace("timeout 3 curl", "timeout 1 curl")
    environ = shell | {"ACC_GATEWAY_LISTEN": address}
    with terminal("accsd --config accsd.toml up", tmp_path, environ, b"accsd is up"):
        told = bash(script, tmp_path, environ)
    assert '"status":"done"' in told
    assert '"text":"hello"' in told
    assert '"event":"hello"' in told
    assert '"workflow":"hello","version":1,"count":40' in told
    assert 'this needs the scope \\"submit\\"' in told


def test_the_readme_s_compose_file(tmp_path: Path, project: dict[str, str]):
    (tmp_path / "compose.yaml").write_text(readme_s_compose_file())
    (tmp_path / "media.yaml").write_text(RENDER.replace("gpu: true", ""))
    with terminal("accsd up --compose compose.yaml", tmp_path, project, REGISTERED):
        told = bash("accsd workflows apply media.yaml && accsd submit media --follow", tmp_path, project)
        assert "running → done" in told


# The media example


def copied(folder: Path) -> Path:
    """As it is in a clone: without what its README has written by `accsd sdk vendor`."""
    ignored = shutil.ignore_patterns("__pycache__", "work", "accsd_wire.py", "accsd_serving")
    return shutil.copytree(EXAMPLE, folder / "example", ignore=ignored)


def published(example: Path, run: str, environ: Mapping[str, str]) -> str:
    told = bash(run, example, environ)
    assert "results/upload/index.html" in told
    return (example / "results/upload/index.html").read_text()


def test_the_media_example_as_processes(tmp_path: Path, shell: dict[str, str]):
    vendor, up, run, _ = blocks("examples/media-pipeline/README.md")
    example = copied(tmp_path)
    assert "wrote services/accsd_wire.py" in bash(vendor, example, shell)
    with terminal(up, example, shell, REGISTERED):
        assert "<h1>First take</h1>" in published(example, run, shell)
    (alone,) = re.findall(r"without accsd: `(.*)`", (EXAMPLE / "README.md").read_text())
    assert '"results"' in bash(alone, example, shell)
    assert (example / "out" / "take.wav").exists()


@pytest.mark.needs_docker
@pytest.mark.xdist_group("compose")
def test_the_media_example_in_containers(tmp_path: Path, project: dict[str, str]):
    vendor, _, run, compose = blocks("examples/media-pipeline/README.md")
    build, up = compose.splitlines()
    example = copied(tmp_path)
    bash(vendor, example, project)
    environ = project | {"BASE": PYTHON, "IMAGE": "accsd-test-media-pipeline"}  # its own variables
    assert bash(f"{{ {build.partition('#')[0]}; }} 2>&1", example, environ).count(" Built") == 1, "one image for all"
    with terminal(up, example, environ, REGISTERED):
        assert "<h1>First take</h1>" in published(example, run, environ)
    bash("docker compose down -t 1", example, environ)


# Pipelines


def example_named(name: str, folder: Path) -> Path:
    """As it is in a clone."""
    ignored = shutil.ignore_patterns("__pycache__", "accsd_wire.py", "accsd_serving")
    return shutil.copytree(ROOT / "examples" / name, folder / name, ignore=ignored)


def test_the_page_on_pipelines(tmp_path: Path, shell: dict[str, str]):
    """Every command of it in its order; all of its workflows are sound."""
    before, up, run, cached, with_files = blocks("docs/pipelines.md")
    workflow, memo, letters, document = blocks("docs/pipelines.md", "yaml")
    example = example_named("fan-out", tmp_path)
    (example / "memo.yaml").write_text(memo)
    (example / "report.yaml").write_text(document)
    (example / "shown.yaml").write_text(workflow)
    (example / "letters.yaml").write_text(letters)
    offline = bash(f"{before}accsd workflows check report.yaml shown.yaml", example, shell)
    assert 'encode[0]: runs with {"name":"a.wav","level":6}' in offline
    assert "report: ok, 2 steps" in offline
    with terminal(up.partition("#")[0], example, shell, REGISTERED):
        apply_both = "accsd workflows apply workflow.yaml > applied; accsd workflows apply shown.yaml"
        assert "unchanged" in bash(apply_both, example, shell)
        told = bash(run, example, shell)
        memoized = bash(cached, example, shell)
        files = bash(with_files, example, shell)
    assert "letters: ok, 3 steps, 2 files" in files
    assert "fonts/serif.ttf  7 B" in files
    assert re.search(r"split +done .*cached: the result of job", memoized), memoized
    assert re.search(r"encode × 2 .* 2 cached", memoized), memoized
    assert "2 cached results forgotten" in memoized, "those of the first job and of the one without cache"
    assert "encode × 8" in told
    assert "7 done, 1 skipped" in told
    assert "encode[2] | part-002.wav: 16000 bytes became" in told, "the log of a step is that of its items"
    assert "\npart-003.wav: 16000 bytes became" in told, "and that of one item needs no name before it"
    assert '"title": "Tides"' in (example / "results" / "join" / "index.json").read_text()


def test_the_home_automation_example(tmp_path: Path, shell: dict[str, str]):
    before, hub, up, run = blocks("examples/home-automation/README.md")
    example = example_named("home-automation", tmp_path)
    port = str(daemon.free_port())
    config = example / "accsd.toml"
    config.write_text(replaced(config.read_text(), **{"8123": port}))
    shell = {**shell, "HUB_PORT": port}
    assert "cool: is skipped, because its condition did not hold" in bash(before, example, shell)
    with (
        terminal(hub.partition("#")[0], example, shell, b"the hub listens"),
        terminal(up.partition("#")[0], example, shell, REGISTERED),
    ):
        told = bash(run, example, shell)
        assert "attic: 31.5 °C, the fan is on" in told
        assert re.search(r"cool +skipped .*its condition did not hold", told)
        assert "attic: 19 °C, the fan is off" in bash("accsd logs $(accsd jobs --limit 1 -o name)", example, shell)
        wrong = "sed -i 's/state: true/state: on!/' pipeline.yaml; accsd workflows check pipeline.yaml 2>&1 || true"
        assert re.search(
            r'pipeline.yaml:12: step "cool": with.state must be true or false', bash(wrong, example, shell)
        )


def test_the_seqpulse_example(tmp_path: Path, shell: dict[str, str]):
    """A deployment by SeqPulse's client, and one as a pipeline (FO10), which takes a bad release back."""
    before, shop, up, announced, job, bad = blocks("examples/seqpulse/README.md")
    example = example_named("seqpulse", tmp_path)
    ports = {"8000": str(daemon.free_port()), "8460": str(daemon.free_port())}
    config = example / "accsd.toml"
    config.write_text(replaced(config.read_text(), **ports))
    gateway = f"http://127.0.0.1:{ports['8460']}"
    shell = {**shell, "SHOP_PORT": ports["8000"], "SEQPULSE_BASE_URL": gateway}
    assert "deploy-shop: ok, 5 steps" in bash(before, example, shell)
    with (
        terminal(shop.partition("#")[0], example, shell, b"the shop is open"),
        terminal(up.partition("#")[0], example, shell, REGISTERED),
    ):
        key = announced.partition("\n")[0]
        assert "ok: Nothing became worse" in bash(announced, example, shell)
        told = bash(job, example, shell)
        assert "post_collect × 3" in told
        assert re.search(r"rollback +done", told), told
        said = "".join(each.read_text() for each in example.glob("terminal-*.log"))
        assert "at release 3-broken\nthe shop is at release 2\n" in said
        told = bash(f"{key}\n{bad}", example, shell)
        assert "rollback_recommended: A rollback is recommended: error_rate failed." in told
        assert "the pipeline of the CI fails" in told


def test_the_ordinaut_example(tmp_path: Path, shell: dict[str, str]):
    """A task of Ordinaut's, made and read by its routes, that a real daemon runs."""
    before, up, agent, task, known, refused, ended = blocks("examples/ordinaut/README.md")
    example = example_named("ordinaut", tmp_path)
    bash(before, example, shell)
    port = str(daemon.free_port())
    config = example / "accsd.toml"
    config.write_text(replaced(config.read_text(), **{"8460": port}))
    script = "\n".join((replaced(agent, **{"8460": port}), task, known, refused, ended))
    with terminal(up.partition("#")[0], example, shell, REGISTERED):
        told = bash(script, example, shell)
    assert "2 events, first: Stand-up. 31°C in Chisinau" in told
    assert '"text": "Drink something: clear sky"' in told
    assert '"successful_runs":1' in told
    assert "flattening by [] has no counterpart here" in told
    assert "/payload/pipeline/1/if" in told
    assert '"new_status":"canceled"' in told


def test_the_fan_out_example(tmp_path: Path, shell: dict[str, str]):
    """Its files are right, an item that fails is named, and tolerated where the workflow says so."""
    before, up, run = blocks("examples/fan-out/README.md")
    example = example_named("fan-out", tmp_path)
    bash(before, example, shell)
    with terminal(up.partition("#")[0], example, shell, REGISTERED):
        told = bash(run, example, shell)
        assert "encode × 12" in told
        index = json.loads((example / "results/join/index.json").read_text())
        recorded = (example / "results/join/recording.bin").read_bytes()
        decoded = unpacked(recorded, [part and part["bytes"] for part in index["parts"]])
        wanted = [part_of(example / f"results/split/part-{number:03}.wav") for number in range(12)]
        assert decoded == [wanted[number] if number != 7 else None for number in range(12)]

        failing = "accsd submit fan-out -o pace=0 -o broken=part-002.wav --wait || true\n"
        failing += "accsd job $(accsd jobs --limit 1 -o name)"
        assert re.search(r"encode\[2\] +error", told := bash(failing, example, shell)), told
        assert "6 done, 1 failed, 1 skipped" in told
        document = (example / "workflow.yaml").read_text()
        (example / "workflow.yaml").write_text(replaced(document, **{"max_parallel: 4": "tolerate: 1"}))
        told = bash(f"accsd workflows apply workflow.yaml\n{failing}", example, shell)
        assert "6 done, 1 failed (tolerated), 1 skipped" in told
        assert re.search(r"join +done", told)


def unpacked(recorded: bytes, lengths: list[int | None]) -> list[bytes | None]:
    """The samples of each part, from what changed from one to the next."""
    parts: list[bytes | None] = []
    for length in lengths:
        if length is None:
            parts.append(None)
            continue
        changes = array("h", zlib.decompress(recorded[:length]))
        sums = accumulate(changes, lambda before, change: ((before + change + 32768) & 65535) - 32768)
        parts.append(array("h", sums).tobytes())
        recorded = recorded[length:]
    return parts


def part_of(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        return file.readframes(file.getnframes())


# The fleet guide


def as_postgres(server: embedded.Server) -> dict[str, str]:
    """How the server's administrator connects, whose name is ours here (which is what the guide calls the owner)."""
    there = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGDATABASE": "postgres", "PGPASSWORD": server.password}

    async def named_as_usual() -> None:
        ours = await asyncpg.connect(server.tcp_url)
        await ours.execute(f"CREATE ROLE postgres SUPERUSER LOGIN PASSWORD '{server.password}'")
        await ours.close()
        usual = await asyncpg.connect(server.tcp_url.replace("//accsd:", "//postgres:"))
        await usual.execute("ALTER ROLE accsd RENAME TO another")
        await usual.close()

    asyncio.run(named_as_usual())
    return there | {"PGUSER": "postgres"}


@pytest.mark.needs_docker
@pytest.mark.xdist_group("compose")
@pytest.mark.parametrize("bindir", [None, DEBIAN_15], ids=["pg18", "pg15"])
def test_the_fleet_guide(tmp_path: Path, project: dict[str, str], bindir: Path | None):
    """A plain owner, the roles, the builder as accs_scheduler, an agent as accs_agent, and the doctor as both."""
    if bindir is not None and not bindir.exists():
        pytest.skip(f"no PostgreSQL 15 in {bindir}")
    database, _, check, *_ = blocks("docs/fleet.md")
    node, *_ = blocks("docs/fleet.md", "toml")
    (uninstalled,) = [block for block in blocks("docs/operations.md") if "dropdb" in block]
    with own_server(bindir) as own:
        server = own.start()
        admin = as_postgres(server)
        path = f"{bindir or wheel_binaries()}:{project['PATH']}"
        control = project | {"PATH": path, "STATE_DIRECTORY": str(tmp_path / "control")}
        typed = "secret\n" * 2 + "agent's\n" * 2 + "scheduler's\n" * 2
        here = replaced(database, **{"@control/": f"@127.0.0.1:{server.port}/"})
        # what psql asks for is typed by the owner, whose password stands in the URL
        bash(here, tmp_path, control | admin, typed)
        assert (
            bash("psql -Atc \"SELECT rolsuper FROM pg_roles WHERE rolname = 'accsd'\"", tmp_path, control | admin)
            == "f\n"
        )

        stored = {"ACC_STORAGE_URL": f"file://{tmp_path}/objects"}
        as_role = "postgresql://{}:{}@127.0.0.1:" + f"{server.port}/accs"
        builder = control | stored | {"ACC_DB_URL": as_role.format("accs_scheduler", "scheduler's")}
        agent = project | stored | {"ACC_DB_URL": as_role.format("accs_agent", "agent's"), "ACC_NODE_NAME": "render-3"}
        etc = tmp_path / "etc"
        etc.mkdir()
        (etc / "accsd.toml").write_text(replaced(node, **{"/etc/accsd": str(etc)}))
        (etc / "compose.yaml").write_text(readme_s_compose_file())
        (tmp_path / "media.yaml").write_text(RENDER)
        config = f"--config {etc}/accsd.toml"
        with (
            terminal("accsd --role builder", tmp_path, builder, b'"started"'),
            terminal(f"accsd --role agent {config}", tmp_path, agent, REGISTERED),
        ):
            told = bash("accsd workflows apply media.yaml && accsd submit media --follow", tmp_path, builder)
            assert "running → done" in told
            assert "render-3" in bash("accsd nodes", tmp_path, builder)
            examined = bash(replaced(check, **{"/etc/accsd": str(etc)}), tmp_path, agent)
            assert "FAIL" not in examined
            assert "FAIL" not in bash("accsd doctor", tmp_path, builder)
        bash(uninstalled, tmp_path, control | admin)


async def in_bash(script: str, folder: Path, environ: Mapping[str, str]) -> str:
    return await asyncio.to_thread(bash, script, folder, environ)


def test_the_judge_example_and_the_page_of_its_door(tmp_path: Path, shell: dict[str, str]):
    if reason := why_no_judge():
        pytest.skip(reason)
    up, tried, _ = blocks("examples/judge/README.md")
    again, by_hand = blocks("docs/doors/judge.md")
    example = example_named("judge", tmp_path)
    address = f"127.0.0.1:{daemon.free_port()}"
    shell = {**shell, "ACC_GATEWAY_LISTEN": address, "JUDGE_API": f"http://{address}/api/v1"}
    assert again.strip() in tried
    with terminal(up.partition("#")[0], example, shell, REGISTERED):
        told = bash(tried, example, shell)
        assert '"status": "Accepted"' in told
        assert "namespaces" in told or "no network" in told
        told = bash(replaced(by_hand, **{"127.0.0.1:8460": address}), example, shell)
    assert '"status":"Accepted"' in told
    assert "workflow   judge.2 version 1" in told
