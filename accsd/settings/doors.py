"""The sections of the gateway's doors, through which the clients of other systems come in.

A door whose section is there, even an empty one, is open.
"""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from accsd.settings.section import Duration, Seconds, Section, Size


class JoblibSettings(Section):
    """[gateway.joblib]: what clients of zndraw-joblib call. The variables of the original, ZNDRAW_JOBLIB_<NAME>, go
    before it where it is there."""

    allowed_categories: list[Annotated[str, Field(pattern=r"^[^:]{1,100}$")]] = Field(
        default_factory=lambda: ["modifiers", "selections", "analysis"]
    )
    allowed_provider_categories: list[str] | None = None  # None: any
    worker_timeout_seconds: Seconds = 60  # a worker that is not heard for so long is gone
    sweeper_interval_seconds: Seconds = 30  # at least so often it is looked for
    internal_task_timeout_seconds: Seconds = 3600
    claimed_timeout_seconds: Seconds | None = None  # tasks that were claimed and not begun go back
    long_poll_max_wait_seconds: int = Field(default=120, ge=0, le=3600)
    provider_long_poll_default_seconds: int = Field(default=5, ge=0, le=3600)
    provider_long_poll_max_seconds: int = Field(default=30, ge=0, le=3600)
    provider_result_ttl_seconds: Seconds = 300
    provider_inflight_ttl_seconds: Seconds = 30
    provider_result_bytes: Size = 32 * 1024 * 1024  # of one result, and
    provider_memory: Size = 64 * 1024 * 1024  # of all that are kept
    disconnect_grace_seconds: float = Field(default=0, ge=0, le=3600)  # a worker may come back with another socket
    submit_without_workers: Literal["wait", "refuse"] = "wait"
    dead_letters: Literal["dismiss", "keep"] = "dismiss"  # of tasks that failed
    validate_payloads: bool = Field(default=False, alias="validate")
    # Of the original's way to claim; the lock is another one here.
    claim_max_attempts: int = 10
    claim_base_delay_seconds: float = 0.01

    @property
    def lease(self) -> timedelta:
        """A lost worker's tasks are failed by the sweeper before their leases end."""
        return timedelta(seconds=self.worker_timeout_seconds + self.sweeper_interval_seconds + 30)


class SeqpulseSettings(Section):
    """[gateway.seqpulse]: what SeqPulse's client calls in CI."""


class JudgeSettings(Section):
    """[gateway.judge]: what clients of an online judge call."""


class OrdinautSettings(Section):
    """[gateway.ordinaut]: what Ordinaut's clients call."""


class McpSettings(Section):
    """[gateway.mcp]: what assistants call by the Model Context Protocol; `accsd mcp` heeds it, too."""

    preview: Duration = timedelta(minutes=10)  # a preview that is not confirmed within this time is no more
    least_interval: Duration = timedelta(minutes=1)  # between two runs of a schedule that an assistant makes
    rows: int = Field(default=100, ge=1, le=500)  # of one answer, at most
    # Tokens, by id, whose writes happen without a preview where they can be repeated and touch what their actor made.
    unconfirmed: list[Annotated[str, Field(pattern=r"^[a-z0-9]{8}$")]] = Field(default_factory=list)
