"""What happens in the demo, in order."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import yaml

from accsd import embedded
from accsd.db import (
    Database,
    Done,
    Fence,
    Submission,
    apply_workflow,
    finish_tasks,
    install,
    node_leaves,
    submit_job,
    upsert_heartbeat,
)
from accsd.db.pool import connect
from accsd.demo.machines import LEASE_SEC, DemoMachine, Stage
from accsd.demo.page import DemoPage, accsd_command
from accsd.demo.pipeline import copy_pipeline
from accsd.demo.scenes import TaskSeen, job_states, look, outputs, timeline
from accsd.demo.screen import Screen, open_screen, shown_timeline
from accsd.errors import Unavailable
from accsd.model import AwakeState, WakeMethod, WorkflowDef
from accsd.settings import DatabaseSettings

STUDIO_1 = DemoMachine("studio-1", ("ingest", "audio-norm", "yt-upload"))
STUDIO_2 = DemoMachine("studio-2", ("ingest", "audio-norm", "yt-upload"))
RENDER_BOX = DemoMachine("render-box", ("renderer",), {"gpu": True})
_LONGEST_SEC = 120
_LOOK_EVERY = 0.2

T = TypeVar("T")


async def perform(folder: Path, *, plain: bool, story: str = "power-cut", stay: bool = False) -> None:
    """The whole demo; with `stay` the stage is left as it is until Ctrl-C. Raises Unavailable where the story does not
    come to its end."""
    told = STORIES[story]
    pipeline = copy_pipeline(folder, told.example)
    with ExitStack() as stack:
        curtain = stack.enter_context(ExitStack())  # falls before the rest is cleared away
        screen = curtain.enter_context(open_screen(plain=plain))
        screen.say(f"starting PostgreSQL, a builder and two agents in {folder}")
        server = stack.enter_context(embedded.running(folder / "postgres"))
        stage = stack.enter_context(Stage(folder, server.url, pipeline))
        db = await _open(server.url)
        try:
            page = DemoPage.open(db, stage)
            ending = await _play(told(db, stage, screen), page)
            curtain.close()
            sys.stdout.write("\n".join(ending) + "\n")
            if stay:
                await _stay(page)
        finally:
            await db.close()


async def _play(performance: "Story", page: DemoPage | None) -> list[str]:
    """What is said at the end."""
    await performance.begin()
    introduced = None if page is None else asyncio.create_task(page.introduce(performance.screen))
    try:
        await performance.play()
    finally:
        if introduced is not None:
            introduced.cancel()
            await asyncio.gather(introduced, return_exceptions=True)
    return await performance.ending()


async def _stay(page: DemoPage | None) -> None:
    if page is None:
        raise Unavailable("there is no page to look at: it is not installed", hint="pip install 'accsd[web]'")
    await page.stay()


async def _open(db_url: str) -> Database:
    settings = DatabaseSettings.model_validate({"url": db_url})
    connection = await connect(settings)
    try:
        await install(connection)
    finally:
        await connection.close(timeout=5)
    return await Database.open(settings, application="accsd demo")


@dataclass(eq=False, slots=True)
class Story:
    """Two jobs, a power cut, and a machine that is woken."""

    db: Database
    stage: Stage
    screen: Screen
    jobs: list[UUID] = field(default_factory=list[UUID])
    tasks: Sequence[TaskSeen] = ()
    asleep: list[str] = field(default_factory=list[str])
    dead: list[str] = field(default_factory=list[str])
    example: ClassVar[str] = "media-pipeline"
    machines: ClassVar[Sequence[DemoMachine]] = (STUDIO_1, STUDIO_2)

    async def begin(self) -> None:
        self._start_machines()
        await self._put_to_bed(RENDER_BOX)
        await self._submit({"title": "first take", "pace": 1}, {"title": "second take", "pace": 1})
        self.screen.say("two jobs submitted: ingest → audio-norm → renderer → yt-upload")

    def _start_machines(self) -> None:
        self.stage.start_builder()
        for machine in self.machines:
            self.stage.start(machine)

    async def _submit(self, *options: Mapping[str, Any]) -> None:
        document = yaml.safe_load(self.stage.pipeline.workflow.read_text(encoding="utf-8"))
        workflow = await apply_workflow(self.db, WorkflowDef.model_validate(document))
        for each in options:
            self.jobs.append(await submit_job(self.db, Submission(workflow, each), created_by="demo"))

    async def play(self) -> None:
        victim = await self._until("somebody normalises", self._halfway)
        await self._cut_power(victim)
        await self._until("the task is taken over", lambda: self._taken_over(victim))
        await self._try_late_answer(victim)
        await self._until("the bell rings", lambda: self.stage.bell_rang)
        self.screen.say(
            f"the renderer needs a GPU: {RENDER_BOX.name} is woken (here by a script, at home by a magic packet)"
        )
        self.stage.start(RENDER_BOX)
        self.asleep.remove(RENDER_BOX.name)
        await self._until("both jobs are done", lambda: all(task.status == "done" for task in self.tasks))
        self.screen.say("both jobs are done")

    async def ending(self) -> list[str]:
        job = self.tasks[0].job_id
        told = shown_timeline(await timeline(self.db, job))
        made = [f"  {path}  ({path.stat().st_size} bytes)" for path in await self._results(job)]
        heading = f"The timeline of job 1 ({job}):"
        return [
            "",
            heading,
            *told,
            "",
            "Its results:",
            *made,
            "",
            *_next_steps(self.stage.folder, job, self.stage.pipeline.config, self.example),
        ]

    async def _results(self, job: UUID) -> list[Path]:
        """Copies with short names, where a person finds them."""
        place = self.stage.folder / "results"
        place.mkdir(exist_ok=True)
        return [
            Path(shutil.copy(self.stage.objects / key, place / key.rpartition("/")[2]))
            for step, key, _ in await outputs(self.db, job)
            if self._is_result(step)
        ]

    def _is_result(self, step: str) -> bool:
        return True

    async def _put_to_bed(self, machine: DemoMachine) -> None:
        await upsert_heartbeat(
            self.db,
            machine.name,
            labels=machine.labels,
            max_concurrency=dict.fromkeys(machine.services, 1),
            wake_method=WakeMethod.SCRIPT,
            script=str(self.stage.wake_script(machine)),
        )
        await node_leaves(self.db, machine.name, AwakeState.SLEEP)
        self.asleep.append(machine.name)

    def _halfway(self) -> TaskSeen | None:
        running = [task for task in self.tasks if task.service == "audio-norm" and task.status == "running"]
        return next((task for task in running if task.progress >= 0.3), None)

    async def _cut_power(self, victim: TaskSeen) -> None:
        machine = next(machine for machine in self.machines if machine.name == victim.node)
        await asyncio.to_thread(self.stage.cut_power, machine)
        self.dead.append(machine.name)
        self.screen.say(f"power cut: {machine.name} is gone, in the middle of {victim.key} of job {victim.job_number}")
        self.screen.say(f"its lease runs out within {LEASE_SEC} s; then the task is anybody's, and is claimed again")

    def _taken_over(self, victim: TaskSeen) -> bool:
        return any(task.task_id == victim.task_id and task.attempt_id > victim.attempt_id for task in self.tasks)

    async def _try_late_answer(self, victim: TaskSeen) -> None:
        """What a machine would say that comes back too late. The fence refuses it."""
        late = Done(Fence(victim.task_id, victim.attempt_id), {"late": True})
        answer = (await finish_tasks(self.db, [late], owner=str(victim.node)))[victim.task_id]
        self.screen.say(
            f"no attempt was spent. A late answer of attempt {victim.attempt_id} from {victim.node} is "
            f"{answer.verdict}: {answer.reason}"
        )

    async def _until(self, what: str, condition: Callable[[], T | None]) -> T:
        """Looks and shows until it is so."""
        deadline = time.monotonic() + _LONGEST_SEC
        while True:
            self.tasks = await look(self.db, self.jobs)
            self.screen.show(self.tasks, self.asleep, self.dead)
            if value := condition():
                return value
            states = await job_states(self.db, self.jobs)
            if time.monotonic() > deadline or set(states.values()) & {"error", "cancelled"}:
                raise Unavailable(
                    f"the demo did not come to the point where {what}", hint=f"look into {self.stage.folder / 'logs'}"
                )
            await asyncio.sleep(_LOOK_EVERY)


class FanOutStory(Story):
    """One job whose step becomes a task for each part of a recording; a machine is lost among them."""

    example: ClassVar[str] = "fan-out"
    machines: ClassVar[Sequence[DemoMachine]] = (
        DemoMachine("studio-1", ("split", "encode", "join")),
        DemoMachine("studio-2", ("encode",)),
        DemoMachine("studio-3", ("encode",)),
    )

    async def begin(self) -> None:
        self._start_machines()
        await self._submit({"parts": 8, "pace": 1.5})
        self.screen.say("one job submitted: split → encode × as many as there are parts → join")

    async def play(self) -> None:
        victim = await self._until("another machine encodes", self._elsewhere)
        self.screen.say("split has found 8 parts: encode became a task for each; silence is skipped by its condition")
        await self._cut_power(victim)
        await self._until("the item is taken over", lambda: self._taken_over(victim))
        self.screen.say(f"{victim.key} is encoded by another machine; the others were not disturbed")
        await self._until("the job is done", lambda: all(task.status in ("done", "skipped") for task in self.tasks))
        self.screen.say("join waited for every item: the job is done")

    def _elsewhere(self) -> TaskSeen | None:
        encoding = [task for task in self.tasks if task.service == "encode" and task.status == "running"]
        return next((task for task in encoding if task.node == "studio-2"), None)

    def _is_result(self, step: str) -> bool:
        return step == "join"


STORIES: Mapping[str, type[Story]] = {"power-cut": Story, "fan-out": FanOutStory}


def _next_steps(folder: Path, job: UUID, config: Path, workflow: str) -> list[str]:
    accsd = accsd_command()
    return [
        "Try next:",
        f"  {accsd} --config {config} up --folder {folder}",
        "      a daemon that stays, with this database; it prints an `export` line for the other terminal:",
        f"  {accsd} job {job}",
        f"  {accsd} submit {workflow} --follow",
    ]
