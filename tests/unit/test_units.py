"""Durations and sizes as people write them."""

from datetime import timedelta

import pytest

from accsd.errors import InvalidValue
from accsd.values.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("500ms", 0.5),
        ("2d", 172800),
        (timedelta(seconds=3), 3),
    ],
)
def test_a_duration_is_read(written: object, seconds: float):
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "written", ["", "soon", "10 minutes", "m", -1, "-1s", True, None, [], float("nan"), 1e300, "1e999"]
)
def test_what_is_no_duration_is_refused(written: object):
    with pytest.raises(InvalidValue):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (17, 17),
        ("17", 17),
        ("1k", 1024),
        ("512m", 512 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("1.5 g", 1536 * 1024**2),
        ("1TB", 1024**4),
        ("10b", 10),
    ],
)
def test_a_size_is_read_in_powers_of_1024_as_docker_does(written: object, size: int):
    assert parse_size(written) == size


BEYOND_64_BITS = ["9" * 400, "9" * 400 + "g", 10**400, "8388608t"]


@pytest.mark.parametrize("written", ["", "much", "1x", "-1", -1, True, None, 1.5, *BEYOND_64_BITS])
def test_what_is_no_size_is_refused(written: object):
    with pytest.raises(InvalidValue):
        parse_size(written)
