"""How strong each pitch is at one moment of a sound. Standard library only."""

import cmath
import math
from operator import add, mul, sub

SIZE = 1024
_WINDOW = [0.5 - 0.5 * math.cos(2 * math.pi * i / SIZE) for i in range(SIZE)]
_TURNS = [cmath.exp(-2j * math.pi * k / SIZE) for k in range(SIZE // 2)]


def bands(samples, rate, moment, count, lowest=200.0, highest=3600.0):
    """From 0 (60 dB below full) to 1, for `count` bands of equal width to the ear, around a moment in seconds."""
    start = round(moment * rate) - SIZE // 2
    piece = [samples[i] if 0 <= i < len(samples) else 0.0 for i in range(start, start + SIZE)]
    strengths = [abs(value) for value in _fourier(list(map(mul, piece, _WINDOW)))[: SIZE // 2]]
    return [_level(strengths, rate, lowest, highest, number / count, (number + 1) / count) for number in range(count)]


def _level(strengths, rate, lowest, highest, low, high):
    first = lowest * (highest / lowest) ** low * SIZE / rate
    last = lowest * (highest / lowest) ** high * SIZE / rate
    strongest = max(strengths[round(first) : max(round(first) + 1, round(last))], default=0.0)
    return max(0.0, min(1.0, 1 + math.log10(max(strongest / (SIZE / 8), 1e-9)) / 3))


def _fourier(values):
    if len(values) == 1:
        return values
    even, odd = _fourier(values[::2]), _fourier(values[1::2])
    step = SIZE // len(values)
    turned = list(map(mul, odd, _TURNS[::step]))
    return [*map(add, even, turned), *map(sub, even, turned)]
