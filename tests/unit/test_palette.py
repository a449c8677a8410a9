"""The colours of the page, read from its stylesheet: everybody can tell the states apart, and read every word.

A difference is CIE76 in CIELAB. Deuteranopic, protanopic and tritanopic vision are simulated with the matrices of
Machado, Oliveira and Fernandes (2009) at full severity, which apply to linear light.
"""

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

TOKENS = (Path(__file__).parents[2] / "accsd" / "web" / "tokens.css").read_text(encoding="utf-8")
LEAST_DIFFERENCE: Final = 18
LEAST_CONTRAST: Final = 4.5

Colour = tuple[float, float, float]

FAMILIES = {
    "states": ("queued", "starting", "running", "done", "error", "backoff", "cancelled"),
    "machines": ("asleep", "waking", "booting", "idle", "busy", "away", "drained"),
    "explain": tuple(
        f"explain-{name}" for name in ("dependency", "wake", "boot", "capacity", "key", "wait", "running", "lost")
    ),
}
VISION: dict[str, Sequence[Colour]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
_TO_XYZ: Sequence[Colour] = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE: Colour = (0.95047, 1.0, 1.08883)


def declared() -> dict[str, tuple[str, str]]:
    """Each custom property that is a colour, light and dark; one that is another one's is looked up."""
    pairs = dict(re.findall(r"--([\w-]+): (light-dark\(#\w{6}, #\w{6}\)|var\(--[\w-]+\));", TOKENS))
    found: dict[str, tuple[str, str]] = {}
    for name, value in pairs.items():
        light, dark = re.findall(r"#\w{6}", _looked_up(value, pairs))
        found[name] = light, dark
    return found


def _looked_up(value: str, among: dict[str, str]) -> str:
    return _looked_up(among[value[6:-1]], among) if value.startswith("var") else value


COLOURS = declared()


def linear(colour: str) -> Colour:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def applied(matrix: Sequence[Colour], to: Colour) -> Colour:
    first, second, third = (sum(a * b for a, b in zip(row, to, strict=True)) for row in matrix)
    return first, second, third


def seen(colour: str, vision: str) -> Colour:
    """In CIELAB."""
    light = applied(VISION[vision], linear(colour))
    xyz = applied(_TO_XYZ, (min(1, max(0, light[0])), min(1, max(0, light[1])), min(1, max(0, light[2]))))
    x, y, z = (_curve(part / white) for part, white in zip(xyz, _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _curve(part: float) -> float:
    return part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116


def difference(one: str, other: str, vision: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(seen(one, vision), seen(other, vision), strict=True)) ** 0.5


def contrast(one: str, other: str) -> float:
    dim, bright = sorted(applied(_TO_XYZ, linear(each))[1] for each in (one, other))
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_fills_of_a_family_look_alike(family: str, theme: str, vision: str):
    fills = {name: COLOURS[name][theme == "dark"] for name in FAMILIES[family]}
    alike = {
        (a, b): round(difference(fills[a], fills[b], vision), 1)
        for a, b in combinations(fills, 2)
        if difference(fills[a], fills[b], vision) < LEAST_DIFFERENCE
    }
    assert alike == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ground", ["ground", "surface", "raised", "hover", "selected"])
def test_every_ink_can_be_read_on_every_ground(theme: str, ground: str):
    place = theme == "dark"
    inks = [name for name in COLOURS if name.endswith("-ink")] + ["ink", "muted", "accent"]
    weak = {
        name: round(contrast(COLOURS[name][place], COLOURS[ground][place]), 2)
        for name in inks
        if contrast(COLOURS[name][place], COLOURS[ground][place]) < LEAST_CONTRAST
    }
    assert weak == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_edge_of_a_control_and_the_word_on_a_primary_button_stand_out(theme: str):
    place = theme == "dark"
    assert contrast(COLOURS["on-accent"][place], COLOURS["accent"][place]) >= LEAST_CONTRAST
    assert contrast(COLOURS["edge"][place], COLOURS["raised"][place]) >= 3
    assert contrast(COLOURS["accent"][place], COLOURS["ground"][place]) >= 3


def test_every_colour_has_both_themes():
    web = Path(__file__).parents[2] / "accsd" / "web"
    for file in web.glob("*.css"):
        written = re.sub(r"light-dark\([^()]*\)", "", file.read_text(encoding="utf-8"))
        assert re.findall(r":[^:;{}]*(#[0-9a-fA-F]{3,8}\b)[^:;{}]*;", written) == [], file.name
