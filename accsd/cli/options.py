"""The options of a job as people type them: `-o KEY=VALUE` for one, `--options` for a whole object."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, cast

import click
import orjson

from accsd.cli.output import FORMATS
from accsd.errors import InvalidValue

pairs_option: Final = click.option(
    "-o", "pairs", metavar="KEY=VALUE", multiple=True, help="An option of the job; a.b=1 makes {a: {b: 1}}. Repeatable."
)
# Where -o is an option of the job
output_by_name: Final = click.option("--output", type=click.Choice(FORMATS), default="table", show_default=True)


def merged(
    document: str | None, pairs: Sequence[str], *, option: str = "-o", earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The job's options: `earlier` ones, then --options on top, then each pair. `option` is what the pairs were typed
    with."""
    options = {**deepcopy(dict(earlier or {})), **({} if document is None else _object(document))}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            is_output = option == "-o" and pair in ("json", "jsonl", "name")
            hint = f"for that output write --output {pair}" if is_output else f"write {option} frames=240"
            raise InvalidValue(f'{option} "{pair}" is not KEY=VALUE', hint=hint)
        _put(options, path.split("."), _value(value), path)
    return options


def _object(document: str) -> dict[str, Any]:
    try:
        text = Path(document[1:]).read_bytes() if document.startswith("@") else document.encode()
        found = orjson.loads(text)
    except OSError as error:
        raise InvalidValue(f"{document[1:]} can't be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidValue(f"--options is not JSON: {error}", hint="""write --options '{"frames": 240}'""") from None
    if not isinstance(found, dict):
        raise InvalidValue("--options must be a JSON object", hint="""write --options '{"frames": 240}'""")
    return cast("dict[str, Any]", found)


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _put(options: dict[str, Any], path: Sequence[str], value: Any, written: str) -> None:
    *way, last = path
    for part in way:
        inner = options.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InvalidValue(f'-o {written}: "{part}" has a value already, so nothing can be within it')
        options = cast("dict[str, Any]", inner)
    options[last] = value
