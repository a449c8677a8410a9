"""The sections of the gateway's doors, through which the clients of other systems come in.

A door whose section is there, even an empty one, is open.
"""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from accsd.settings.section import Duration, Section, Size


class JoblibSettings(Section):
    """[gateway.joblib]: what ZnDraw's clients of zndraw-joblib call."""


class SeqpulseSettings(Section):
    """[gateway.seqpulse]: what SeqPulse's client calls in CI."""


_USERNAME = r"^[A-Za-z0-9_.-]{3,32}$"
_HASH = r"^scrypt\$\d{1,8}\$\d{1,3}\$\d{1,3}\$[A-Za-z0-9_-]{16,100}\$[A-Za-z0-9_-]{32,100}$"


class JudgeSettings(Section):
    """[gateway.judge]: what clients of an online judge call."""

    # Who may log in, with what `python -m accsd.gateway.judge.accounts` makes of a password. A user's number is the
    # place in this table.
    accounts: dict[Annotated[str, Field(pattern=_USERNAME)], Annotated[str, Field(pattern=_HASH)]] = Field(
        default_factory=dict
    )
    admins: list[Annotated[str, Field(pattern=_USERNAME)]] = Field(default_factory=list)
    login: Duration = timedelta(hours=12)  # so long a login lasts
    service: str = Field(default="judge", min_length=1, max_length=100)
    languages: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9+#-]{0,31}$")], Annotated[int, Field(ge=1, le=1000)]
    ] = Field(default_factory=lambda: {"cpp": 1, "python": 3}, min_length=1)
    inflight: int = Field(default=500, ge=1, le=1_000_000)  # submissions that wait or run; more are put off
    per_address: int = Field(default=60, ge=1, le=10_000_000)  # submissions, and logins, in a minute
    per_user: int = Field(default=120, ge=1, le=10_000_000)
    dedup: bool = True  # the same submission of the same user within ten minutes is the same job
    code: Size = 64 * 1024
    zip: Size = 50 * 1024 * 1024


class OrdinautSettings(Section):
    """[gateway.ordinaut]: what Ordinaut's clients call."""


class McpSettings(Section):
    """[gateway.mcp]: what assistants call by the Model Context Protocol; `accsd mcp` heeds it, too."""

    preview: Duration = timedelta(minutes=10)  # a preview that is not confirmed within this time is no more
    least_interval: Duration = timedelta(minutes=1)  # between two runs of a schedule that an assistant makes
    rows: int = Field(default=100, ge=1, le=500)  # of one answer, at most
    # Tokens, by id, whose writes happen without a preview where they can be repeated and touch what their actor made.
    unconfirmed: list[Annotated[str, Field(pattern=r"^[a-z0-9]{8}$")]] = Field(default_factory=list)
