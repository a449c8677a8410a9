"""Rooms and full names: <room>:<category>:<name>. @global is seen from everywhere; what is @internal the fleet does."""

from typing import Final

from accsd.errors import InvalidValue
from accsd.gateway.joblib.problems import JoblibProblem

GLOBAL: Final = "@global"
INTERNAL: Final = "@internal"
EVERYWHERE: Final = (GLOBAL, INTERNAL)
_LONGEST: Final = 200  # of a workflow's name


def require_room(room: str) -> None:
    if room in EVERYWHERE:
        return
    if not room or "@" in room or ":" in room or len(room) > _LONGEST:
        raise JoblibProblem(
            "invalid-room-id",
            f'Room ID "{room[:100]}" contains invalid characters (@ or :), is empty, or is longer than {_LONGEST}',
        )


def full_name(room: str, category: str, name: str) -> str:
    made = f"{room}:{category}:{name}"
    if len(made) > _LONGEST:
        raise InvalidValue(f"a full name has at most {_LONGEST} characters, and this one has {len(made)}")
    return made


def parts_of(name: str) -> tuple[str, str, str] | None:
    parts = name.split(":", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None
