"""Labels of nodes (`gpu=true,zone=eu`): what a machine has, and what a step requires of one."""

import re
from collections.abc import Mapping
from typing import Any

from accsd.errors import InvalidValue
from accsd.values.json import sanitise

Label = bool | int | float | str


def parse_labels(written: str) -> dict[str, Label]:
    """`gpu=true,zone=eu,cores=16` with the types that the values look like."""
    labels: dict[str, Label] = {}
    for part in filter(None, (part.strip() for part in written.split(","))):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if not separator or not name:
            raise InvalidValue("must be written as name=value,name=value, such as gpu=true,zone=eu")
        labels[name] = _typed(value)
    return labels


def check_labels(labels: dict[str, Any]) -> dict[str, Label]:
    """Plain values only: a requirement is met by being equal."""
    for name, value in labels.items():
        if not isinstance(value, str | int | float) or sanitise(value) != value:
            raise InvalidValue(f'has a label "{name[:60]}" that is neither text, nor a number, nor true or false')
    return labels


def has_labels(labels: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """Whether a node with these labels has all that is required: jsonb's `required <@ labels` for plain values, where
    true is not 1."""
    return all(name in labels and _equal(labels[name], value) for name, value in required.items())


def _equal(left: object, right: object) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def shown_label(value: object) -> str:
    """As it is written: true, not Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(text: str) -> Label:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?(0|[1-9]\d{0,17})", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", text) else text
