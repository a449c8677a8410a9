"""The sections of the gateway's doors, through which the clients of other systems come in.

A door whose section is there, even an empty one, is open.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from accsd.errors import InvalidValue
from accsd.settings.section import Duration, Seconds, Section, Size

FROM_TRIGGER: Final = "from_trigger"
Share = Annotated[float, Field(ge=0, le=1)]


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


class AnalysisSettings(Section):
    """[gateway.seqpulse.analysis]: when a deployment counts as bad (planning/verdict.py, planning/hints.py)."""

    latency_p95: float = Field(default=300.0, gt=0)  # milliseconds
    error_rate: Share = 0.01
    cpu_usage: Share = 0.80
    memory_usage: Share = 0.80
    secured: float = Field(default=0.9, gt=0, le=1)  # samples count as bad beyond this part of a threshold
    # The share of samples after a deployment that may be bad.
    latency_tolerance: Share = 0.20
    error_tolerance: Share = 0.05
    cpu_tolerance: Share = 0.20
    memory_tolerance: Share = 0.10
    requests_tolerance: Share = 0.20
    requests_least: float = Field(default=0.5, ge=0)  # requests a second before it: with fewer they do not count
    requests_drop: Share = 0.20  # a sample is bad that lies further below the mean before
    samples: int = Field(default=5, ge=1, le=1440)  # fewer after a deployment make the verdict less certain
    gap: Duration = timedelta(seconds=108)  # between two samples; a longer one is a gap
    stale: Duration = timedelta(seconds=600)  # how old the last sample may be
    clock_skew: Duration = timedelta(seconds=30)
    good: Share = 0.9  # the least quality that an "ok" needs


class SeqpulseProject(Section):
    """[gateway.seqpulse.projects.NAME]: an application whose deployments are watched. A token with the limit
    project=NAME belongs to it."""

    endpoint: str = Field(
        pattern=r"^(from_trigger|https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?(/[!-~]*)?)$", max_length=2000
    )
    envs: list[Annotated[str, Field(min_length=1, max_length=255)]] = Field(default=["prod"], min_length=1)
    hmac_secret: SecretStr | None = Field(default=None, min_length=8)
    hmac_secret_file: Path | None = None
    window_minutes: int = Field(default=5, ge=1, le=1440)  # a sample a minute
    delay_minutes: int | None = Field(default=None, ge=0, le=10_080)  # until the analysis; as long as the window
    allow_private: bool = False
    ca_file: Path | None = None
    blocked: bool = False

    @model_validator(mode="after")
    def _has_one_secret_and_an_address(self) -> Self:
        if self.hmac_secret is not None and self.hmac_secret_file is not None:
            raise InvalidValue("has an hmac_secret and an hmac_secret_file: it needs one of them at most")
        if self.endpoint != FROM_TRIGGER:
            try:
                _ = urlsplit(self.endpoint).port  # urlsplit parses the port only here
            except ValueError as error:
                raise InvalidValue(f"has an endpoint that can't be called: {error}") from None
            if self.endpoint.startswith("http:") and not self.allow_private:
                raise InvalidValue(
                    "has an endpoint without TLS, which is for private networks only (allow_private = true)"
                )
        return self

    @property
    def is_signed(self) -> bool:
        return self.hmac_secret is not None or self.hmac_secret_file is not None

    @property
    def fixed_endpoint(self) -> str | None:
        """None: whoever triggers a deployment names the address."""
        return None if self.endpoint == FROM_TRIGGER else self.endpoint

    @property
    def delay(self) -> int:
        return self.window_minutes if self.delay_minutes is None else self.delay_minutes


ProjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class SeqpulseSettings(Section):
    """[gateway.seqpulse]: what SeqPulse's client calls in CI, and how the applications are sampled."""

    per_minute: int = Field(default=100, ge=1, le=1_000_000)  # requests of one token
    timeout: Duration = timedelta(seconds=5)  # of one sample
    preflight: Duration = Field(default=timedelta(seconds=1.5), le=timedelta(seconds=2))  # of the look before one
    preflight_lasts: Duration = timedelta(seconds=120)  # a look that went well is not repeated for so long
    concurrency: int = Field(default=10, ge=1, le=1000)  # samples at a time
    warm_up: Duration = timedelta(seconds=60)  # after a deployment: how often it is asked for says nothing yet
    patience: Duration = timedelta(minutes=10)  # how long the analysis waits for samples that are overdue
    analysis: AnalysisSettings = Field(default_factory=AnalysisSettings)
    projects: dict[ProjectName, SeqpulseProject] = Field(default_factory=dict)


class JudgeSettings(Section):
    """[gateway.judge]: what clients of an online judge call."""


class OrdinautSettings(Section):
    """[gateway.ordinaut]: what Ordinaut's clients call."""

    timezone: str = Field(default="Europe/Chisinau", min_length=1, max_length=100)  # of a task that names none
    step_timeout: Duration = timedelta(seconds=30)  # of a step where neither it nor its tool says one
    access_lives: Duration = timedelta(hours=1)  # how long an access token lets in that an agent gets for its secret
    least_interval: Duration = timedelta(minutes=1)  # between two runs of a task that an assistant makes
    # What tokens of the scope submit may use in pipelines: tools, service:NAME; each may end in *. Others need operate.
    tools: list[Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^*]*\*?$")]] = Field(
        default_factory=list
    )


class McpSettings(Section):
    """[gateway.mcp]: what assistants call by the Model Context Protocol; `accsd mcp` heeds it, too."""

    preview: Duration = timedelta(minutes=10)  # a preview that is not confirmed within this time is no more
    least_interval: Duration = timedelta(minutes=1)  # between two runs of a schedule that an assistant makes
    rows: int = Field(default=100, ge=1, le=500)  # of one answer, at most
    # Tokens, by id, whose writes happen without a preview where they can be repeated and touch what their actor made.
    unconfirmed: list[Annotated[str, Field(pattern=r"^[a-z0-9]{8}$")]] = Field(default_factory=list)
