"""The sections of the gateway's doors, through which the clients of other systems come in.

A door whose section is there, even an empty one, is open.
"""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from accsd.settings.section import Duration, Section


class JoblibSettings(Section):
    """[gateway.joblib]: what ZnDraw's clients of zndraw-joblib call."""


class SeqpulseSettings(Section):
    """[gateway.seqpulse]: what SeqPulse's client calls in CI."""


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
