"""The day of the studio: what was booked when, what went wrong, and what people did about it."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from accsd.db import apply_workflow
from accsd.db.access import create_token
from accsd.db.operations import Action, start_operation
from accsd.db.tools import put_tool
from accsd.model import WorkflowDef
from accsd.model.access import Scope
from accsd.model.tool import ToolDef
from tests.support.factory import Row
from tests.support.schedules import all_roles
from tests.support.studio.catalogue import BEGIN, NOW, SCHEDULES, TOOLS, WORKFLOWS
from tests.support.studio.crew import Crew
from tests.support.studio.stage import Script, Stage
from tests.support.studio.work import OUT_OF_MEMORY, REFUSED, UNREADABLE, Ending

_TICK = 600.0  # seconds between two passes of the control host
# (episode, step): how its attempts fail, one after the other
_TROUBLE: dict[tuple[str, str], list[Ending]] = {
    ("S02E03", "upload"): [REFUSED],
    ("S02E05", "render"): [OUT_OF_MEMORY] * 3,
    ("S02E07", "render"): [OUT_OF_MEMORY] * 3,
    ("S02E04", "ingest"): [UNREADABLE],
    ("S02E13", "audio"): [UNREADABLE],
}
_LASTS = {("S02E11", "render"): 1860.0, ("S02E13", "audio"): 1150.0}


def before_now(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


# (minutes before NOW, workflow, what it is called here, options, who)
_BOOKINGS: list[tuple[float, str, str, dict[str, Any], str]] = [
    *[
        (1540 - 95 * n, "episode", f"S01E{n + 10}", {"resolution": "4k"}, ("anna", "ben", "cleo")[n % 3])
        for n in range(9)
    ],
    (1500, "shots", "harbour-010", {}, "ben"),
    (1100, "shots", "harbour-020", {}, "ben"),
    (660, "episode", "S02E03", {"resolution": "4k"}, "anna"),
    (520, "shots", "harbour-030", {}, "cleo"),
    (470, "episode", "S02E04", {"resolution": "4k"}, "anna"),
    (395, "episode", "S02E05", {"resolution": "8k"}, "ben"),
    (330, "episode", "S02E06", {"resolution": "4k"}, "anna"),
    (262, "episode", "S02E07", {"resolution": "8k"}, "anna"),
    (228, "shots", "harbour-040", {}, "ben"),
    (200, "episode", "S02E08", {"resolution": "2k"}, "cleo"),
    (150, "episode", "S02E09", {"resolution": "4k"}, "anna"),
    (74, "episode", "S02E10", {"resolution": "4k"}, "anna"),
    (22, "episode", "S02E11", {"resolution": "4k", "lufs": -14}, "anna"),
    (8, "episode", "S02E13", {"resolution": "4k"}, "cleo"),
    (1.6, "shots", "harbour-050", {}, "ben"),
    (1.9, "episode", "S02E12", {"resolution": "2k"}, "ben"),
]


class Day:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.crew = Crew(stage, self._fate)
        self.jobs: dict[str, UUID] = {}
        self.names: dict[UUID, str] = {}
        self.workflows: dict[str, UUID] = {}
        self.operation: UUID | None = None

    async def play(self) -> None:
        await self.stage.begin()
        await self._write_down()
        await self.crew.arrive()
        for minutes, workflow, name, options, by in _BOOKINGS:
            self.stage.enter(self._book(workflow, name, options, by), before_now(minutes))
        self.stage.enter(self._control(), BEGIN + timedelta(minutes=8))  # on the tens of minutes
        for minutes, deed in self._deeds():
            self.stage.enter(_once(deed), before_now(minutes))
        self.stage.enter(self.crew.in_vain("gpu-3"), before_now(208))
        await self.stage.play()
        await self.crew.stay()
        await self.stage.conn.fetch(
            "SELECT accs.note_daemon('control', '{builder,gateway}', '0.9.0', $1, 'listening', '{}')", BEGIN
        )

    def _fate(self, claimed: Row) -> tuple[float | None, Ending | None]:
        step = self.names.get(claimed["job_id"], ""), claimed["task_key"]
        failures = _TROUBLE.get(step, [])
        number = claimed["attempt_id"] - 1
        return _LASTS.get(step), failures[number] if number < len(failures) else None

    async def _write_down(self) -> None:
        for document in WORKFLOWS:
            definition = WorkflowDef.model_validate(document)
            self.workflows[definition.name] = await apply_workflow(self.stage.db, definition, created_by="anna")
        for document in TOOLS:
            await put_tool(self.stage.db, ToolDef.model_validate(document), by="cleo")
        for document in SCHEDULES:
            await self.stage.conn.fetch("SELECT FROM accs.put_schedule($1, 'anna')", document)

    async def _book(self, workflow: str, name: str, options: dict[str, Any], by: str) -> Script:
        named = {"shot": name} if workflow == "shots" else {"episode": name, "source": f"/cards/{name.lower()}"}
        await self._submit(workflow, name, named | options, by)
        return
        yield

    async def _submit(self, workflow: str, name: str, options: dict[str, Any], by: str, **given: Any) -> None:
        job = await self.stage.conn.fetchval(
            "SELECT job_id FROM accs.submit_jobs(ARRAY[$1::uuid], ARRAY[$2::jsonb], ARRAY[$3::int],"
            " ARRAY[$4::timestamptz], p_created_by => $5)",
            *(self.workflows[workflow], options, given.get("priority", 0), given.get("scheduled_at"), by),
        )
        self.jobs[name], self.names[job] = job, name
        self.crew.look_soon()

    # The control host

    async def _control(self) -> Script:
        while True:
            await self.crew.stay()
            if self.stage.now.minute in (0, 30):  # when something may be due
                await all_roles(self.stage.db)
                self.crew.look_soon()
            yield _TICK

    # People

    def _deeds(self) -> list[tuple[float, Callable[[], Awaitable[Any]]]]:
        call = self.stage.conn.fetch
        return [
            (
                1500,
                lambda: call("SELECT accs.save_view('Failed today', $1, NULL, 'anna')", {"q": "status:error since:1d"}),
            ),
            (1490, lambda: call("SELECT accs.put_actor('mira', 'person', $1, false, 'anna')", {"tools": ["chat.*"]})),
            (1480, self._tokens),
            (1460, lambda: call("SELECT accs.set_concurrency_limit('channel', 1, 'anna', 'the channel throttles')")),
            (900, lambda: call("SELECT accs.report_sample('archive.used', '71')")),
            (300, lambda: call("SELECT accs.report_sample('archive.used', '88')")),
            (420, lambda: call("SELECT accs.emit_event('studio.card.a', $1)", {"gigabytes": 212, "reader": 2})),
            (310, lambda: call("SELECT accs.cancel_jobs($1, 'wrong source', 'anna')", [self.jobs["S02E06"]])),
            (205, self._drain),
            (60, lambda: call("SELECT accs.pause('service', 'upload', 'quota of the channel', 'anna')")),
            (
                40,
                lambda: call(
                    "SELECT accs.quarantine('edit-1', 'proxy', '3 failures in a row, and elsewhere none', '{}', '1 h')"
                ),
            ),
            (30, lambda: call("SELECT accs.pause_schedule('archive-index', 'the archive is being moved', 'cleo')")),
            (5, self._tomorrow),
            (1, self._hurry),
        ]

    async def _tokens(self) -> None:
        await create_token(self.stage.db, "chat-bot", [Scope.READ], actor="chat-bot", by="anna")
        await create_token(self.stage.db, "cut-room", [Scope.SUBMIT], actor="cut-room", by="anna")

    async def _hurry(self) -> None:
        """The gateway carries it out, as soon as there is one."""
        jobs = [str(self.jobs[name]) for name in ("S02E12", "S02E10")]
        started = await start_operation(
            self.stage.db, Action.SET_PRIORITY, by="ben", ids=jobs, arguments={"priority": 5}, reason="for the premiere"
        )
        self.operation = started.id

    async def _drain(self) -> None:
        await self.stage.conn.fetch("SELECT accs.pause('node', 'edit-2', 'new disks', 'anna')")
        self.crew.drain("edit-2")

    async def _tomorrow(self) -> None:
        at = NOW + timedelta(minutes=38)
        await self._submit("dailies", "later", {"day": "2026-11-18"}, "cleo", scheduled_at=at)


async def _once(deed: Callable[[], Awaitable[Any]]) -> Script:
    await deed()
    return
    yield


async def play(stage: Stage) -> tuple[dict[str, UUID], UUID]:
    """The jobs by name, and those that pages are about: failed, running, waiting, fanned, done, cancelled. And an
    operation."""
    day = Day(stage)
    await day.play()
    assert day.operation is not None
    known = {"failed": "S02E07", "running": "S02E11", "waiting": "S02E10", "fanned": "harbour-050", "done": "S02E09"}
    by_word = {word: day.jobs[name] for word, name in (known | {"cancelled": "S02E06"}).items()}
    return day.jobs | by_word, day.operation
