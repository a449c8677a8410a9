"""A machine of the fleet, as `nodes` (A7) holds it."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field

from accsd.model.row import JsonObject, Row, empty_for_null
from accsd.model.state import AwakeState, WakeMethod


class Node(Row):
    """What a machine can do, whether it is awake, and how to wake it."""

    name: str
    labels: JsonObject = Field(default_factory=dict)
    last_seen: datetime | None = None
    awake_state: AwakeState = AwakeState.UNKNOWN
    wake_method: WakeMethod | None = None
    mac: str | None = None
    provider_ref: str | None = None
    script: str | None = None
    max_concurrency: Annotated[dict[str, int], BeforeValidator(empty_for_null)] = Field(default_factory=dict)

    login: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    instance: str | None = None
