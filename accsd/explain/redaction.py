"""Values that look secret are not shown: what stands under a key such as `api_token` in what users have written."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Any, Final, cast

STRUCK_OUT: Final = "***"
# Where users put what they like. The names of our own columns are ours, and never secret.
OF_USERS: Final = frozenset(
    {
        "options",
        "params",
        "results",
        "with",
        "given",
        "payload",
        "trigger",
        "data",
        "default_params",
        "inputs",
        "detail",
        "condition",
        "changes",
        "definition",
    }
)


class Redaction:
    """Patterns of keys (`*token*`), without regard to upper and lower case."""

    def __init__(self, patterns: Iterable[str]) -> None:
        joined = "|".join(translate(pattern) for pattern in patterns)
        self._secret: re.Pattern[str] | None = re.compile(joined, re.IGNORECASE) if joined else None

    def of(self, column: str, value: Any) -> Any:
        """The value of a column as it may be shown."""
        if self._secret is None or column not in OF_USERS:
            return value
        return self.inside(value)

    def inside(self, value: Any) -> Any:
        """What users have written, with the values of keys that look secret struck out."""
        if self._secret is None:
            return value
        if isinstance(value, Mapping):
            found = cast("Mapping[Any, Any]", value)
            return {key: self._shown(str(key), each) for key, each in found.items()}
        if isinstance(value, list):
            return [self.inside(each) for each in cast("list[Any]", value)]
        return value

    def _shown(self, key: str, value: Any) -> Any:
        assert self._secret is not None
        if value is not None and not isinstance(value, bool) and self._secret.match(key):
            return STRUCK_OUT
        return self.inside(value)
