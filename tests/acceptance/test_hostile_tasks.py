"""Tasks that break every rule, beside one that keeps them: each ends with its own reason, and nobody else notices."""

import json
import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support import daemon, tasks
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import dead_letters, step, submit
from tests.support.objectstore import log_lines
from tests.support.tasks import (
    PREAMBLE,
    WAIT,
    beside_a_good_one,
    notes,
    outcome,
    toml_service,
)

GIB = 1024**3
# service: its program, the code that its task ends with, what else the service or its step says
RULE_BREAKERS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "one": (tasks.exits(1), "exit_nonzero", {}),
    "deaf": (tasks.DEAF, "timeout", {"timeout": "1s", "stop_grace": "300ms"}),
    "greedy": (tasks.GREEDY, "oom", {"limits.memory": "64m"}),
    "bomb": (tasks.BOMB, "pids_limit", {"limits.pids": 20}),
    "closer": (tasks.CLOSER, None, {}),
    "large": (tasks.LARGE, "result_too_large", {}),
    "numbers": (tasks.NUMBERS, "result_too_large", {}),
    "forged-attempt": (tasks.FORGED_ATTEMPT, "protocol_error", {"stop_grace": "300ms"}),
    "forged-job": (tasks.FORGED_JOB, "protocol_error", {}),
    "vandal": (tasks.VANDAL, "protocol_error", {}),  # its folder has gone, and no other
    "patricide": (tasks.PATRICIDE, "worker_lost", {}),
}
ONE_LOSS_IS_ENOUGH = "CREATE OR REPLACE FUNCTION accs.max_lost() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'"
ABSENT = '[services.absent]\nrunner = "process"\ncommand = ["no-such-command-anywhere"]\n'


def services(table: dict[str, tuple[str, str | None, dict[str, Any]]]) -> str:
    return "".join(toml_service(name, program, **said) for name, (program, _, said) in table.items())


async def test_each_ends_with_its_own_error_code(tmp_path: Path, db_url: str, conn: Connection):
    note = tmp_path / "notes"
    await conn.execute(ONE_LOSS_IS_ENOUGH)
    victim = toml_service("victim", WAIT)
    async with beside_a_good_one(tmp_path, db_url, conn, services(RULE_BREAKERS) + ABSENT + victim):
        options = {"note": str(note), "go": str(tmp_path / "never")}
        jobs = {
            name: await submit(conn, step("a", name, max_attempts=1), options=options)
            for name in (*RULE_BREAKERS, "absent", "victim")
        }
        (began,) = await eventually(lambda: notes(note), within=30)
        os.kill(int(began[3]), signal.SIGKILL)
        ended = {name: await outcome(conn, job) for name, job in jobs.items()}
    expected = {name: code for name, (_, code, _) in RULE_BREAKERS.items()}
    codes = {name: row["error_code"] for name, row in ended.items()}
    said = {name: row["error_message"] for name, row in ended.items() if row["error_code"] != expected.get(name)}
    assert codes == {**expected, "absent": "start_failed", "victim": "killed"}, said
    unspent = {name for name, row in ended.items() if row["attempt"] == 0}
    assert unspent == {"closer", "patricide"}, "what cannot be known is not counted against a task"
    assert ended["closer"]["results"] == {"closed": True}


async def test_an_exit_code_may_say_that_another_attempt_is_useless(tmp_path: Path, db_url: str, conn: Connection):
    permanent = {f"code-{code}": tasks.exits(code) for code in (64, 65, 78)}
    config = "".join(toml_service(name, program) for name, program in {**permanent, "plain": "raise OSError"}.items())
    async with beside_a_good_one(tmp_path, db_url, conn, config, {"ACC_BACKOFF_BASE_SEC": "0.1"}):
        jobs = {name: await submit(conn, step("a", name, max_attempts=2)) for name in (*permanent, "plain")}
        ended = {name: await outcome(conn, job) for name, job in jobs.items()}
        buried = {name: (await dead_letters(conn, job))[0]["reason"] for name, job in jobs.items()}
    assert {name: row["attempt"] for name, row in ended.items()} == {**dict.fromkeys(permanent, 1), "plain": 2}
    assert buried == {**dict.fromkeys(permanent, "permanent_error"), "plain": "attempts_exhausted"}


async def test_a_flood_is_cut_off_long_before_it_has_filled_the_disk(tmp_path: Path, db_url: str, conn: Connection):
    """Also one of tiny lines, which are written a thousand times faster than they can be read."""
    config = (
        toml_service("wide", tasks.floods(b"x" * 79 + b"\n", GIB), **{"limits.output": "20m"})
        + toml_service("tiny", tasks.floods(b"y\n", GIB))
        + toml_service("empty", tasks.floods(b"\n", 128 * 1024))
        + toml_service("endless", tasks.floods(b"x", 10 * 1024 * 1024) + "print()\nprint('after it')\n")
    )
    async with beside_a_good_one(tmp_path, db_url, conn, config):
        wide, tiny, empty, endless = [
            await submit(conn, step("a", name, max_attempts=1)) for name in ("wide", "tiny", "empty", "endless")
        ]
        codes = [(await outcome(conn, job, within=90))["error_code"] for job in (wide, tiny)]
        assert codes == ["output_limit"] * 2
        assert [(await outcome(conn, job))["status"] for job in (endless, empty)] == ["done"] * 2
    said = await conn.fetchval("SELECT message FROM task_events WHERE job_id = $1 AND type = 'truncated'", wide)
    assert str(20 * 1024 * 1024) in said
    first, last = await log_lines(conn, tmp_path / "state" / "objects", endless, "a")
    assert (len(first) > 50_000, last) == (True, "after it")


NOT_JSON = [
    b'{"type": "progress", "progress": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"type": "progress", "progress": ' + b"7" * 5000 + b"}",
    b'{"type": "progress", "progress": NaN}',
    b'{"type": "progress", "progress": 1e400}',
    b'{"type": "progress", "progress": "half"}',
    b'{"type": "log", "message": 7}',
    b'{"type": "artifact", "path": "a\\u0000b"}',
    b'{"type": "artifact", "path": "\\ud800"}',
    b'{"type": "result", "results"',
    b"{" * 300_000,
    b"\xff\xfe invalid \x00 \xed\xa0\x80",
    b'{"type": {"type": "result"}}',
    b'{"type": "no-such-type"}',
    b"[1, 2]",
    b"null",
]
ODD_RESULT = (
    b'{"type": "result", "results": {"nan": NaN, "huge": 1e400, "zero": "a\\u0000b", "lone": "\\ud800",'
    b' "bytes": "\xff", "deep": ' + b"[" * 100 + b"]" * 100 + b"}}"
)


async def test_hostile_json_is_kept_as_log_lines_and_the_task_goes_on(tmp_path: Path, db_url: str, conn: Connection):
    said = tmp_path / "said"
    said.write_bytes(b"\n".join([*NOT_JSON, ODD_RESULT]))
    config = toml_service("json", f"import sys\nsys.stdout.buffer.write(open({str(said)!r}, 'rb').read())")
    async with beside_a_good_one(tmp_path, db_url, conn, config):
        job = await submit(conn, step("a", "json", max_attempts=1))
        row = await outcome(conn, job)
    assert (row["status"], row["error_code"]) == ("done", None)
    results = row["results"]
    assert (results["nan"], results["huge"]) == ("NaN", "Infinity")
    assert (results["zero"], results["lone"], results["bytes"]) == ("a\ufffdb", "\ufffd", "\ufffd")
    assert json.dumps(results["deep"]).count("[") <= 64
    lines = await log_lines(conn, tmp_path / "state" / "objects", job, "a")
    assert len(lines) == len(NOT_JSON)
    assert await _log_events(conn, job) == len(NOT_JSON)


async def _log_events(conn: Connection, job: UUID) -> int:
    return await conn.fetchval("SELECT count(*) FROM task_events WHERE job_id = $1 AND type = 'log'", job)


MANY = PREAMBLE + "for i in range(3000): print(f'line {i}')\n"


async def test_of_many_lines_a_thousand_become_events_and_all_are_in_the_log(
    tmp_path: Path, db_url: str, conn: Connection
):
    async with beside_a_good_one(tmp_path, db_url, conn, toml_service("many", MANY)):
        job = await submit(conn, step("a", "many"))
        await outcome(conn, job)
    assert await _log_events(conn, job) == 1000
    last = await conn.fetchval(
        "SELECT message FROM task_events WHERE job_id = $1 AND type = 'log' ORDER BY id DESC LIMIT 1", job
    )
    assert "the rest is in the log only" in last
    lines = await log_lines(conn, tmp_path / "state" / "objects", job, "a")
    assert lines == [f"line {i}" for i in range(3000)]


# A violation is the last thing that it writes, and no newline follows.
FORGED_AT_THE_END = PREAMBLE + "sys.stdout.write(json.dumps({'type': 'result', 'job_id': '0' * 32}))\n"


async def test_a_violation_without_a_newline_is_a_violation(tmp_path: Path, db_url: str, conn: Connection):
    with daemon.running(tmp_path, db_url, config=toml_service("render", FORGED_AT_THE_END)):
        job = await submit(conn, step("a", max_attempts=1))
        ended = await outcome(conn, job, within=20)
    assert (ended["error_code"], ended["lost"]) == ("protocol_error", 0)
