"""The settings: one frozen model, a class for each section of the TOML file."""

import re
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    IPvAnyNetwork,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from accsd.errors import ConfigError, InvalidValue
from accsd.settings import database_url
from accsd.settings.doors import JoblibSettings, JudgeSettings, McpSettings, OrdinautSettings, SeqpulseSettings
from accsd.settings.section import Duration, Seconds, Section, Size
from accsd.values.labels import check_labels, parse_labels
from accsd.values.names import NODE_NAME, OutgoingEvent, ScheduleEvent, check_service_name, variable_suffix
from accsd.values.units import parse_duration


def _database_url(url: SecretStr) -> SecretStr:
    return SecretStr(database_url.normalise(url.get_secret_value()))


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
DurationOrAuto = Annotated[
    timedelta | Literal["auto"], BeforeValidator(lambda given: given if given == "auto" else parse_duration(given))
]


class DatabaseSettings(Section):
    """[database]"""

    url: DatabaseUrl | None = None
    listen_url: DatabaseUrl | None = None
    pool_size: int = Field(default=10, ge=1, le=1000)
    pooler: Literal["auto", "none", "transaction"] = "auto"
    connect_timeout_sec: Seconds = 10.0
    statement_timeout_sec: Seconds = 30.0

    @property
    def required_url(self) -> str:
        """The URL, for callers that can't work without one."""
        if self.url is None:
            raise ConfigError(
                "no database is configured",
                hint="set ACC_DB_URL=postgresql://user@host:5432/name, or run `accsd up`, which brings a database",
            )
        return self.url.get_secret_value()

    @property
    def required_listen_url(self) -> str:
        """The URL for LISTEN: past the pooler, if there is one."""
        return self.listen_url.get_secret_value() if self.listen_url else self.required_url

    @property
    def address(self) -> str:
        """The URL as it may be shown: without password and options."""
        if self.url is None:
            return "no database"
        return database_url.shown(self.url.get_secret_value())


class StorageSettings(Section):
    """[storage]"""

    url: str | None = None
    endpoint: str | None = None
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None
    bucket: str = Field(default="accs", pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    patience: Duration = timedelta(minutes=2)

    @model_validator(mode="before")
    @classmethod
    def _bucket_of_the_url(cls, table: Any) -> Any:
        """`s3://name` names the bucket already; another name beside it is a contradiction."""
        if not isinstance(table, dict):
            return table
        table = dict(cast("dict[str, Any]", table))
        url = table.get("url")
        named = urlsplit(url).netloc if isinstance(url, str) and url.startswith("s3://") else ""
        if named and table.setdefault("bucket", named) != named:
            raise InvalidValue("names one bucket in url and another in bucket; drop one of them")
        return table

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.url is not None and not re.match(r"file:///.|s3://[^/?#]+/?$", self.url):
            raise InvalidValue("has a url that is neither file:///absolute/folder nor s3://bucket")
        if self.endpoint is not None and not re.match(r"https?://[^/\s]+", self.endpoint):
            raise InvalidValue("has an endpoint that is not http://host:port or https://host:port")
        return self


def _from_text(written: Any) -> Any:
    return parse_labels(written) if isinstance(written, str) else written


Labels = Annotated[dict[str, Any], BeforeValidator(_from_text), AfterValidator(check_labels)]


class WattsSettings(Section):
    """[node] watts: what this machine draws in each state. All four or none: nothing is guessed."""

    asleep: float = Field(ge=0, le=100_000)
    booting: float = Field(ge=0, le=100_000)
    idle: float = Field(ge=0, le=100_000)
    busy: float = Field(ge=0, le=100_000)


class NodeSettings(Section):
    """[node]"""

    name: str = Field(default_factory=socket.gethostname, pattern=f"^{NODE_NAME}$")
    labels: Labels = Field(default_factory=dict)
    state_dir: Path | None = None
    min_free_disk: Size = 512 * 1024 * 1024
    files_cache: Size = 10 * 1024**3
    # How this machine is woken; the node registers these values, and the control host uses them.
    wake_method: Literal["wol", "provider", "script"] | None = None
    mac: str | None = Field(default=None, pattern=r"^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$")
    provider_ref: str | None = Field(default=None, min_length=1, max_length=2000)
    script: str | None = Field(default=None, min_length=1, max_length=2000)
    watts: WattsSettings | None = None


class ComposeSettings(Section):
    """[compose]: this node's own compose file, whose labelled services it serves."""

    file: Path | None = None
    project: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")


class HttpSettings(Section):
    """[http]: metrics and health, off unless an address is given."""

    listen: str | None = Field(default=None, pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}$")
    token: SecretStr | None = Field(default=None, min_length=16)

    @model_validator(mode="after")
    def _only_this_machine_without_a_token(self) -> Self:
        if self.listen is not None and self.token is None and not _is_loopback(self.listen.rpartition(":")[0]):
            raise InvalidValue("has a listen address that other machines can reach, and no token")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Limits(Section):
    """[services.NAME.limits]"""

    memory: Size | None = None
    pids: int | None = Field(default=None, ge=1)
    output: Size = 100 * 1024 * 1024


class ServiceSettings(Section):
    """[services.NAME]: how this node runs a service."""

    runner: Literal["process", "compose"] = "compose"
    command: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1)
    concurrency: int = Field(default=1, ge=0, le=100_000)
    environment: dict[str, str] = Field(default_factory=dict)
    timeout: Duration | None = None
    stop_grace: Duration = timedelta(seconds=10)
    idle_stop: Duration | None = None
    limits: Limits = Field(default_factory=Limits)
    requires: Labels = Field(default_factory=dict)
    # The command that says whether this machine can serve it: run after a failure, and before a quarantine ends.
    probe: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1)
    # The tool that it offers to do, and the file with its types; an operator accepts it (docs/tools.md).
    tool: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$", max_length=100)
    tool_schema: Path | None = None

    @model_validator(mode="after")
    def _process_has_a_command(self) -> Self:
        if self.runner == "process" and self.command is None:
            raise InvalidValue('has runner "process" and therefore needs a command, such as ["python3", "render.py"]')
        return self


class ProviderSettings(Section):
    """[wake.providers.NAME]: an HTTP service that starts machines; only those named here are called."""

    # {ref} stands in the path or the query only: a node's provider_ref never chooses the host.
    url: str = Field(pattern=r"^https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?/[^\s#]*\{ref\}[^\s#]*$")
    method: Literal["GET", "POST", "PUT", "PATCH"] = "POST"
    body: str = ""
    token: SecretStr | None = None
    token_file: Path | None = None
    authorization: str = Field(default="Bearer {token}", pattern=r"^[ -~]*\{token\}[ -~]*$")
    ca_file: Path | None = None
    allow_private: bool = False
    timeout: Duration = timedelta(seconds=15)

    @model_validator(mode="after")
    def _no_secret_in_the_clear(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise InvalidValue("has both a token and a token_file; drop one of them")
        if self.url.startswith("http:") and not self.allow_private:
            raise InvalidValue("has a url without TLS, which is for private networks only (allow_private = true)")
        return self


ProviderName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class WakeSettings(Section):
    """[wake]: how the control host wakes nodes."""

    ahead: Duration = timedelta(minutes=5)
    boot: Duration = timedelta(minutes=2)
    rounds: int = Field(default=3, ge=1, le=100)
    rest: Duration = timedelta(minutes=15)
    longest_rest: Duration = timedelta(hours=4)
    at_once: int = Field(default=8, ge=1, le=1000)
    interface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@:-]{0,14}$")
    broadcast: list[IPv4Address] = Field(default_factory=list[IPv4Address])
    port: int = Field(default=9, ge=1, le=65535)
    script_dir: Path | None = None
    script_timeout: Duration = timedelta(seconds=60)
    providers: dict[ProviderName, ProviderSettings] = Field(default_factory=dict)


class SleepSettings(Section):
    """[sleep]: when this node goes to sleep by itself, and how."""

    method: Literal["none", "suspend", "script", "provider"] = "none"
    script: Path | None = None
    provider_ref: str | None = Field(default=None, min_length=1, max_length=2000)
    idle: DurationOrAuto = "auto"
    awake: Duration = timedelta(minutes=2)
    within: Duration = timedelta(seconds=60)
    veto_files: list[Annotated[str, Field(pattern=r"^/")]] = Field(default_factory=lambda: ["/run/accsd/stay-awake"])
    veto_script: Path | None = None
    veto_users: bool = True
    veto_inhibitors: bool = True
    inhibit: Literal["auto", "off"] = "auto"

    @model_validator(mode="after")
    def _says_how(self) -> Self:
        if self.method == "script" and self.script is None:
            raise InvalidValue('has method "script" and therefore needs a script, as an absolute path')
        if self.method == "provider" and self.provider_ref is None:
            raise InvalidValue('has method "provider" and therefore needs a provider_ref, such as "studio-stop/gpu-1"')
        for name, path in (("script", self.script), ("veto_script", self.veto_script)):
            if path is not None and not path.is_absolute():
                raise InvalidValue(f"has a {name} that is not an absolute path")
        return self


# "notify" stands for the events that a workflow's own `notify` names.
WantedEvent = Literal[OutgoingEvent, ScheduleEvent, "notify"]


class OutboxTarget(Section):
    """[outbox.targets.NAME]: a webhook; only targets named here are called."""

    url: str = Field(pattern=r"^https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?(/[!-~]*)?$")
    events: list[WantedEvent] = Field(default=["job.done", "job.error", "job.cancelled", "notify"], min_length=1)
    workflows: list[Annotated[str, Field(min_length=1, max_length=200)]] | None = Field(default=None, min_length=1)
    secret: SecretStr | None = Field(default=None, min_length=16)
    secret_file: Path | None = None
    ca_file: Path | None = None
    allow_private: bool = False
    timeout: Duration = timedelta(seconds=10)

    @model_validator(mode="after")
    def _signed_and_in_no_clear(self) -> Self:
        if (self.secret is None) == (self.secret_file is None):
            raise InvalidValue("needs a secret or a secret_file, and not both: what it is sent is signed")
        try:
            _ = urlsplit(self.url).port  # urlsplit parses the port only here
        except ValueError as error:
            raise InvalidValue(f"has a url that can't be called: {error}") from None
        if self.url.startswith("http:") and not self.allow_private:
            raise InvalidValue("has a url without TLS, which is for private networks only (allow_private = true)")
        return self


TargetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class HookSettings(Section):
    """[gateway.hooks.NAME]: a webhook that others send, to /hooks/NAME. What it brings becomes an event."""

    scheme: Literal["github", "standard", "stripe", "gitlab", "token", "none"]
    topic: Annotated[str, Field(min_length=1, max_length=1000)]
    secret_file: Path | None = None
    header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    headers: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]] = Field(default=[], max_length=20)
    dedup: Duration = timedelta(hours=24)
    allow: list[IPvAnyNetwork] = Field(default_factory=list)
    per_minute: int = Field(default=600, ge=1, le=100_000)

    @model_validator(mode="after")
    def _trusts_somebody(self) -> Self:
        if self.scheme == "none":
            if not self.allow:
                raise InvalidValue('has scheme "none" and therefore needs allow, the addresses that may call it')
        elif self.secret_file is None:
            raise InvalidValue(f'has scheme "{self.scheme}" and therefore needs a secret_file')
        if (self.header is not None) != (self.scheme == "token"):
            raise InvalidValue(
                'needs header, the name of the one with the token, if its scheme is "token", and only then'
            )
        return self


class GatewayLimits(Section):
    """[gateway.limits]: what one gateway takes at once; a client that asks for more is told when to come back."""

    connections: int = Field(default=1_000, ge=1, le=100_000)
    streams: int = Field(default=200, ge=0, le=100_000)
    streams_each: int = Field(default=10, ge=1, le=10_000)  # of one token, session or address
    searches_each: int = Field(default=2, ge=1, le=10_000)
    waiters: int = Field(default=2_000, ge=0, le=1_000_000)
    reads_per_second: float = Field(default=50, gt=0, le=1_000_000)
    writes_per_second: float = Field(default=20, gt=0, le=1_000_000)
    logins_per_minute: float = Field(default=5, gt=0, le=1_000_000)  # from one address
    body: Size = 1024 * 1024


HookName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class GatewaySettings(Section):
    """[gateway]: the HTTP API and the page. Off unless an address is given."""

    listen: str | None = Field(default=None, pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}$")
    # The names by which browsers and programs call it; an address and localhost are always taken.
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]{1,253}$")]] = Field(default_factory=list)
    base_path: str = Field(default="", pattern=r"^(/[A-Za-z0-9._-]+)*$")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: list[IPvAnyNetwork] = Field(default_factory=list)
    cors_origins: list[Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$")]] = Field(default_factory=list)
    session: Duration = timedelta(hours=12)  # a browser that is not used for so long has to log in again
    shares: bool = False  # whether one job can be shown to somebody without a token
    backlog: int | None = Field(default=None, ge=1)  # more pending jobs than this: submissions are put off
    own_jobs: bool = True  # whether the scope submit may cancel and retry what the same actor submitted
    redact: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=lambda: ["*token*", "*secret*", "*password*", "*api_key*", "*apikey*", "*credential*"]
    )
    price_per_kwh: float | None = Field(default=None, ge=0)
    currency: str = Field(default="", max_length=8)
    limits: GatewayLimits = Field(default_factory=GatewayLimits)
    hooks: dict[HookName, HookSettings] = Field(default_factory=dict)
    # Doors for the clients of other systems: each is open if its section is there.
    joblib: JoblibSettings | None = None
    seqpulse: SeqpulseSettings | None = None
    judge: JudgeSettings | None = None
    ordinaut: OrdinautSettings | None = None
    mcp: McpSettings | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidValue("needs tls_cert and tls_key together")
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.listen is not None and _is_loopback(self.listen.rpartition(":")[0])

    @property
    def url(self) -> str:
        """Where this machine's own browser finds it."""
        host, _, port = (self.listen or "127.0.0.1:0").rpartition(":")
        host = "127.0.0.1" if host in ("0.0.0.0", "[::]") else host
        return f"{'http' if self.tls_cert is None else 'https'}://{host}:{port}{self.base_path}/"


class OutboxSettings(Section):
    """[outbox]: which targets are told what happens to jobs and schedules, and how persistently."""

    at_once: int = Field(default=8, ge=1, le=1000)
    retry: Duration = timedelta(seconds=5)
    longest_retry: Duration = timedelta(hours=1)
    give_up: Duration = timedelta(days=7)
    failures: int = Field(default=5, ge=1, le=1000)
    rest: Duration = timedelta(seconds=30)
    longest_rest: Duration = timedelta(minutes=10)
    keep: Duration = timedelta(days=7)
    keep_dead: Duration = timedelta(days=90)
    targets: dict[TargetName, OutboxTarget] = Field(default_factory=dict)


_SHORTEST_RETENTION = timedelta(days=1)


def _age(written: Any) -> Any:
    if written == "forever":
        return written
    age = parse_duration(written)
    if age < _SHORTEST_RETENTION:
        raise InvalidValue("a retention is at least a day, or forever")
    return age


Age = Annotated[timedelta | Literal["forever"], BeforeValidator(_age)]


class WorkflowRetention(Section):
    """[retention.workflows.NAME]"""

    jobs: Age


class RetentionSettings(Section):
    """[retention]: how long history and finished jobs stay in the database, and which login may remove them."""

    database_url: DatabaseUrl | None = None
    events: Age = "forever"
    ledger: Age = timedelta(days=400)
    topics: Age = timedelta(days=30)
    jobs: Age = "forever"
    workflows: dict[Annotated[str, Field(min_length=1, max_length=200)], WorkflowRetention] = Field(
        default_factory=dict
    )

    @property
    def month_ages(self) -> dict[str, timedelta | None]:
        """How old a month of each table has to be to leave; None: it stays for ever."""
        return {
            "task_events": _or_none(self.events),
            "firings": _or_none(self.ledger),
            "events": _or_none(self.topics),
        }

    @property
    def jobs_age(self) -> timedelta | None:
        return _or_none(self.jobs)

    @property
    def workflow_ages(self) -> dict[str, timedelta | None]:
        """The ages of workflows that have their own; None: for ever."""
        return {name: _or_none(each.jobs) for name, each in self.workflows.items()}

    @property
    def removes_jobs(self) -> bool:
        return any(age is not None for age in (self.jobs_age, *self.workflow_ages.values()))

    @property
    def removes_anything(self) -> bool:
        """Whether somebody wants a retention. The ages that ledger and topics have by themselves are no such wish."""
        return self.removes_jobs or self.removes_months

    @property
    def removes_months(self) -> bool:
        return any(
            name in self.model_fields_set and getattr(self, name) != "forever"
            for name in ("events", "ledger", "topics")
        )


def _or_none(age: timedelta | Literal["forever"]) -> timedelta | None:
    return None if age == "forever" else age


class QuarantineSettings(Section):
    """[quarantine]: when a service on a node counts as failing, and how soon it is tried again."""

    is_on: bool = True
    failures: int = Field(default=3, ge=2, le=100)
    luck: float = Field(default=0.01, gt=0, lt=1)
    window: Duration = timedelta(hours=1)
    probe: Duration = timedelta(seconds=30)
    longest_probe: Duration = timedelta(minutes=30)


class SchedulerSettings(Section):
    """[scheduler]: how schedules fire. For the control host."""

    spread: Duration = timedelta(0)


class ProbeTarget(Section):
    """[probes.targets.NAME]: what probes may call by HTTP: this address, and what lies below it."""

    url: str = Field(pattern=r"^https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?(/[!-~]*)?$")
    ca_file: Path | None = None
    allow_private: bool = False

    @model_validator(mode="after")
    def _in_no_clear(self) -> Self:
        try:
            _ = urlsplit(self.url).port
        except ValueError as error:
            raise InvalidValue(f"has a url that can't be called: {error}") from None
        if urlsplit(self.url).query or urlsplit(self.url).fragment:
            raise InvalidValue("has a url with a query: an address and a path say what may be called")
        if self.url.startswith("http:") and not self.allow_private:
            raise InvalidValue("has a url without TLS, which is for private networks only (allow_private = true)")
        return self


class ProbeSettings(Section):
    """[probes]: how conditions are measured. For the control host."""

    at_once: int = Field(default=16, ge=1, le=1000)
    targets: dict[TargetName, ProbeTarget] = Field(default_factory=dict)


class SecretSettings(Section):
    """[secrets.NAME]: a value that steps name by ${secret('NAME')}, and that only this machine knows."""

    file: Path | None = None
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    services: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1)  # that may have it

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise InvalidValue("needs a file or an env, the name of a variable, and not both")
        if self.file is not None and not self.file.is_absolute():
            raise InvalidValue("has a file that is not an absolute path")
        return self


SecretName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class ToolTarget(ProbeTarget):
    """[tools.targets.NAME]: what tools of kind http may call: this address, and what lies below it."""

    timeout: Duration = timedelta(seconds=30)


class ToolSettings(Section):
    """[tools]: what the control host does itself for steps that use a tool."""

    at_once: int = Field(default=16, ge=1, le=1000)
    targets: dict[TargetName, ToolTarget] = Field(default_factory=dict)


class FallbackSettings(Section):
    """[fallback]: parts that can be switched off when they misbehave; accsd works without them, only slower."""

    notify: bool = True
    batching: bool = True
    adoption: bool = True
    pull: bool = True


ServiceName = Annotated[str, AfterValidator(check_service_name)]


class Settings(Section):
    """All settings of a process of accsd."""

    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    node: NodeSettings = Field(default_factory=NodeSettings)
    compose: ComposeSettings = Field(default_factory=ComposeSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    wake: WakeSettings = Field(default_factory=WakeSettings)
    sleep: SleepSettings = Field(default_factory=SleepSettings)
    fallback: FallbackSettings = Field(default_factory=FallbackSettings)
    quarantine: QuarantineSettings = Field(default_factory=QuarantineSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    probes: ProbeSettings = Field(default_factory=ProbeSettings)
    outbox: OutboxSettings = Field(default_factory=OutboxSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    tools: ToolSettings = Field(default_factory=ToolSettings)
    secrets: dict[SecretName, SecretSettings] = Field(default_factory=dict)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    services: dict[ServiceName, ServiceSettings] = Field(default_factory=dict)
    heartbeat_ttl_sec: Seconds = 120.0
    backoff_base_sec: Seconds = 15.0
    # A channel's name has at most 63 bytes and the name of a service 40.
    notify_channel_prefix: str = Field(default="accs_", pattern=r"^[a-z_][a-z0-9_]{0,22}$")
    poll_sec: Seconds = 10.0
    poll_deaf_sec: Seconds = 2.0
    drain_sec: Annotated[float, Field(ge=0, le=86400)] = 30.0
    log_level: Literal["debug", "info", "warn", "error"] = "info"
    log_format: Literal["auto", "json", "text"] = "auto"

    # No fields, because a file must not set them; `remember` fills them when all layers are known.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _concurrency: dict[str, int] = PrivateAttr(default_factory=dict)

    @property
    def lease(self) -> timedelta:
        """How long a claim holds without a heartbeat."""
        return timedelta(seconds=self.heartbeat_ttl_sec)

    @property
    def heartbeat(self) -> timedelta:
        return min(timedelta(seconds=10), self.lease / 4)

    @property
    def grace(self) -> timedelta:
        """How long after a lease's end its task is left alone."""
        return min(timedelta(seconds=1), self.lease / 10)

    @property
    def backoff_base(self) -> timedelta:
        return timedelta(seconds=self.backoff_base_sec)

    def with_database(self, url: str, *, origin: str) -> Self:
        """The settings with a database that was found, where none was configured."""
        database = self.database.model_copy(update={"url": SecretStr(url)})
        found = self.model_copy(update={"database": database})
        return found.remember({"database.url": origin}, {})

    def with_gateway(self, listen: str, *, origin: str) -> Self:
        """The settings with the gateway that was found running, where none was configured."""
        gateway = self.gateway.model_copy(update={"listen": listen})
        found = self.model_copy(update={"gateway": gateway})
        return found.remember({"gateway.listen": origin}, {})

    def remember(self, origins: Mapping[str, str], concurrency: Mapping[str, int]) -> Self:
        """Called by the loader: where the values came from, and ACC_MAX_CONCURRENCY_<SERVICE> by its last part."""
        self._origins.update(origins)
        self._concurrency.update(concurrency)
        return self

    @property
    def origins(self) -> Mapping[str, str]:
        """Where every value came from, by its dotted path. Never a value itself."""
        return dict(self._origins)

    def concurrency_of(self, service: str, default: int | None = None) -> int:
        """How many tasks of a service run here at once. `default` is the compose file's value."""
        override = self._concurrency.get(variable_suffix(service))
        if override is not None:
            return override
        if default is not None:
            return default
        return self.services[service].concurrency if service in self.services else 1

    @property
    def retention_database(self) -> DatabaseSettings:
        """The same database with the login that may remove history, where that is another one."""
        url = self.retention.database_url
        return self.database if url is None else self.database.model_copy(update={"url": url, "pool_size": 2})

    def secret_texts(self) -> Iterator[str]:
        """Every text that must not appear in a log or an event."""
        for url in (self.database.url, self.database.listen_url, self.retention.database_url):
            if url is not None:
                yield from database_url.secrets_of(url.get_secret_value())
        tokens = [provider.token for provider in self.wake.providers.values()]
        tokens += [target.secret for target in self.outbox.targets.values()]
        if self.gateway.seqpulse is not None:
            tokens += [project.hmac_secret for project in self.gateway.seqpulse.projects.values()]
        for key in (self.storage.access_key, self.storage.secret_key, self.http.token, *tokens):
            if key is not None:
                yield key.get_secret_value()

    def paths(self) -> Iterator[str]:
        """The dotted path of every value; a free-form table such as labels counts as one."""
        yield from _leaves(self)


_TABLES: Final = ("services", "providers", "targets", "workflows", "secrets", "hooks", "projects")  # by name


def _leaves(model: BaseModel, at: str = "") -> Iterator[str]:
    for name in type(model).model_fields:
        value: object = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{at}{name}.")
        elif name in _TABLES and isinstance(value, dict):
            for key, table in cast("dict[str, BaseModel]", value).items():
                yield from _leaves(table, f"{at}{name}.{key}.")
        else:
            yield at + name
