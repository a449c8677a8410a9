"""What every body of a request shares."""

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """A body. A field that is not known is a mistake: one that was ignored silently would be found much later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reason(Body):
    """Why somebody does it, for those who wonder."""

    reason: str | None = Field(default=None, max_length=1000)
