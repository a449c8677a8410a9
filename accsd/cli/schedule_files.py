"""Schedules in files: in a file of their own, or beside the steps of the workflow that they start."""

from collections.abc import Iterable
from typing import Any, cast

from accsd.cli.workflow_files import Document
from accsd.errors import Place, ScheduleInvalid
from accsd.model.schedule import ScheduleDef


def schedules_of(documents: Iterable[Document]) -> list[ScheduleDef]:
    """All schedules of these documents; all mistakes are in one message, each with its line."""
    sound: list[ScheduleDef] = []
    complaints: list[str] = []
    hint = None
    for document in documents:
        for place, written in _entries(document):
            try:
                sound.append(ScheduleDef.model_validate(written))
            except ScheduleInvalid as error:
                found = error.complaints or [((), error.message)]
                complaints += document.located(
                    [((*place, *within), f"{_title(written)}{said}") for within, said in found]
                )
                hint = hint or error.hint
    if complaints:
        raise ScheduleInvalid("\n".join(complaints), hint=hint or "correct it, then try again with --dry-run")
    names = [schedule.name for schedule in sound]
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ScheduleInvalid(f'the schedule "{twins[0]}" is written twice', hint="a name belongs to one schedule")
    return sound


def _entries(document: Document) -> Iterable[tuple[Place, Any]]:
    """The schedules of a document with their places. One beside steps starts the workflow that these are of."""
    value = document.value
    if document.is_schedule:
        yield (), value
        return
    listed: Any = cast("dict[str, Any]", value).get("schedules") if isinstance(value, dict) else None
    if listed is None:
        return
    if not isinstance(listed, list):
        raise ScheduleInvalid("\n".join(document.located([(("schedules",), "schedules must be a list")])))
    beside = {"workflow": cast("dict[str, Any]", value).get("name")} if document.is_workflow else {}
    for number, each in enumerate(cast("list[Any]", listed)):
        is_table = isinstance(each, dict)
        yield ("schedules", number), (beside | cast("dict[str, Any]", each) if is_table else each)


def _title(written: Any) -> str:
    name: Any = cast("dict[str, Any]", written).get("name") if isinstance(written, dict) else None
    return f'schedule "{name[:100]}": ' if isinstance(name, str) else "schedule: "


def workflows_of(documents: Iterable[Document]) -> set[str]:
    """The workflows that these files are about, whether they have schedules or not."""
    named = {schedule.workflow for schedule in schedules_of(documents)}
    own = {
        name
        for document in documents
        if document.is_workflow and isinstance(document.value, dict)
        if isinstance(name := cast("dict[str, Any]", document.value).get("name"), str)
    }
    return named | own
