"""What the studio has: machines, workflows, schedules, tools. Documents as a person would write them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 11, 18, 13, 32, tzinfo=UTC)  # a Wednesday, 14:32 in Berlin
BEGIN = NOW - timedelta(hours=26)
ZONE = "Europe/Berlin"


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    slots: dict[str, int]
    boot: float | None = None  # seconds from a call until it is there; None: it is always on
    labels: dict[str, Any] = field(default_factory=dict[str, Any])
    watts: dict[str, float] | None = None
    wakes: bool = True

    @property
    def mac(self) -> str:
        return "52:54:00:" + ":".join(f"{ord(letter):02x}" for letter in self.name[-3:])


_GPU = {"asleep": 4.0, "booting": 140.0, "idle": 95.0, "busy": 410.0}
_DESK = {"asleep": 2.0, "booting": 60.0, "idle": 38.0, "busy": 90.0}
MACHINES = (
    Machine("edit-1", {"audio": 2, "proxy": 2}, 24, {"room": "b"}, _DESK),
    Machine("edit-2", {"audio": 2, "proxy": 2}, 27, {"room": "b"}, _DESK),
    Machine("farm-1", {"denoise": 2}, 33, {"room": "cellar"}, _DESK),
    Machine("farm-2", {"denoise": 2}, 35, {"room": "cellar"}, _DESK),
    Machine("gpu-1", {"render": 2}, 41, {"gpu": True, "room": "cellar"}, _GPU),
    Machine("gpu-2", {"render": 2}, 38, {"gpu": True, "room": "cellar"}, _GPU),
    Machine("gpu-3", {"render": 1}, 52, {"gpu": True, "room": "attic"}, _GPU, wakes=False),
    Machine("mini", {"upload": 2}, None, {"room": "b"}, {"asleep": 1.0, "booting": 8.0, "idle": 6.0, "busy": 11.0}),
    Machine("nas", {"ingest": 2, "snapshot": 1, "copy": 2, "index": 1}, None, {"room": "cellar"}),
)


def _step(key: str, service: str, after: str = "", /, **more: Any) -> dict[str, Any]:
    return {"key": key, "service": service, "depends_on": after.split(), **more}


WORKFLOWS: tuple[dict[str, Any], ...] = (
    {
        "name": "episode",
        "version": 3,
        "title": "Episode, from the card to the channel",
        "options_schema": {
            "type": "object",
            "required": ["episode", "source"],
            "properties": {
                "episode": {"type": "string", "title": "Episode", "description": "As in the plan: S02E07"},
                "source": {"type": "string", "title": "Where the card was copied to"},
                "resolution": {"type": "string", "title": "Resolution", "enum": ["2k", "4k", "8k"], "default": "4k"},
                "lufs": {"type": "number", "title": "Loudness", "default": -16},
                "captions": {"type": "boolean", "title": "Make captions"},
            },
        },
        "steps": [
            _step("ingest", "ingest", default_params={"verify": True}),
            _step("audio", "audio", "ingest", default_params={"lufs": -16}),
            _step("proxy", "proxy", "ingest"),
            _step("render", "render", "ingest", requires={"gpu": True}, timeout=7200),
            _step("denoise", "denoise", "render", max_attempts=5),
            _step("upload", "upload", "audio proxy denoise", concurrency_key="channel", concurrency_limit=1),
        ],
    },
    {
        "name": "shots",
        "version": 5,
        "title": "Effect shots, frame range by frame range",
        "steps": [
            _step("split", "ingest", **{"with": {"shot": "${params.shot}"}}),
            _step(
                "frames",
                "render",
                "split",
                for_each="steps.split.ranges",
                requires={"gpu": True},
                **{"with": {"first": "${item.first}", "last": "${item.last}"}},
            ),
            _step("grade", "denoise", "frames"),
            _step("deliver", "upload", "grade"),
        ],
    },
    {
        "name": "backup",
        "version": 2,
        "title": "Everything that cannot be made again",
        "steps": [
            _step("snapshot", "snapshot"),
            _step("copy-masters", "copy", "snapshot"),
            _step("copy-projects", "copy", "snapshot"),
            _step("copy-mail", "copy", "snapshot"),
            _step("verify", "copy", "copy-masters copy-projects copy-mail"),
            _step("prune", "snapshot", "verify"),
        ],
    },
    {
        "name": "dailies",
        "version": 1,
        "title": "What was shot yesterday, for the morning",
        "steps": [
            _step("collect", "ingest"),
            _step("proxies", "proxy", "collect"),
            _step("sheet", "proxy", "proxies"),
            _step("send", "upload", "sheet"),
        ],
    },
    {"name": "index", "version": 1, "title": "Search index of the archive", "steps": [_step("scan", "index")]},
)

SCHEDULES: tuple[dict[str, Any], ...] = (
    {
        "name": "nightly-backup",
        "title": "Backup of the night",
        "schedule_kind": "cron",
        "schedule_expr": "30 2 * * *",
        "timezone": ZONE,
        "workflow": "backup",
        "pause_after": 3,
    },
    {
        "name": "morning-dailies",
        "title": "Dailies on working days",
        "schedule_kind": "cron",
        "schedule_expr": "30 7 * * 1-5",
        "timezone": ZONE,
        "workflow": "dailies",
    },
    {"name": "archive-index", "schedule_kind": "interval", "schedule_expr": "2h", "workflow": "index"},
    {
        "name": "monthly-report",
        "schedule_kind": "rrule",
        "schedule_expr": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0;BYSECOND=0",
        "timezone": ZONE,
        "workflow": "index",
    },
    {
        "name": "card-arrived",
        "title": "A card was put into the reader",
        "schedule_kind": "event",
        "schedule_expr": "studio.card.*",
        "workflow": "dailies",
        "filter": "event.payload.gigabytes > 1",
    },
    {
        "name": "archive-full",
        "title": "Make room when the archive is full",
        "schedule_kind": "condition",
        "schedule_expr": "archive.used",
        "workflow": "backup",
        "condition": {"above": 90, "clear_below": 80, "samples": 2, "stale": "6h"},
    },
)

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "chat.send",
        "kind": "http",
        "description": "Writes a message into a room of the studio's chat.",
        "request": {
            "target": "chat",
            "path": "/rooms/{room}/messages",
            "headers": {"Authorization": "${secret('chat')}"},
        },
        "input_schema": {
            "required": ["room", "text"],
            "properties": {"room": {"type": "string"}, "text": {"type": "string"}},
        },
        "examples": [{"room": "cut", "text": "S02E11 is on the channel"}],
    },
    {
        "name": "media.probe",
        "service": "ingest",
        "description": "Length, size and codecs of a recording.",
        "input_schema": {"required": ["path"], "properties": {"path": {"type": "string"}}},
        "output_schema": {"type": "object", "properties": {"seconds": {"type": "number"}, "codec": {"type": "string"}}},
    },
)
