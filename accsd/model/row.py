"""What all models of rows share."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Row(BaseModel):
    """A row that left the database: frozen, and patient with the columns of a newer schema than this accsd's,
    because versions N and N − 1 work on one database."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def empty_for_null(value: object) -> object:
    return {} if value is None else value


# A jsonb column that a client may have left NULL, where only "nothing" can be meant.
JsonObject = Annotated[dict[str, Any], BeforeValidator(empty_for_null)]
