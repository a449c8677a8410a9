"""The tools that make schedules and change them."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BeforeValidator, Field

from accsd.db import Database, Verdict, firings
from accsd.db import schedules as verbs
from accsd.db.views import backfills as backfill_views
from accsd.db.views import schedules as views
from accsd.db.views.schedules import ScheduleRow
from accsd.db.workflows import StoredWorkflow, workflow_id, workflows_by_id
from accsd.errors import InvalidValue, NotFound, ScheduleInvalid, VerbRefused
from accsd.explain import occurrences
from accsd.explain import schedule_definitions as definitions
from accsd.gateway.mcp.confirmation import changed
from accsd.gateway.mcp.cost import cost_of_run, runs_per_day
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.readings import Document, Name, count, occurrence
from accsd.gateway.mcp.tool import ROWS, Deed, Effect, Tool, ToolKind, WriteArguments
from accsd.gateway.problems import HttpProblem
from accsd.gateway.quota import least_interval, require_interval
from accsd.model.access import Scope
from accsd.model.schedule import ScheduleDef, for_the_database
from accsd.values.units import parse_duration

Length = Annotated[timedelta, BeforeValidator(parse_duration)]
_MOST_SHOWN: Final = 20  # times of a backfill
_FOR_ALL: Final = "**"


class Definition(WriteArguments):
    """What a schedule says. Durations are texts ("2h"), times are ISO 8601, local to the zone without an offset."""

    workflow: Name = Field(description="What it runs: list_workflows has the names.")
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(default=None, description="The newest one.")
    cron: str | None = Field(default=None, max_length=1000, description='"30 2 * * 1-5"')
    rrule: str | None = Field(default=None, max_length=20_000, description='"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17"')
    every: str | None = Field(default=None, max_length=100, description='"6h"')
    at: str | None = Field(default=None, max_length=100, description="Once: 2026-12-24T18:00")
    event: str | None = Field(default=None, max_length=200, description="A topic; its last segment may be * or **.")
    condition: Document | None = Field(
        default=None, description='Of values that others report: {"above": 100, "for": "5m"}. Probes are not for tools.'
    )
    timezone: str | None = Field(default=None, max_length=100, description="An IANA name. UTC, if it is left out.")
    options: dict[str, Any] | None = Field(default=None, description="Of the jobs that it makes.")
    title: str | None = Field(default=None, max_length=200)
    description: str | None = Field(default=None, max_length=4000)
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    missed: Literal["skip", "one", "all"] | None = Field(default=None, description="What was due while accsd was down.")
    grace: str | None = Field(default=None, max_length=100)
    overlap: Literal["allow", "skip", "queue", "queue_all", "cancel"] | None = Field(
        default=None, description="If the last run still runs."
    )
    start_at: str | None = Field(default=None, max_length=40)
    end_at: str | None = Field(default=None, max_length=40)
    max_runs: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    pause_after: Annotated[int, Field(ge=1, le=100)] | None = Field(default=None, description="Failed jobs in a row.")
    exclude: list[Name] | None = Field(default=None, max_length=50, description="Calendars.")
    only_on: list[Name] | None = Field(default=None, max_length=50, description="Calendars.")
    spread: str | None = Field(default=None, max_length=100)
    filter: str | None = Field(default=None, max_length=4096, description="Of events: payload.size > 10")


class CreateSchedule(Definition):
    name: Name


class EditSchedule(WriteArguments):
    schedule: Name = Field(description="Its name or id.")
    changes: Document = Field(
        description="What changes, by the names of create_schedule; null goes back to the default, the rest stays."
    )


_EFFECT: Final = {
    "id": {"type": ["string", "null"]},
    "change": {"type": "string"},
    "words": {"type": "string"},
    "next": ROWS,
    "warnings": ROWS,
}


async def create_schedule(desk: Desk, given: CreateSchedule, key: str) -> Deed:
    del key  # a name can be given once
    wanted = ScheduleDef.model_validate(given.model_dump(exclude={"confirm", "reason"}, exclude_none=True))
    draft = await _drafted(desk, wanted)
    if draft.row is not None:
        raise HttpProblem(
            "already_there",
            f"there is a schedule called {wanted.name} already, and it is {draft.row.state}",
            hint="choose another name, or let edit_schedule change it",
        )
    desk.require_limit("workflows", wanted.workflow)
    return await _written(desk, draft, given.reason, is_own=True)


async def edit_schedule(desk: Desk, given: EditSchedule, key: str) -> Deed:
    del key  # the revision
    row = await desk.own_schedule(given.schedule)
    kept, written = definitions.definition_of(row), given.changes
    edited = {name: value for name, value in {**kept, **written}.items() if value is not None or name not in written}
    if edited.get("name", row.name) != row.name:
        raise ScheduleInvalid("a schedule keeps its name", complaints=[(("name",), "it can't be changed")])
    draft = await _drafted(desk, ScheduleDef.model_validate(edited))
    if {"workflow", "version"} & draft.changes.keys():
        desk.require_limit("workflows", draft.definition.workflow)
    return await _written(desk, draft, given.reason, is_own=desk.is_own(row.created_by))


_TIMES: Final = frozenset({"schedule_kind", "schedule_expr", "timezone", "exclude", "only_on", "spread"})


async def _drafted(desk: Desk, wanted: ScheduleDef) -> definitions.Draft:
    """Checked as every schedule is, and for what an assistant may not write. What a person wrote before stays."""
    draft = await definitions.drafted(desk.reads, wanted, spread=desk.spread)
    written = draft.changes.keys()
    source: Any = (wanted.condition or {}).get("source", "outside")
    if "condition" in written and isinstance(source, dict) and {"sql", "http"} & cast("dict[str, Any]", source).keys():
        raise HttpProblem(
            "invalid",
            "a condition that an assistant writes has no probe by SQL or HTTP",
            hint="a person can write it: accsd schedules create",
        )
    if "schedule_expr" in written and wanted.event == _FOR_ALL:
        desk.require(Scope.ADMIN, "to listen to all topics")
    if draft.rule is not None and _TIMES & written:
        least = await least_interval(desk.reads, desk.caller, desk.limits.least_interval)
        require_interval(draft.rule, draft.now, least, setting="gateway.mcp.least_interval")
    return draft


async def _written(desk: Desk, draft: definitions.Draft, reason: str | None, *, is_own: bool) -> Deed:
    wanted, change = draft.definition, definitions.change_of(draft)
    if draft.row is None or {"workflow", "version"} & draft.changes.keys():
        await definitions.check_workflow(desk.reads, wanted)

    async def work(db: Database) -> Effect:
        runs = await _workflow(db, wanted)
        answer = await definitions.write(db, draft, by=desk.caller.actor, reason=reason)
        if answer.reason == "conflict":
            raise changed()
        definitions.or_refused(draft, answer)
        said = definitions.document(draft, change, id=answer.id, revision=answer.revision)
        ahead = [occurrence(each) for each in said["next"]]
        effect = {
            "change": change,
            "next": ahead,
            "warnings": said["warnings"],
            "workflow_version": None if runs is None else runs.version,
        }
        if draft.row is None:  # all of it is what the caller has written
            effect |= {"words": said["words"]}
        else:
            effect |= desk.marked(words=said["words"], changes=said["changes"], dropped=said["dropped"])
        when = f" Next: {ahead[0]['due_at'].isoformat()}." if ahead else ""
        return Effect(
            f"The schedule would be {change}.{when}",
            f"The schedule is {change}.{when}",
            effect,
            # the revision before it: `write` refuses to write to another one than was read
            [
                None if draft.row is None else [str(draft.row.id), draft.row.revision],
                [for_the_database(draft.changes), None if runs is None else str(runs.id), change],
            ],
            {"id": answer.id if draft.row is None else draft.row.id},
        )

    async def cost(db: Database) -> dict[str, Any]:
        found = await _workflow(db, wanted)
        runs = {} if found is None else await cost_of_run(desk, db, found.steps)
        often = {} if draft.rule is None else {"runs_per_day": runs_per_day(draft.rule, draft.now)}
        return often | runs

    return Deed(work, cost, is_own)


async def _workflow(db: Database, wanted: ScheduleDef | ScheduleRow) -> StoredWorkflow | None:
    """The version that would run now; None: there is none that is active."""
    try:
        [found] = await workflows_by_id(db, [await workflow_id(db, wanted.workflow, wanted.version)])
    except NotFound:
        return None
    return found


# One that is there


class OfOneSchedule(WriteArguments):
    schedule: Name = Field(description="Its name or id.")


class Pause(OfOneSchedule):
    until: datetime | None = Field(default=None, description="With an offset: it goes on then by itself.")


class Resume(OfOneSchedule):
    recover: Literal["none", "one", "all"] = Field(default="none", description="Of what the pause has skipped.")


class Snooze(OfOneSchedule):
    length: Length | None = Field(default=None, alias="for", description='"2h"; or until')
    until: datetime | None = Field(default=None, description="With an offset.")


class SkipOccurrence(OfOneSchedule):
    nominal: datetime = Field(description="The time, local to the schedule's zone, or with an offset.")


class RunNow(OfOneSchedule):
    options: dict[str, Any] | None = None
    force: bool = Field(default=False, description="Also beside a run that has not ended.")


class EndSchedule(OfOneSchedule):
    cancel: bool = Field(default=False, description="Cancel its open jobs, too.")


Act = Callable[[Database, ScheduleRow], Awaitable[tuple[dict[str, Any], list[Any], str]]]


async def _changed(desk: Desk, given: OfOneSchedule, act: Act, would: str, did: str) -> Deed:
    """A change of one schedule. What holds: that it is the same revision in the same state, and comes to the same."""
    known = await desk.own_schedule(given.schedule)

    async def work(db: Database) -> Effect:
        before = await _still(db, known)
        effect, holds, more = await act(db, before)
        after = await _still(db, known)
        shown = {"id": after.id, "was": before.state, "state": after.state, "next_due": after.next_due, **effect}
        stands = [str(after.id), after.revision, before.state, after.state, *holds]
        which = given.schedule
        return Effect(f"The schedule {which} {would}{more}.", f"The schedule {which} {did}{more}.", shown, stands)

    return Deed(work, is_own=desk.is_own(known.created_by))


async def _still(db: Database, known: ScheduleRow) -> ScheduleRow:
    """The same schedule as it is now."""
    row = await views.schedule_named(db, known.name)
    if row.id != known.id:
        raise changed()
    return row


def _aware(moment: datetime | None, name: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidValue(f"{name} needs an offset: 2026-11-18T12:00:00Z")
    return moment


async def pause(desk: Desk, given: Pause, key: str) -> Deed:
    del key
    until = _aware(given.until, "until")

    async def act(db: Database, row: ScheduleRow) -> tuple[dict[str, Any], list[Any], str]:
        made = await verbs.pause_schedule(db, row.name, until=until, by=desk.caller.actor, reason=given.reason)
        made.or_raise("pause_schedule", row.name)
        return {"until": until}, [made.verdict], "" if until is None else f" until {until.isoformat()}"

    return await _changed(desk, given, act, "would be paused", "is paused")


async def resume(desk: Desk, given: Resume, key: str) -> Deed:
    del key

    async def act(db: Database, row: ScheduleRow) -> tuple[dict[str, Any], list[Any], str]:
        made, recovered = await verbs.resume_schedule(
            db, row.name, recover=given.recover, by=desk.caller.actor, reason=given.reason
        )
        made.or_raise("resume_schedule", row.name)
        jobs = f", with {count(recovered, 'run')} that the pause has skipped" if recovered else ""
        return {"recovered": recovered}, [made.verdict, recovered], jobs

    return await _changed(desk, given, act, "would be resumed", "is resumed")


async def snooze(desk: Desk, given: Snooze, key: str) -> Deed:
    del key
    if (given.length is None) == (given.until is None):
        raise InvalidValue('a snooze is "for" a time, or "until" a time')
    until = _aware(given.until, "until")

    async def act(db: Database, row: ScheduleRow) -> tuple[dict[str, Any], list[Any], str]:
        made = await firings.snooze(
            db, row.name, length=given.length, until=until, by=desk.caller.actor, reason=given.reason
        )
        _or_refused(made, "snooze", row.name)
        when = "" if made.due_at is None else f" until {made.due_at.isoformat()}"
        return {"nominal": made.nominal, "due_at": made.due_at}, [str(made.nominal), str(made.due_at)], when

    return await _changed(desk, given, act, "would be snoozed", "is snoozed")


async def skip(desk: Desk, given: SkipOccurrence, key: str) -> Deed:
    del key

    async def act(db: Database, row: ScheduleRow) -> tuple[dict[str, Any], list[Any], str]:
        which = occurrences.the_one(given.schedule, occurrences.rule_of(row, desk.spread), given.nominal)
        made = await firings.skip_occurrence(
            db, row.name, which.nominal, fold=which.fold, by=desk.caller.actor, reason=given.reason
        )
        _or_refused(made, "skip_occurrence", row.name)
        return (
            {"nominal": which.nominal, "due_at": which.due_at},
            [str(which.nominal), which.fold, made.verdict],
            f" its run that is due at {which.due_at.isoformat()}",
        )

    return await _changed(desk, given, act, "would leave out", "leaves out")


def _or_refused(made: firings.OccurrenceAnswer, verb: str, name: str) -> None:
    if made.verdict is Verdict.REFUSED:
        raise VerbRefused(verb, made.reason or "unknown", subject=f"schedule {name}")


async def end_schedule(desk: Desk, given: EndSchedule, key: str) -> Deed:
    del key

    async def act(db: Database, row: ScheduleRow) -> tuple[dict[str, Any], list[Any], str]:
        made, cancelled = await verbs.end_schedule(
            db, row.name, by=desk.caller.actor, reason=given.reason, cancel=given.cancel
        )
        made.or_raise("end_schedule", row.name)
        jobs = f", and {count(cancelled, 'open job')} with it" if given.cancel else ""
        return {"cancelled_jobs": cancelled}, [made.verdict, cancelled], jobs

    return await _changed(desk, given, act, "would be ended", "is ended")


async def run_now(desk: Desk, given: RunNow, key: str) -> Deed:
    known = await desk.own_schedule(given.schedule)

    async def work(db: Database) -> Effect:
        row = await _still(db, known)
        runs = await _workflow(db, row)
        made = await firings.run_now(
            db,
            row.name,
            options=given.options,
            key=key,
            force=given.force,
            by=desk.caller.actor,
            reason=given.reason,
        )
        if made.verdict is Verdict.REFUSED:
            raise VerbRefused(
                "run_now", made.reason or "unknown", subject=f"schedule {given.schedule}", held=dict(made.detail)
            )
        return Effect(
            f"The schedule {given.schedule} would start a job now.",
            f"The schedule {given.schedule} has started job {made.job_id}.",
            {"id": row.id, "state": row.state},
            [str(row.id), row.revision, None if runs is None else str(runs.id)],
            {"job_id": made.job_id, "repeated": made.verdict is Verdict.REPEATED},
        )

    async def cost(db: Database) -> dict[str, Any]:
        runs = await _workflow(db, known)
        return {} if runs is None else await cost_of_run(desk, db, runs.steps)

    return Deed(work, cost, is_own=desk.is_own(known.created_by))


class BackfillSchedule(OfOneSchedule):
    begin: datetime = Field(alias="from", description="With an offset.")
    end: datetime | None = Field(default=None, alias="to", description="Before this time; now, if it is left out.")
    order: Literal["oldest", "newest"] = "oldest"
    parallel: Annotated[int, Field(ge=1, le=100)] = 1
    existing: Literal["none", "failed", "all"] = Field(default="none", description="Which of those that ran run again.")
    options: dict[str, Any] | None = None


async def backfill(desk: Desk, given: BackfillSchedule, key: str) -> Deed:
    del key  # the plan that it had in the preview
    known = await desk.own_schedule(given.schedule)
    begin, end = _aware(given.begin, "from"), _aware(given.end, "to")
    assert begin is not None
    rule = occurrences.rule_of(known, desk.spread)
    last = known.now if end is None else min(end, known.now)
    found = occurrences.behind(rule, begin, last, newest_first=given.order == "newest")
    if not found:
        raise NotFound("the schedule names no time between these that lies behind")
    wanted = firings.Backfill(
        revision=known.revision,
        nominals=[each.nominal for each in found],
        folds=[each.fold for each in found],
        dues=[each.due_at for each in found],
        parallel=given.parallel,
        existing=given.existing,
        options=given.options,
    )

    async def work(db: Database) -> Effect:
        earlier = await backfill_views.backfills(db, schedule_id=known.id, limit=1)
        plan = await backfill_views.preview_backfill(db, known.id, wanted.nominals, wanted.folds, wanted.existing)
        made = await firings.start_backfill(db, known.name, wanted, by=desk.caller.actor, reason=given.reason)
        if made.verdict is Verdict.REFUSED:
            raise VerbRefused("start_backfill", made.reason or "unknown", subject=f"schedule {given.schedule}")
        runs = made.would_run if made.would_run is not None else len(found)
        return Effect(
            f"A backfill would run {count(runs, 'time')} of the schedule {given.schedule}, {given.parallel} at once.",
            f"A backfill of the schedule {given.schedule} has begun; it has {count(runs, 'time')} to run.",
            {
                "would_run": made.would_run,
                "would_leave": made.would_leave,
                "first": min(wanted.dues),
                "last": max(wanted.dues),
                **desk.marked(occurrences=plan[:_MOST_SHOWN]),
            },
            [
                [known.revision, made.would_run, made.would_leave],
                [str(each) for each in wanted.nominals],
                [str(each.id) for each in earlier],
            ],
            {"id": made.id},
        )

    async def cost(db: Database) -> dict[str, Any]:
        runs = await _workflow(db, known)
        return {} if runs is None else await cost_of_run(desk, db, runs.steps)

    return Deed(work, cost, is_own=desk.is_own(known.created_by))


def _tool(
    name: str,
    title: str,
    about: str,
    takes: type[Any],
    prepare: Any,
    *,
    kind: ToolKind = ToolKind.WRITE,
    is_idempotent: bool = False,
) -> Tool[Any]:
    return Tool(name, title, about, Scope.SUBMIT, kind, takes, _EFFECT, prepare=prepare, is_idempotent=is_idempotent)


SCHEDULE_TOOLS: Final[tuple[Tool[Any], ...]] = (
    _tool("create_schedule", "Create a schedule", "Make a schedule that runs a workflow at times, after events or on a"
          " condition. The preview says in words what it will do.", CreateSchedule, create_schedule),
    _tool("edit_schedule", "Edit a schedule", "Change a schedule. Nothing in the past becomes due by it.", EditSchedule,
          edit_schedule, is_idempotent=True),
    _tool("pause", "Pause a schedule", "Let a schedule start nothing, for a time or until it is resumed.", Pause, pause,
          is_idempotent=True),
    _tool("resume", "Resume a schedule", "Let a paused schedule go on.", Resume, resume, is_idempotent=True),
    _tool("snooze", "Snooze", "Put the next occurrence of a schedule off, and no other.", Snooze, snooze),
    _tool("skip", "Skip a run", "Let one occurrence of a schedule not run.", SkipOccurrence, skip, is_idempotent=True),
    _tool("run_now", "Run now", "Start a job of a schedule now; its own times stay.", RunNow, run_now),
    _tool("end_schedule", "End a schedule", "End a schedule for good; its history stays. Undoes create_schedule.",
          EndSchedule, end_schedule, kind=ToolKind.DESTRUCTIVE, is_idempotent=True),
    _tool("backfill", "Backfill", "Run a schedule for times that lie behind.", BackfillSchedule, backfill,
          kind=ToolKind.DESTRUCTIVE),
)  # fmt: skip
