"""Object keys (A15): the literal layout, and no way out of it."""

import posixpath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.errors import InvalidValue
from accsd.storage import build_key

JOB = UUID(int=1)


@pytest.mark.parametrize(
    ("arguments", "options", "key"),
    [
        (("input",), {}, f"inputs/{JOB}/render/input"),
        (("output", "wav"), {}, f"outputs/{JOB}/render/output.wav"),
        (("output", ".tar.gz"), {"attempt_id": 3}, f"outputs/{JOB}/render/3/output.tar.gz"),
        (("log",), {}, f"logs/{JOB}/render/log.jsonl"),
        (("log",), {"attempt_id": 1, "name": "stderr"}, f"logs/{JOB}/render/1/stderr.jsonl"),
        (("output",), {"name": "frames/001.png"}, f"outputs/{JOB}/render/frames/001.png"),
        (("output", "png"), {"name": "frames/001.png"}, f"outputs/{JOB}/render/frames/001.png"),
    ],
)
def test_keys_are_laid_out_as_the_specification_says(arguments: tuple[Any, ...], options: dict[str, Any], key: str):
    assert build_key(JOB, "render", *arguments, **options) == key
    assert build_key(str(JOB).upper(), "render", *arguments, **options) == key


@pytest.mark.parametrize(
    "arguments",
    [
        {"job_id": "../../etc"},
        {"job_id": ""},
        {"task_key": ".."},
        {"task_key": "a/b"},
        {"task_key": ""},
        {"kind": "outputs"},
        {"kind": "../x"},
        {"ext": "../x"},
        {"ext": "a/b"},
        {"ext": "a..b"},
        {"ext": "x" * 17},
        {"attempt_id": -1},
        {"name": "/etc/passwd"},
        {"name": "../x"},
        {"name": "a/../../x"},
        {"name": "a//b"},
        {"name": "./a"},
        {"name": "a/"},
        {"name": "a\\b"},
        {"name": "a\x00b"},
        {"name": "a\nb"},
        {"name": "\ud800"},
        {"name": "x" * 256},
        {"name": "/".join(["x" * 200] * 6)},
    ],
)
def test_whatever_could_lead_elsewhere_is_refused(arguments: dict[str, Any]):
    sound: dict[str, Any] = {"job_id": JOB, "task_key": "render", "kind": "output"}

    with pytest.raises(InvalidValue):
        build_key(**(sound | arguments))


@given(name=st.text(st.sampled_from("a./\\\x00…") | st.characters(), min_size=1), ext=st.none() | st.text("a./"))
def test_no_name_and_no_extension_escapes_the_prefix(name: str, ext: str | None):
    try:
        key = build_key(JOB, "render", "output", ext, attempt_id=2, name=name)
    except InvalidValue:
        return
    assert key.startswith(f"outputs/{JOB}/render/2/")
    assert posixpath.normpath(key) == key
    assert len(key.encode()) <= 1024
