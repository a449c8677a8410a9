"""A service written with the SDK that stays up and takes its tasks over HTTP: real processes, a real socket."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from accsd import proc
from accsd.model.fence import Fence
from accsd.sdk.vendor import vendor
from tests.support.daemon import Serving, serving
from tests.support.eventually import eventually_sync

ROOT = Path(__file__).parents[2]
SERVICE = """
import os, signal, subprocess, sys, time
from accsd.sdk import Service, Task, Temporary
service = Service("many")
LOADED_BY = os.getpid()

def until(path):
    while not os.path.exists(path): time.sleep(0.01)

@service.task
def work(task: Task) -> dict:
    do, folder = task.params["do"], task.params.get("folder")
    with open(os.path.join(folder, "ran"), "a") as file: file.write(f"{os.getpid()}\\n")
    if do == "lines":
        for i in range(task.params["lines"]): task.log(f"line {i}")
        print("half a line", end="", file=sys.stderr, flush=True)
        until(os.path.join(folder, "go"))
        for i in range(task.params["lines"], 2 * task.params["lines"]): task.log(f"line {i}")
    elif do == "wait":
        task.log("ready")
        with task.cancellable(): until(os.path.join(folder, "go"))
    elif do == "family":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", task.params["long"] + "1"], start_new_session=True)
        subprocess.Popen("trap '' TERM; sleep {0}2 & sleep {0}3".format(task.params["long"]), shell=True)
        task.log("ready")
        time.sleep(60)
    elif do == "orphan":
        subprocess.Popen(["sleep", task.params["long"] + "1"], start_new_session=True)
    elif do == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif do == "flood":
        while True: task.log("x" * 1000)
    elif do == "busy":
        raise Temporary("later")
    return {"pid": os.getpid(), "loaded_by": LOADED_BY, "trace": os.environ.get("ACC_TRACE_ID"),
            "parent": os.environ.get("TRACEPARENT"), "attempt": os.environ["ACC_ATTEMPT_ID"]}

service.main()
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One for all tests that leave it as it is: to start it takes half a second."""
    with serving(tmp_path_factory.mktemp("service") / "service.py", SERVICE) as started:
        yield started


def new_key() -> Fence:
    return Fence(uuid.uuid4(), 1)


def params(folder: Path, do: str, **more: object) -> dict[str, object]:
    return {"do": do, "folder": str(folder), "long": long_time(folder), **more}


def said(stream: bytes, kind: str = "log") -> list[str]:
    messages = [json.loads(line) for line in stream.splitlines()]
    return [message.get("message") or message["results"] for message in messages if message["type"] == kind]


def sleepers(folder: Path) -> list[str]:
    """Which of the sleeps that a test's tasks have started still run."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            if words[0] == "sleep" and words[1].startswith(long_time(folder)):
                found.append(words[1][-1])
    return sorted(found)


def long_time(folder: Path) -> str:
    """Nobody else sleeps for just that long."""
    return str(100_000 + abs(hash(folder)) % 800_000)


def test_a_task_is_a_fork_of_the_loaded_service_and_its_lines_come_back(many: Serving, tmp_path: Path):
    key = new_key()
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    document = {
        "job_task_id": str(key.task_id),
        "attempt_id": 1,
        "params": params(tmp_path, "end"),
        "trace_id": "a" * 32,
    }
    asked = many.ask(
        "POST", "/tasks", json.dumps(document).encode(), Content_Type="application/json", Traceparent=trace
    )
    (results,) = said(asked.response.read(), "result")
    assert asked.response.getheader("Content-Type") == "application/x-ndjson"
    assert results == {
        "pid": int((tmp_path / "ran").read_text()), "loaded_by": many.process.pid, "trace": "a" * 32,
        "parent": trace, "attempt": "1",
    }  # fmt: skip


def test_further_requests_for_the_same_attempt_join_the_first(many: Serving, tmp_path: Path):
    key, given = new_key(), params(tmp_path, "lines", lines=50)
    with ThreadPoolExecutor(8) as threads:
        streams = list(threads.map(lambda _: many.post(key, wait=True, params=given).response, range(8)))
        (tmp_path / "go").touch()
        (whole,) = set(threads.map(lambda stream: stream.read(), streams))
    assert said(whole) == [f"line {i}" for i in range(100)]
    assert many.post(key, params=given).json()["state"] == "ended", "also when it has ended"
    assert len((tmp_path / "ran").read_text().split()) == 1


def test_who_was_cut_off_reads_on_from_any_byte(many: Serving, tmp_path: Path):
    key = new_key()
    stream = many.post(key, wait=True, params=params(tmp_path, "lines", lines=50)).response
    begun = stream.read(500)
    stream.close()
    rest = many.get(key, "?from=500").response
    (tmp_path / "go").touch()
    assert said(begun + rest.read()) == [f"line {i}" for i in range(100)]
    ended = many.status(key)
    assert (ended["exit_code"], ended["lost"], ended["stderr"]) == (0, None, len("half a line"))
    assert many.get(key, "/stderr?from=5").response.read() == b"a line", "apart from the messages"
    assert many.delete(key, "?forget=1").status == 200
    assert many.get(key, "/status").status == 404


def test_tasks_run_beside_each_other_and_each_node_sees_its_own(many: Serving, tmp_path: Path):
    mine, yours = new_key(), new_key()
    for key, node in ((mine, "n8"), (yours, "n9")):
        many.post(key, node=node, params=params(tmp_path, "wait"))
    eventually_sync(lambda: len((tmp_path / "ran").read_text().split()) == 2 if (tmp_path / "ran").exists() else False)
    (listed,) = many.ask("GET", "/tasks", Accsd_Node="n8").json()["tasks"]
    assert (listed["task_id"], listed["state"]) == (str(mine.task_id), "running")
    assert many.get(yours, "/status", node="n8").status == 404
    assert many.delete(yours, node="n8").status == 404
    (tmp_path / "go").touch()
    for key, node in ((mine, "n8"), (yours, "n9")):
        eventually_sync(lambda key=key, node=node: many.get(key, "/status", node).json()["state"] == "ended")


def test_a_cancelled_task_stops_as_it_does_after_sigterm(many: Serving, tmp_path: Path):
    key = new_key()
    stream = many.post(key, wait=True, params=params(tmp_path, "wait")).response
    assert json.loads(stream.readline())["message"] == "ready"
    assert many.delete(key, "?grace=20").status == 202
    assert said(stream.read()) == ["cancelled"]
    assert many.until_ended(key)["exit_code"] == 143


def test_a_stop_reaches_a_deaf_task_and_all_that_it_started(many: Serving, tmp_path: Path):
    key = new_key()
    stream = many.post(key, wait=True, params=params(tmp_path, "family")).response
    stream.readline()
    eventually_sync(lambda: sleepers(tmp_path) == ["1", "2", "3"])
    many.delete(key, "?grace=0")
    assert many.until_ended(key)["exit_code"] == 137
    assert sleepers(tmp_path) == [], "an end is told when nobody is left"


def test_what_a_task_leaves_behind_ends_with_it(many: Serving, tmp_path: Path):
    key = new_key()
    many.post(key, params=params(tmp_path, "orphan"))
    assert many.until_ended(key)["exit_code"] == 0
    assert sleepers(tmp_path) == []


@pytest.mark.parametrize(("do", "code"), [("die", 137), ("busy", 75)])
def test_how_it_ended_is_told_as_an_exit_code(many: Serving, tmp_path: Path, do: str, code: int):
    key = new_key()
    many.post(key, params=params(tmp_path, do))
    assert many.until_ended(key)["exit_code"] == code


def test_a_flood_that_nobody_reads_is_stopped(many: Serving, tmp_path: Path):
    key = new_key()
    document = {"job_task_id": str(key.task_id), "attempt_id": 1, "params": params(tmp_path, "flood")}
    headers = {"Content_Type": "application/json", "Prefer": "respond-async", "Accsd_Output_Limit": "1000"}
    many.ask("POST", "/tasks", json.dumps(document).encode(), Accsd_Node="n1", **headers)
    ended = many.until_ended(key)
    assert ended["exit_code"] == 137
    assert ended["stdout"] > 1000, "more than the limit, so that whoever reads it knows why"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"Content_Type": "application/json"}, 400),
        (b"[]", {"Content_Type": "application/json"}, 400),
        (b'{"job_task_id": "../x", "attempt_id": 1}', {"Content_Type": "application/json"}, 400),
        (b'{"job_task_id": "x", "attempt_id": 1}', {"Content_Type": "text/plain"}, 415),
        (
            b'{"job_task_id": "x", "attempt_id": 1}',
            {"Content_Type": "application/json", "Host": "evil.example:80"},
            400,
        ),
        (b'{"job_task_id": "x", "attempt_id": 1}', {"Content_Type": "application/json", "Accsd_Node": "../n"}, 400),
    ],
)
def test_what_is_no_task_or_comes_through_a_browser_is_refused(
    many: Serving, body: bytes, headers: dict[str, str], status: int
):
    asked = many.ask("POST", "/tasks", body, **headers)
    assert (asked.status, list(asked.json())) == (status, ["error"])


def test_a_door_that_falls_is_opened_again_and_the_task_goes_on(many: Serving, tmp_path: Path):
    key = new_key()
    many.post(key, params=params(tmp_path, "wait"))
    eventually_sync((tmp_path / "ran").exists)
    task = int((tmp_path / "ran").read_text())
    (server,) = set(children_of(many)) - {task}
    os.kill(server, signal.SIGKILL)
    eventually_sync(many.answers, within=10)
    (tmp_path / "go").touch()
    assert many.until_ended(key)["exit_code"] == 0


def test_a_token_is_asked_for_and_a_service_that_drains_ends_its_tasks_first(tmp_path: Path):
    with serving(tmp_path / "service.py", SERVICE, "--drain", "20", token="sixteen characters") as one:
        assert one.ask("GET", "/tasks", Authorization="Bearer something else").status == 401
        key = new_key()
        stream = one.post(key, wait=True, params=params(tmp_path, "wait")).response
        stream.readline()
        one.process.send_signal(signal.SIGTERM)
        eventually_sync(lambda: one.ask("GET", "/health").status == 503)
        assert one.post(new_key(), params=params(tmp_path, "end")).status == 503
        (tmp_path / "go").touch()
        assert said(stream.read(), "result")
        assert one.until_ended(key)["exit_code"] == 0
        assert one.process.wait(timeout=20) == 0


def test_tasks_that_a_stopping_service_must_end_are_lost_and_not_failed(tmp_path: Path):
    with serving(tmp_path / "service.py", SERVICE, "--drain", "0") as one:
        key = new_key()
        stream = one.post(key, wait=True, params=params(tmp_path, "family")).response
        stream.readline()
        one.process.send_signal(signal.SIGTERM)
        assert "stopped" in one.until_ended(key)["lost"]
        assert one.process.wait(timeout=20) == 0
    assert sleepers(tmp_path) == []


def children_of(service: Serving) -> list[int]:
    return [
        int(pid) for pid in Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    ]


def test_the_copied_folder_needs_nothing_but_python_and_a_killed_keeper_leaves_no_server(tmp_path: Path):
    vendor(tmp_path)
    text = (
        "from accsd_wire import main\nfrom accsd_serving import serve_if_asked\n"
        "def work(): main(lambda task: {'doubled': 2 * task.params['n']})\nserve_if_asked(work)\nwork()\n"
    )
    with serving(tmp_path / "service.py", text) as one:
        asked = one.post(new_key(), wait=True, params={"n": 21})
        assert said(asked.response.read(), "result") == [{"doubled": 42}]
        children = children_of(one)
        one.process.kill()
        one.process.wait(timeout=10)
        eventually_sync(lambda: children and not any(proc.is_running(pid) for pid in children))
    isolated = [sys.executable, "-E", "-S", "service.py", "--serve", "nowhere"]
    ended = subprocess.run(isolated, cwd=tmp_path, capture_output=True, timeout=20, check=False)
    assert b"--serve needs HOST:PORT" in ended.stderr


SLOW_FORKS = """
import os, time
from accsd.sdk import Service, Task
service = Service("slow")
os.register_at_fork(after_in_child=lambda: time.sleep(0.3))

@service.task
def work(task: Task) -> dict:
    time.sleep(60)

service.main()
"""


def test_a_stop_that_meets_a_task_before_it_has_begun_stops_nothing_else(tmp_path: Path):
    with serving(tmp_path / "service.py", SLOW_FORKS) as one:
        key = new_key()
        one.post(key)
        one.delete(key, "?grace=20")
        assert one.until_ended(key)["exit_code"] == 143
        assert one.ask("GET", "/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("more", "headers", "status"),
    [({"trace_id": "a" * 70_000}, {}, 413), ({}, {"Accsd_Output_Limit": "\u00b2"}, 400)],
)
def test_what_cannot_be_started_is_refused_and_no_task_is_left_that_never_ends(
    many: Serving, more: dict[str, str], headers: dict[str, str], status: int
):
    key = new_key()
    document = {"job_task_id": str(key.task_id), "attempt_id": 1, **more}
    given = {"Content_Type": "application/json", "Prefer": "respond-async", "Accsd_Node": "n1", **headers}
    assert many.ask("POST", "/tasks", json.dumps(document).encode(), **given).status == status
    assert many.get(key, "/status").status == 404
    assert many.answers()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_a_process_that_became_another_user_is_left_to_run_and_not_forgotten():
    """It counts as somebody who is still at work; the agent ends the container then."""
    signalled = (
        "import os, sys; from pathlib import Path; from accsd.sdk.serving.tasks import _Running; os.setuid(65534);"
        "running = _Running(int(sys.argv[1]), Path('/'), {'task': 1, 'attempt': 1}); print(running.signal(15))"
    )
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        try:
            argv = [sys.executable, "-c", signalled, str(other.pid)]
            asked = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=20, check=False)
            assert asked.stdout.decode() == f"[{other.pid}]\n", asked.stderr.decode()
        finally:
            other.kill()
