"""What may be called how. Step keys become parts of object keys, service names parts of channels, argument
lists and environment variables, so both are checked once, here, by the models, the settings and the
storage keys. Outgoing events are named by targets and by workflows,
those of schedules by targets alone.
"""

import re
from typing import Final, Literal, get_args

from accsd.errors import InvalidValue

_STEP_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ITEM = re.compile(r"(.*)\[(\d{1,5})\]")
_SERVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")

# What the control host does itself: tools of kind http and builtin. A step gets there by `uses` only.
TOOL_SERVICE: Final = "accs"
# `<prefix>builder` is the channel on which the builder hears of new jobs.
RESERVED_SERVICE_NAMES = frozenset({"builder", TOOL_SERVICE})

# The one step of an `accsd run`, whose command no row holds; the label of nodes that are no machines.
NODE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"  # a pattern
ONE_OFF_SERVICE: Final = "accs.run"
KIND_LABEL: Final = "accs.kind"

OutgoingEvent = Literal[
    "job.submitted",
    "job.started",
    "job.retried",
    "job.done",
    "job.error",
    "job.cancelled",
    "task.done",
    "task.error",
    "task.skipped",
    "task.cancelled",
]
OUTGOING_EVENTS: Final[tuple[str, ...]] = get_args(OutgoingEvent)
ScheduleEvent = Literal["schedule.missed", "schedule.skipped", "schedule.broken"]


def check_step_key(key: str) -> str:
    if not _STEP_KEY.fullmatch(key):
        raise InvalidValue(
            f'"{_shown(key)}" is not a step key: 1 to 100 letters, digits, ".", "_" or "-", '
            "beginning with a letter or digit"
        )
    return key


def split_task_key(key: str) -> tuple[str, int | None]:
    """The step of a task, and the number of its item where the step was multiplied: `encode[3]`."""
    found = _ITEM.fullmatch(key)
    return (check_step_key(found[1]), int(found[2])) if found else (check_step_key(key), None)


def check_task_key(key: str) -> str:
    split_task_key(key)
    return key


def check_service_name(name: str) -> str:
    if not _SERVICE_NAME.fullmatch(name):
        raise InvalidValue(
            f'"{_shown(name)}" is not a service name: 1 to 40 letters, digits, ".", "_" or "-", '
            "beginning with a letter or digit"
        )
    if name in RESERVED_SERVICE_NAMES:
        raise InvalidValue(f'"{name}" is reserved and cannot be the name of a service')
    return name


def check_outgoing_event(name: str) -> str:
    if name not in OUTGOING_EVENTS:
        raise InvalidValue(f'"{_shown(name)}" is no event; there are {", ".join(OUTGOING_EVENTS)}')
    return name


def variable_suffix(service: str) -> str:
    """The service's part of an environment variable: `audio-norm` → `AUDIO_NORM`."""
    return re.sub(r"[^A-Za-z0-9]", "_", service).upper()


def _shown(text: str) -> str:
    """A rejected name may be anything: keep the message on one line and short."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= 60 else printable[:60] + "…"
