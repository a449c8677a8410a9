"""Files, logs and words of tasks, from the real daemon to a real store: a folder, or SeaweedFS over S3."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import pytest

from accsd.settings import StorageSettings
from accsd.storage import ObjectStore, build_file_key, open_store
from tests.support import daemon, objectstore
from tests.support.cable import Cable
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step, submit, submit_to, workflow
from tests.support.objectstore import S3Server
from tests.support.tasks import MOST_MEMORY, PREAMBLE, SHORT_LEASE, notes, outcome, peak_memory, toml_service

pytestmark = pytest.mark.xdist_group("s3")  # its object store is started once

MAKE = (
    PREAMBLE
    + """
for name, text in params['files'].items():
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)
    open(name, 'w').write(text)
    say(type='artifact', path=name, content_type='text/plain')
say(type='result', results={'made': len(params['files'])})
"""
)
READ = (
    PREAMBLE
    + """
found = {a['name']: open(a['path']).read() for a in task['artifacts']}
files = {f['name']: open(f['path']).read() for f in task['files']}
say(type='result', results={'found': found, 'inputs': task['inputs'], 'artifacts': task['artifacts'], 'files': files})
"""
)
FILES = {"plain.txt": "hello", "a/b/c.txt": "nested\n" * 1000, "größe/日本 📦.txt": "unicode ✓", "empty": ""}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    try:
        with objectstore.running() as server:
            yield server
    except objectstore.NoServer as reason:
        pytest.skip(str(reason))


def told(storage: StorageSettings) -> dict[str, str]:
    """The same settings, for a daemon."""
    said = {"ACC_STORAGE_URL": storage.url}
    if storage.access_key and storage.secret_key:
        said |= {
            "ACC_MINIO_ENDPOINT": storage.endpoint,
            "ACC_MINIO_ACCESS_KEY": storage.access_key.get_secret_value(),
            "ACC_MINIO_SECRET_KEY": storage.secret_key.get_secret_value(),
        }
    return {name: value for name, value in said.items() if value is not None}


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StorageSettings:
    if request.param == "file":
        return StorageSettings(url=f"file://{tmp_path / 'store'}")
    return request.getfixturevalue("s3").settings()


async def keys(store: ObjectStore) -> set[str]:
    return {listed.key async for listed in store.list()}


async def log_of(store: ObjectStore, job: UUID, key: str = "a") -> list[dict[str, Any]]:
    """All lines of a task's log, over its segments in order."""
    segments = sorted([listed.key async for listed in store.list(f"logs/{job}/{key}/")])
    return [json.loads(line) for name in segments for line in (await store.get_bytes(name)).splitlines()]


async def messages(conn: Connection, job: UUID, kind: str) -> list[str]:
    rows = await conn.fetch("SELECT message FROM task_events WHERE job_id = $1 AND type = $2 ORDER BY id", job, kind)
    return [row["message"] for row in rows]


async def test_what_a_step_makes_lies_in_the_folder_of_the_next(
    tmp_path: Path, db_url: str, conn: Connection, storage: StorageSettings
):
    config = toml_service("make", MAKE) + toml_service("read", READ)
    with daemon.running(tmp_path, db_url, config=config, environ=told(storage)) as accsd:
        steps = step("a", "make", default_params={"files": FILES}), step("b", "read", after="a")
        made = await workflow(conn, *steps)
        await conn.execute("UPDATE workflows SET files = $1 WHERE id = $2", [await with_file(storage, "font")], made)
        job = await submit_to(conn, made)
        await outcome(conn, job)
        row = await eventually(lambda: _done(conn, job, "b"), within=30)
        assert accsd.stop() == 0
    assert row["results"]["found"] == FILES
    assert row["results"]["files"] == {"fonts/a.ttf": "font"}
    assert row["results"]["inputs"] == {"a": {"made": len(FILES)}}
    rows = await conn.fetch("SELECT * FROM task_artifacts WHERE job_id = $1 AND kind = 'output'", job)
    kept = {each["key"]: (each["size_bytes"], each["checksum"], each["content_type"]) for each in rows}
    assert kept == {f"outputs/{job}/a/1/{name}": described(text) for name, text in FILES.items()}
    async with open_store(storage) as store:
        assert {key for key in await keys(store) if key.startswith("outputs/")} == set(kept)
    await check(conn)


async def with_file(storage: StorageSettings, text: str) -> dict[str, Any]:
    """A file of a workflow, in the store."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    async with open_store(storage) as store:
        await store.check()
        await store.put_bytes(build_file_key(digest), text.encode())
    return {"name": "fonts/a.ttf", "key": build_file_key(digest), "size": len(text), "sha256": digest}


def described(text: str) -> tuple[int, str, str]:
    data = text.encode()
    return len(data), f"sha256:{hashlib.sha256(data).hexdigest()}", "text/plain"


async def _done(conn: Connection, job: UUID, key: str) -> Any:
    return await conn.fetchrow(
        "SELECT * FROM job_tasks WHERE job_id = $1 AND task_key = $2 AND status = 'done'", job, key
    )


ANNOUNCE = (
    PREAMBLE
    + """
os.symlink('/etc/passwd', 'link')
os.symlink('/etc', 'folder')
os.mkfifo('pipe')
os.mkdir('dir')
for path in params['paths']: say(type='artifact', path=path, required=params['required'])
"""
)
NOT_TO_BE_TAKEN = {
    "missing": "nowhere.txt",
    "a-link": "link",
    "behind-a-link": "folder/passwd",
    "above": "../task.json",
    "far-above": "../../../../../../../../../../etc/passwd",
    "elsewhere": "/etc/passwd",
    "a-pipe": "pipe",
    "a-folder": "dir",
    "itself": ".",
}


async def test_what_is_not_a_file_of_the_task_is_not_taken(tmp_path: Path, db_url: str, conn: Connection):
    storage = StorageSettings(url=f"file://{tmp_path / 'store'}")
    config = toml_service("announce", ANNOUNCE, concurrency=4)
    with daemon.running(tmp_path, db_url, config=config, environ=told(storage)):
        jobs = {
            name: await submit(
                conn, step("a", "announce", max_attempts=1, default_params={"paths": [path], "required": True})
            )
            for name, path in NOT_TO_BE_TAKEN.items()
        }
        optional = {"paths": list(NOT_TO_BE_TAKEN.values()), "required": False}
        forgiven = await submit(conn, step("a", "announce", max_attempts=1, default_params=optional))
        codes = {name: (await outcome(conn, job))["error_code"] for name, job in jobs.items()}
        assert codes == dict.fromkeys(NOT_TO_BE_TAKEN, "artifact_missing")
        assert (await outcome(conn, forgiven))["status"] == "done"
        warned = await conn.fetch(
            "SELECT message FROM task_events WHERE job_id = $1 AND type = 'artifact' AND level = 'warn'", forgiven
        )
    assert len(warned) == len(NOT_TO_BE_TAKEN)
    assert await conn.fetchval("SELECT count(*) FROM task_artifacts WHERE kind = 'output'") == 0
    async with open_store(storage) as store:
        assert [key for key in await keys(store) if not key.startswith("logs/")] == []


# Says when it has ended by itself; what follows is the agent's work.
ONE_FILE = PREAMBLE + "open('out', 'w').write('x')\nsay(type='artifact', path='out')\nnote('ended')\n"


@dataclass
class Store:
    """A store behind a cable; where it is down, nobody listens there."""

    settings: StorageSettings
    cable: Cable
    _there: tuple[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._there = self.cable.target

    def go_down(self) -> None:
        self.cable.target = ("127.0.0.1", daemon.free_port())
        self.cable.cut()

    def come_back(self) -> None:
        self.cable.target = self._there


@pytest.fixture
async def store(s3: S3Server) -> AsyncIterator[Store]:
    async with Cable.to("127.0.0.1", s3.port) as cable:
        yield Store(s3.settings(port=cable.port), cable)


async def test_a_task_is_not_done_without_its_file_and_waits_for_the_store(
    tmp_path: Path, db_url: str, conn: Connection, store: Store
):
    """For longer than its lease: heartbeats go on."""
    config = toml_service("make", ONE_FILE)
    with daemon.running(tmp_path, db_url, config=config, environ=SHORT_LEASE | told(store.settings)) as accsd:
        store.go_down()
        job = await submit(conn, step("a", "make"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: notes(tmp_path / "notes"), within=30)
        before = await _lease_until(conn, job)
        await eventually(lambda: _is_later(conn, job, before), within=30)
        assert await conn.fetchval("SELECT status FROM job_tasks WHERE job_id = $1", job) == "running"
        store.come_back()
        row = await outcome(conn, job)
        assert (row["status"], row["attempt_id"], row["lost"]) == ("done", 1, 0)
        assert accsd.log("lease_gone") == []
    async with open_store(store.settings) as objects:
        assert f"outputs/{job}/a/1/out" in await keys(objects)


async def _lease_until(conn: Connection, job: UUID) -> Any:
    return await conn.fetchval("SELECT lease_until FROM job_tasks WHERE job_id = $1", job)


async def _is_later(conn: Connection, job: UUID, before: Any) -> bool:
    """By more than the lease: what was granted at `before` would have ended."""
    now = await _lease_until(conn, job)
    return now is not None and (now - before).total_seconds() > float(SHORT_LEASE["ACC_HEARTBEAT_TTL_SEC"])


async def test_a_store_that_stays_away_spends_no_attempt_but_not_for_ever(
    tmp_path: Path, db_url: str, conn: Connection, store: Store
):
    await conn.execute("CREATE OR REPLACE FUNCTION accs.max_lost() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2'")
    config = toml_service("make", ONE_FILE) + '[storage]\npatience = "1s"\n'
    with daemon.running(tmp_path, db_url, config=config, environ=told(store.settings)) as accsd:
        store.go_down()
        job = await submit(conn, step("a", "make", max_attempts=1), options={"note": str(tmp_path / "notes")})
        row = await outcome(conn, job)
        assert accsd.stop() == 0
    assert (row["status"], row["error_code"], row["attempt"], row["lost"]) == ("error", "storage_unavailable", 0, 2)
    assert len(notes(tmp_path / "notes")) == 2
    await check(conn)


async def test_a_store_that_does_not_let_us_in_costs_a_task_its_log_only(
    tmp_path: Path, db_url: str, conn: Connection, s3: S3Server
):
    """Somebody has changed the key. A task without files is none the worse for it."""
    go = tmp_path / "go"
    shut = s3.settings(secret_key="another-key-than-theirs")
    config = toml_service("wait", TALKS) + '[storage]\npatience = "500ms"\n'
    with daemon.running(tmp_path, db_url, config=config, environ=told(shut)) as accsd:
        job = await submit(conn, step("a", "wait"), options={"go": str(go)})
        await asyncio.to_thread(accsd.wait_for, "log_waits")
        go.touch()
        row = await outcome(conn, job)
    assert (row["status"], row["attempt_id"]) == ("done", 1)
    assert "could not be kept" in (await messages(conn, job, "truncated"))[-1]


TALKS = (
    PREAMBLE
    + """
say(type='progress', progress=0.25, message='a quarter')
for i in range(50): print(f'line {i}', flush=True)
until('go')
for i in range(50, 100): print(f'line {i}', flush=True)
say(type='result', results={'environment': {n: os.environ[n] for n in ('ACC_TRACE_ID', 'TRACEPARENT')},
                            'envelope': task['trace_id']})
"""
)


async def test_words_are_heard_while_the_task_runs_and_each_is_in_the_log_once(
    tmp_path: Path, db_url: str, conn: Connection, storage: StorageSettings
):
    go = tmp_path / "go"
    with daemon.running(tmp_path, db_url, config=toml_service("talk", TALKS), environ=told(storage)) as accsd:
        job = await submit(conn, step("a", "talk"), options={"go": str(go)})
        await eventually(lambda: _has_event(conn, job, "progress", "a quarter"), within=20)
        await eventually(lambda: _has_event(conn, job, "log", "line 49"), within=20)
        async with open_store(storage) as store:
            await eventually(lambda: _has_a_segment(store, job), within=20)
            assert await conn.fetchval("SELECT status FROM job_tasks WHERE job_id = $1", job) == "running"
            go.touch()
            row = await outcome(conn, job)
            lines = await log_of(store, job)
            assert len([key for key in await keys(store) if key.startswith(f"logs/{job}/a/1/")]) > 1
        assert peak_memory(accsd.pid) < MOST_MEMORY
    assert [line["message"] for line in lines] == [f"line {i}" for i in range(100)]
    trace = job.hex
    assert row["results"]["envelope"] == row["results"]["environment"]["ACC_TRACE_ID"] == trace
    assert row["results"]["environment"]["TRACEPARENT"].split("-")[1] == trace
    assert {line.get("trace_id") for line in accsd.log() if line.get("job_id") == str(job)} == {trace}


async def _has_event(conn: Connection, job: UUID, kind: str, message: str) -> bool:
    return message in await messages(conn, job, kind)


async def _has_a_segment(store: ObjectStore, job: UUID) -> bool:
    return any([listed.key async for listed in store.list(f"logs/{job}/a/1/")])


# Wherever a task can put a word, and in each form that a word can have.
TELLTALE = (
    PREAMBLE
    + """
params = json.load(open(params["read"]))
for secret in params['words']:
    print(secret)
    print(secret, file=sys.stderr)
    print('x' * 65000 + secret)
    say(type='log', message=f'it is {secret}', data={secret: [secret]})
    say(type='progress', progress=0.5, message=secret)
    say(type='artifact', path=secret, required=task['task_key'] == 'b')
    say(type='artifact', path=f'/etc/{secret}', content_type=secret, required=False)
    print('{"type": "log", "message": "' + ''.join(f'\\\\u{ord(c):04x}' for c in secret) + '"}')
    say(type='no-such-type', value=secret)
"""
)


async def test_a_secret_that_a_task_prints_appears_nowhere(tmp_path: Path, db_url: str, conn: Connection, s3: S3Server):
    password = f"canary-{uuid4().hex}"
    storage = s3.settings()
    parts = urlsplit(db_url)
    url = urlunsplit(parts._replace(netloc=f"accsd:{password}@{parts.netloc.rpartition('@')[2]}"))
    words = [password, objectstore.SECRET]
    with daemon.running(tmp_path, url, config=toml_service("tell", TELLTALE), environ=told(storage)) as accsd:
        # not by way of the job, whose own row would have them then
        (tmp_path / "words").write_text(json.dumps({"words": words}))
        options = {"read": str(tmp_path / "words")}
        job, worse = [await submit(conn, step(key, "tell", max_attempts=1), options=options) for key in ("a", "b")]
        assert (await outcome(conn, job))["status"] == "done"
        assert (await outcome(conn, worse))["error_code"] == "artifact_missing"
        assert accsd.stop() == 0
    async with open_store(storage) as store:
        stored = "".join(map(str, await log_of(store, job))) + "".join(await keys(store))
    assert stored.count("it is") == 2
    events = [str(dict(each)) for each in await conn.fetch("SELECT * FROM task_events")]
    rows = [str(dict(each)) for each in await conn.fetch("SELECT * FROM job_tasks")]
    letters = [str(dict(each)) for each in await conn.fetch("SELECT * FROM dead_letters")]
    logged = accsd.log_file.read_text()
    for word in words:
        assert [place for place in [stored, logged, *events, *rows, *letters] if word in place] == []
