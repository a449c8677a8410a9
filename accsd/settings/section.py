"""What every section of the settings is made of."""

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from accsd.values.units import parse_duration, parse_size


class Section(BaseModel):
    """A section. Pydantic's own messages hide the input: it may be a password in the wrong place."""

    # Built as a part of Settings, not once more by itself: a command reads settings before all else.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86400, allow_inf_nan=False)]
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
