"""A schedule that somebody writes: checked before the database is asked, compared with what is there, written, and
told in words: what it means, what is next, what may surprise its author."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.calendars import calendars_named
from accsd.db.pool import Database
from accsd.db.schedules import ScheduleAnswer, put_schedule
from accsd.db.views import jobs as job_views
from accsd.db.views import schedules as views
from accsd.db.views.firings import usual_times_of
from accsd.db.views.schedules import ScheduleRow
from accsd.db.views.workflows import no_such_workflow
from accsd.db.workflows import workflow_id
from accsd.errors import InvalidValue, NotFound, ScheduleInvalid, UserError, VerbRefused
from accsd.explain import occurrences
from accsd.explain import schedules as words
from accsd.model.schedule import KINDS, ScheduleDef, for_the_database, is_for
from accsd.planning.recurrence import LintWarning, PreviewRow, Rule, lint, next_occurrences

SHOWN: Final = 3  # of what is next
_FIELD_OF: Final = {kind: field for field, kind in KINDS.items()}
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
# Columns whose change lets a schedule that has ended go on
_REVIVING: Final = frozenset(
    {
        *("schedule_kind", "schedule_expr", "timezone", "spread", "exclude", "only_on", "start_at", "end_at"),
        *("max_runs", "condition"),
    }
)
_NEW: Final = "new"  # the id of a schedule that is not there yet


def definition_of(row: ScheduleRow) -> dict[str, Any]:
    """A schedule that is there, as one would write it; what means nothing to its kind is left out."""
    fields = {
        field: getattr(row, field)
        for field in ScheduleDef.model_fields
        if field not in (*KINDS, "anchor") and is_for(field, row.schedule_kind)
    }
    expression = {"name": row.schedule_expr, **(row.condition or {})}
    when = expression if row.schedule_kind == "condition" else row.schedule_expr
    return fields | {_FIELD_OF[row.schedule_kind]: when}


@dataclass(frozen=True, slots=True)
class Draft:
    """A definition that was found good; without a rule where it has no times. `changes` are the columns that differ
    from the schedule that is there; `dropped` says which skips and snoozes the new times do not have."""

    definition: ScheduleDef
    row: ScheduleRow | None
    rule: Rule | None
    now: datetime
    changes: Mapping[str, Any]
    dropped: Sequence[str]
    warnings: Sequence[LintWarning]
    before: Sequence[PreviewRow]
    after: Sequence[PreviewRow]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def stays_ended(self) -> bool:
        """It has ended, and what changes does not let it go on."""
        return self.row is not None and self.row.state == "ended" and not _REVIVING & self.changes.keys()

    @property
    def words(self) -> str:
        return words.meaning(self.rule, self.definition, None if self.stays_ended else self.now)

    @property
    def ahead(self) -> Sequence[PreviewRow]:
        """What is next, once it is written."""
        return [] if self.stays_ended else self.after


async def drafted(db: Database, definition: ScheduleDef, *, spread: timedelta) -> Draft:
    """Checks a definition; UserError says what is wrong with it. `spread` is for schedules that say nothing of it."""
    row, now = await views.find_schedule(db, definition.name), await job_views.clock(db)
    calendars = await calendars_named(db, [*definition.exclude, *definition.only_on])
    check_expressions(definition)
    rule = _rule(definition, row, now, calendars, spread)
    marks = await _marks(db, row)
    left = _runs_left(definition, row)
    return Draft(
        definition=definition,
        row=row,
        rule=rule,
        now=now,
        changes=_changes(definition, row),
        dropped=occurrences.no_longer_named(rule, marks),
        warnings=() if rule is None else await _warnings(db, rule, now, row),
        before=[] if row is None else _before(row, spread, marks),
        after=[] if rule is None else occurrences.ahead(rule, now, SHOWN, marks=marks, runs_left=left),
    )


def _rule(
    definition: ScheduleDef,
    row: ScheduleRow | None,
    now: datetime,
    calendars: Mapping[str, Mapping[str, Any]],
    spread: timedelta,
) -> Rule | None:
    if not definition.has_times:
        return None
    made = (_NEW, now, None) if row is None else (str(row.id), row.created_at, row.anchor)
    rule = definition.timing(id=made[0], created_at=made[1], anchor=made[2], calendars=calendars).rule(spread)
    _check_reach(rule, now)
    return rule


def _check_reach(rule: Rule, now: datetime) -> None:
    found, exhausted = next_occurrences(rule, now, 1)
    if not found and not exhausted:
        raise InvalidValue("its next time is more than a century ahead", hint="choose an earlier one")


async def check_workflow(db: Database, definition: ScheduleDef) -> None:
    """NotFound if the workflow has no active version; the name that was meant is in it."""
    try:
        await workflow_id(db, definition.workflow, definition.version)
    except NotFound:
        raise await no_such_workflow(db, definition.workflow, definition.version) from None


def check_expressions(definition: ScheduleDef) -> None:
    """ScheduleInvalid says what is wrong with filter, options, gathering and expr, each with its place."""
    from accsd.expressions.schedules import schedule_problems

    said = definition.columns()
    found = schedule_problems(
        definition.kind, **{key: said[key] for key in ("options", "filter", "gather", "condition")}
    )
    if found:
        raise ScheduleInvalid(
            f'schedule "{definition.name}": {"; ".join(f"{problem.path}: {problem.what}" for problem in found)}',
            complaints=[(problem.place, f"{problem.path}: {problem.what}") for problem in found],
        )


def _changes(definition: ScheduleDef, row: ScheduleRow | None) -> dict[str, Any]:
    columns = definition.columns()
    if row is None:
        return columns
    return {name: value for name, value in columns.items() if value != getattr(row, name)}


def _runs_left(definition: ScheduleDef, row: ScheduleRow | None) -> int | None:
    return None if definition.max_runs is None else definition.max_runs - (0 if row is None else row.runs)


async def _marks(db: Database, row: ScheduleRow | None) -> occurrences.Marks:
    if row is None:
        return {}
    return occurrences.marks_of(await views.skips_of(db, row.id), await views.snoozes_of(db, row.id))


def _before(row: ScheduleRow, spread: timedelta, marks: occurrences.Marks) -> list[PreviewRow]:
    """What was next until now; nothing for a schedule that has ended or whose rule can't be read."""
    try:
        if not row.has_times or row.state == "ended":
            return []
        left = None if row.max_runs is None else row.max_runs - row.runs
        return occurrences.ahead(row.timing().rule(spread), row.now, SHOWN, marks=marks, runs_left=left)
    except UserError:
        return []


async def _warnings(db: Database, rule: Rule, now: datetime, row: ScheduleRow | None) -> tuple[LintWarning, ...]:
    found = occurrences.ahead(rule, now, 1)
    sharing, usual = None, None
    if found:
        minute = found[0].due_at.replace(second=0, microsecond=0)
        but = None if row is None else row.id
        sharing = await views.due_within(db, minute, minute + timedelta(minutes=1), but=but)
    if row is not None:
        usual = (await usual_times_of(db, row.id)).run
    return lint(rule, now, sharing=sharing, usual_run=usual)


# Written


async def write(
    db: Database, draft: Draft, *, by: str, reason: str | None = None, if_revision: int | None = None
) -> ScheduleAnswer:
    """Writes what differs. Without a revision it is refused if the schedule has changed since the draft was made."""
    expected = if_revision if if_revision is not None else 0 if draft.row is None else draft.row.revision
    columns = {"name": draft.name, **draft.changes}
    return await put_schedule(db, for_the_database(columns), by=by, reason=reason, if_revision=expected)


def or_refused(draft: Draft, answer: ScheduleAnswer) -> ScheduleAnswer:
    if answer.verdict is not Verdict.REFUSED:
        return answer
    if answer.reason == "conflict":
        now = "" if answer.revision is None else f": it is revision {answer.revision} now"
        raise VerbRefused(
            "put_schedule",
            f"conflict, somebody else has changed it{now}",
            subject=f"schedule {draft.name}",
            hint=f"accsd schedules show {draft.name}, then try again",
        )
    return answer.or_raise("put_schedule", draft.name)


def document(draft: Draft, change: str, *, id: UUID | None = None, revision: int | None = None) -> dict[str, Any]:  # noqa: A002
    """What was written, or would be, for programs. `change`: created, updated, unchanged or ended."""
    return {
        "name": draft.name,
        "change": change,
        "id": id,
        "revision": revision,
        "changes": for_the_database(draft.changes),
        "words": draft.words,
        "before": [occurrences.preview_document(row) for row in draft.before],
        "next": [occurrences.preview_document(row) for row in draft.ahead],
        "dropped": list(draft.dropped),
        "warnings": [asdict(warning) for warning in draft.warnings],
    }


def change_of(draft: Draft) -> str:
    return "created" if draft.row is None else "updated" if draft.changes else "unchanged"


# Compared


def written_form(definition: ScheduleDef) -> dict[str, Any]:
    """What a file would say: only what differs from the defaults, times as instants."""
    columns = definition.columns()
    kept = definition.model_dump(exclude_defaults=True)
    times = {field: columns[field].isoformat() for field in ("start_at", "end_at") if field in kept}
    return {key: _plain(value) for key, value in (kept | times).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, timedelta):
        return value
    seconds = value.total_seconds()
    unit, size = next((each for each in _UNITS if seconds and not seconds % each[1]), _UNITS[-1])
    return f"{seconds / size:g}{unit}"


def difference(draft: Draft) -> list[str]:
    """Lines of what would change, as diff writes them."""
    was = [] if draft.row is None else _lines_of(draft.row)
    now = _lines(draft.definition)
    stands = "nothing" if draft.row is None else f"{draft.name} revision {draft.row.revision}"
    return list(difflib.unified_diff(was, now, f"applied: {stands}", f"file: {draft.name}", lineterm=""))


def _lines_of(row: ScheduleRow) -> list[str]:
    """None of a schedule that was written by hand, and wrongly."""
    try:
        return _lines(ScheduleDef.model_validate(definition_of(row)))
    except ScheduleInvalid:
        return []


def _lines(definition: ScheduleDef) -> list[str]:
    return [f"{key}: {value}" for key, value in written_form(definition).items()]
