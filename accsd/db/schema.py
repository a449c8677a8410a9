"""The texts that make a database ours: schema.sql, and the numbered migrations that lead to it.

schema.sql is always the newest version, for a new installation. An older one gets there through
`migrations/NNNN_name.sql`, where NNNN is the version that the file leads to.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCHEMA_VERSION: Final = 1

_PACKAGE: Final = Path(__file__).parents[1]
_MIGRATIONS: Final = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from the version before to `version`."""

    version: int
    name: str
    sql: str


def schema_sql() -> str:
    """schema.sql: inside the package in a wheel, beside it in a checkout."""
    shipped = _PACKAGE / "schema.sql"
    return (shipped if shipped.exists() else _PACKAGE.parent / "schema.sql").read_text()


def roles_sql() -> str:
    return (Path(__file__).parent / "roles.sql").read_text()


def read_migrations(folder: Path = _MIGRATIONS) -> list[Migration]:
    """The migrations in the order of their versions."""
    found = [
        Migration(int(named[1]), named[2], path.read_text())
        for path in folder.glob("*.sql")
        if (named := re.fullmatch(r"(\d{4})_(\w+)\.sql", path.name))
    ]
    return sorted(found, key=lambda migration: migration.version)
