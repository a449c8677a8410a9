"""split: takes the recording that came with the job, or hums one itself, and cuts it into parts."""

import math
import wave
from array import array
from dataclasses import dataclass

from accsd_wire import Permanent, main

RATE = 8000
HUMMED = "cdefgab."  # a note for each part; the last one is silence


@dataclass
class Params:
    parts: int = 8

    def __post_init__(self):
        if not 1 <= self.parts <= 500:
            raise ValueError("parts is from 1 to 500")


def split(task):
    samples, rate = read(task.input()) if task.files() else (hummed(task.params.parts), RATE)
    length = math.ceil(len(samples) / task.params.parts)
    parts = []
    for number in range(task.params.parts):
        part, name = samples[number * length : (number + 1) * length], f"part-{number:03}.wav"
        write(task.path(name), part, rate)
        task.artifact(name, content_type="audio/wav")
        parts.append({"name": name, "seconds": len(part) / rate, "peak": max(map(abs, part), default=0)})
        task.progress((number + 1) / task.params.parts)
    return {"parts": parts}


def hummed(parts):
    samples = array("h")
    for number in range(parts):
        note = HUMMED[number % len(HUMMED)]
        step = 2 * math.pi * 220 * 2 ** (HUMMED.index(note) / 6) / RATE
        loud = 0 if note == "." else 8000
        samples.extend(round(loud * math.sin(step * i)) for i in range(RATE))
    return samples


def read(path):
    try:
        with wave.open(str(path)) as file:
            if file.getsampwidth() != 2 or file.getnchannels() != 1:
                raise Permanent(f"{path.name} is not a recording of one channel with 16 bits")
            return array("h", file.readframes(file.getnframes())), file.getframerate()
    except (EOFError, wave.Error) as error:
        raise Permanent(f"{path.name} is not a recording: {error}") from error


def write(path, samples, rate):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())


if __name__ == "__main__":
    main(split, Params)
