"""Mode http on the real engine: a task is a request to the running service, and goes on whoever listens."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from accsd.errors import AttemptFailed, DockerUnavailable, ServiceBusy
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Launch
from accsd.runners.compose import HttpRunner
from tests.support.compose import NODE, ComposeProject, Taken, docker, starting_without_clearance
from tests.support.eventually import eventually

pytestmark = [pytest.mark.needs_docker, pytest.mark.usefixtures("compose_engine"), pytest.mark.xdist_group("compose")]

SHORT = {"ready_within": timedelta(seconds=20), "away_limit": timedelta(seconds=3), "gone_within": timedelta(seconds=1)}
# Says how often it ran, waits for the file `go` where it shall, and does what its params say.
PROGRAM = """
import os, subprocess, sys, time
from accsd_serving import serve_if_asked
from accsd_wire import main

def run(task):
    do = task.params.get("do")
    for i in range(task.params.get("lines", 0)): task.log(f"line {i}")
    task.log("ready")
    if do == "wait":
        with task.cancellable():
            while not os.path.exists("/tmp/go"): time.sleep(0.01)
    if do == "family":
        subprocess.Popen("trap '' TERM; setsid sleep 778 & sleep 779", shell=True)
        time.sleep(77)
    if do == "eat": eaten = b"x" * 300_000_000
    if do == "file": task.path("out").write_text("made")
    for i in range(task.params.get("lines", 0)): task.log(f"line {i} again")
    print("to stderr", file=sys.stderr)
    return {"attempt": os.environ["ACC_ATTEMPT_ID"], "loaded_by": os.getppid()}

def work(): main(run)
serve_if_asked(work)
"""
# Takes tasks, or answers as their params say, and never ends one, whatever it is asked.
DEAF = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b'{"state": "running", "tasks": []}')
    def do_POST(self):
        envelope = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(envelope["params"].get("status", 202)); self.end_headers()
    do_DELETE = do_GET
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


def launched(world: ComposeProject, runner: HttpRunner, do: str | None = None, **params: Any) -> Launch:
    """With an envelope that names the attempt, as the real one does."""
    launch = world.launch(runner)
    return world.launch(
        runner,
        fence=launch.fence,
        job_task_id=str(launch.fence.task_id),
        attempt_id=launch.fence.attempt_id,
        workdir=launch.workdir.seen if launch.workdir else None,
        params={"do": do, **params},
    )


async def begun(world: ComposeProject, runner: HttpRunner, do: str, **params: Any) -> tuple[Any, Any, Taken]:
    taken = Taken()
    execution = await runner.start(launched(world, runner, do, **params))
    watching = asyncio.create_task(execution.watch(taken.take))
    await taken.until(b"ready")
    return execution, watching, taken


def inside(world: ComposeProject, *command: str) -> str:
    (container,) = world.containers()
    return docker("exec", container, *command)


async def test_no_service_is_asked_before_the_lease_was_looked_at_for_the_last_time(world: ComposeProject) -> None:
    runner = await world.http_runner(PROGRAM, limits=SHORT)
    launch = world.launch(runner, params={"do": "wait"})
    assert not await starting_without_clearance(runner, launch)
    await runner.discard(launch.fence, launch.folder)


async def test_the_service_is_started_and_tasks_are_requests_to_it(world: ComposeProject) -> None:
    """As another user than root, at a published port, with a folder beneath one that the service mounts."""
    (world.folder / "shared").mkdir()
    entry: dict[str, Any] = {"user": "1000", "environment": {"ACC_SERVE_TOKEN": "only for the two of us"}}
    volumes = [f"{world.folder}/service:/service:ro", f"{world.folder}/shared:/data"]
    labels = {"accs.port": "8080", "accs.workdir": "/data/jobs", "accs.idle-stop": "10m"}
    made = await world.http_runner(PROGRAM, limits=SHORT, labels=labels, volumes=volumes, **entry)
    launch = launched(world, made, "file")
    assert launch.workdir is not None
    execution, taken = await made.start(launch), Taken()
    assert await made.start(launch) is execution
    ending = await execution.watch(taken.take)
    assert (ending.exit_code, ending.cause) == (0, None)
    assert b'"attempt": "1", "loaded_by": 1' in taken.stdout, "a fork of the container's first process"
    assert taken.stderr == b"to stderr\n"
    assert (launch.workdir.here / "out").read_text() == "made"
    assert not await made.rest(timedelta(hours=1)), "a task is under way"
    await execution.remove()
    assert list(await made.survivors()) == []
    await made.check()
    (container,) = world.containers()
    again = await made.start(launched(world, made, lines=2000))
    assert (await again.watch(Taken().take)).exit_code == 0
    await again.remove()
    assert world.containers() == [container]
    assert await made.rest(timedelta(minutes=10))
    await made.check()


async def test_a_killed_daemons_attempt_goes_on_and_not_a_byte_is_lost_or_doubled(world: ComposeProject) -> None:
    runner = await world.http_runner(PROGRAM, limits=SHORT)
    launch = launched(world, runner, "wait", lines=500)
    first, second = Taken(), Taken()
    execution = await runner.start(launch)
    watching = asyncio.create_task(execution.watch(first.take))
    await first.until(b"line 100")
    watching.cancel()
    await asyncio.wait([watching])

    declared = await world.declared("worker")
    neighbour, restarted = (HttpRunner(world.project, declared, name, **SHORT) for name in ("another-node", NODE))
    assert list(await neighbour.survivors()) == []
    await neighbour.discard(launch.fence, launch.folder)
    assert await neighbour.adopt(launch) is None
    assert list(await restarted.survivors()) == [launch.fence]
    adopted = await restarted.adopt(launch)
    assert adopted is not None
    inside(world, "touch", "/tmp/go")
    ending = await adopted.watch(second.take, first.cursor)
    assert ending.exit_code == 0
    lines = [line for line in (first.stdout + second.stdout).split(b"\n") if b"line " in line]
    assert len(lines) == 1000
    assert [b'"line %d"' % i in line or b'"line %d again"' % (i - 500) in line for i, line in enumerate(lines)] == [
        True
    ] * 1000
    await adopted.remove()


async def test_a_stop_reaches_grandchildren_and_nobody_else(world: ComposeProject) -> None:
    runner = await world.http_runner(PROGRAM, limits=SHORT)
    execution, watching, _ = await begun(world, runner, "family")
    other, also, _ = await begun(world, runner, "wait")
    await eventually(lambda: "sleep 778" in inside(world, "ps", "-o", "args"), within=15, interval=0.2)
    await execution.stop(timedelta(seconds=0.5))
    assert "sleep" not in inside(world, "ps", "-o", "args")
    assert (await watching).cause is None
    await execution.remove()
    assert not also.done()
    await runner.discard(other.fence, None)
    assert (await also).cause is not None, "it was not this execution that stopped it"
    assert list(await runner.survivors()) == []


async def test_what_ends_with_its_container_is_lost_and_oom_is_told(world: ComposeProject) -> None:
    runner = await world.http_runner(PROGRAM, limits=SHORT, mem_limit="64m", memswap_limit="64m")
    execution, watching, _ = await begun(world, runner, "wait")
    docker("stop", "-t", "0", *world.containers())
    lost = await watching
    assert (lost.cause, lost.detail) == (
        ErrorCode.WORKER_LOST, "the service's container ended or was restarted while it ran"
    )  # fmt: skip
    await execution.remove()
    eater = await runner.start(launched(world, runner, "eat"))
    assert (await eater.watch(Taken().take)).cause is ErrorCode.OOM
    await eater.remove()


async def test_a_service_may_refuse_a_task_and_one_that_does_not_obey_ends_with_its_container(
    world: ComposeProject,
) -> None:
    runner = await world.http_runner(DEAF, limits=SHORT)
    for status, error in ((503, ServiceBusy), (429, ServiceBusy), (422, AttemptFailed)):
        launch = launched(world, runner, status=status)
        with pytest.raises(error, match=str(status)):
            await runner.start(launch)
        if error is ServiceBusy:  # nothing was begun, so nothing has to be ended, whatever it says of it
            await runner.discard(launch.fence, launch.folder)
            assert docker("inspect", "-f", "{{.State.Running}}", *world.containers()) == "true"
    execution = await runner.start(launched(world, runner))
    await execution.stop(timedelta(0))
    assert docker("inspect", "-f", "{{.State.Running}}", *world.containers()) == "false"
    await execution.remove()


async def test_a_service_that_loads_for_long_is_not_stopped_for_it(world: ComposeProject) -> None:
    slow = PROGRAM.replace("def work()", "time.sleep(8)\n\ndef work()")
    runner = await world.http_runner(slow, limits={**SHORT, "ready_within": timedelta(seconds=0.5)})
    launch = launched(world, runner)
    with pytest.raises(DockerUnavailable, match="does not answer"):
        await runner.start(launch)
    (began,) = {docker("inspect", "-f", "{{.State.StartedAt}}", each) for each in world.containers()}
    await runner.discard(launch.fence, launch.folder)
    await runner.discard(launch.fence, launch.folder)

    async def answers() -> bool:
        with suppress(DockerUnavailable):
            return not await runner.survivors()
        return False

    await eventually(answers, within=20)
    execution = await runner.start(launched(world, runner))
    assert (await execution.watch(Taken().take)).exit_code == 0
    assert docker("inspect", "-f", "{{.State.StartedAt}}", *world.containers()) == began
    await execution.remove()
