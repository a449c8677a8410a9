"""Sound as a list of samples from -1 to 1: read, written, measured. Standard library only."""

import array
import math
import sys
import wave


def read(path):
    """Samples of a 16-bit WAV file, its channels mixed into one, and its rate."""
    with wave.open(str(path), "rb") as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"{path} has samples of {8 * file.getsampwidth()} bits, not 16")
        data = array.array("h", file.readframes(file.getnframes()))
        channels, rate = file.getnchannels(), file.getframerate()
    if sys.byteorder == "big":
        data.byteswap()
    return [sum(data[i : i + channels]) / (channels * 32768) for i in range(0, len(data), channels)], rate


def write(path, samples, rate):
    data = array.array("h", (max(-32768, min(32767, round(32767 * sample))) for sample in samples))
    if sys.byteorder == "big":
        data.byteswap()
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, len(data), "NONE", "not compressed"))
        file.writeframes(data.tobytes())


def decibels(amplitude):
    return 20 * math.log10(max(amplitude, 1e-9))


def peak(samples):
    return max(map(abs, samples), default=0.0)


def rms(samples):
    return math.sqrt(sum(sample * sample for sample in samples) / max(1, len(samples)))


def loudness(samples, rate):
    """In LUFS, after ITU-R BS.1770: filtered like the ear, in blocks of 400 ms, without the silent ones."""
    heard = _filtered(_filtered(samples, _shelf(rate)), _high_pass(rate))
    size, hop = round(0.4 * rate), round(0.1 * rate)
    starts = range(0, max(1, len(heard) - size + 1), hop)
    powers = [rms(heard[start : start + size]) ** 2 for start in starts]
    loud = [power for power in powers if _lufs(power) > -70]
    if not loud:
        return -70.0
    gate = _lufs(sum(loud) / len(loud)) - 10
    kept = [power for power in loud if _lufs(power) > gate]
    return _lufs(sum(kept) / len(kept))


def _lufs(power):
    return -0.691 + 10 * math.log10(max(power, 1e-12))


def _filtered(samples, coefficients):
    b0, b1, b2, a1, a2 = coefficients
    x1 = x2 = y1 = y2 = 0.0
    out = []
    for x in samples:
        y = b0 * x + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2
        x1, x2, y1, y2 = x, x1, y, y1
        out.append(y)
    return out


def _shelf(rate):
    """The head: 4 dB more above 1.7 kHz."""
    k, q, gain = math.tan(math.pi * 1681.974450955533 / rate), 0.7071752369554196, 10 ** (3.999843853973347 / 20)
    root = gain**0.4996667741545416
    a0 = 1 + k / q + k * k
    b0, b1, b2 = gain + root * k / q + k * k, 2 * (k * k - gain), gain - root * k / q + k * k
    return b0 / a0, b1 / a0, b2 / a0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0


def _high_pass(rate):
    """The ear: little below 40 Hz."""
    k, q = math.tan(math.pi * 38.13547087602444 / rate), 0.5003270373238773
    a0 = 1 + k / q + k * k
    return 1.0, -2.0, 1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0
