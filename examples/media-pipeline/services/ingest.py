"""ingest: takes the recording that came with the job, or plays a melody itself. Either way the take is quiet."""

import math
from dataclasses import dataclass
from functools import lru_cache

import sound
from accsd_wire import Permanent, main
from pace import pause

RATE = 22050
SCALE = {"c": 0, "d": 2, "e": 4, "f": 5, "g": 7, "a": 9, "b": 11, "C": 12, "D": 14, "E": 16}
PARTIALS = ((1, 1.0), (2, 0.45), (3, 0.2), (5, 0.08))  # of a plucked string, more or less


@dataclass
class Params:
    melody: str = "c e g C . g e c f a C . a f g b D . b g c e g C"
    beat: float = 0.25  # seconds
    level_db: float = -30.0  # how loud the loudest moment of the take is

    def __post_init__(self):
        unknown = set(self.melody.split()) - SCALE.keys() - {"."}
        if unknown or not self.melody.strip():
            raise ValueError(f"melody: {' '.join(sorted(unknown)) or 'nothing'} cannot be played")
        if not 0.05 <= self.beat <= 2 or not -80 <= self.level_db <= 0:
            raise ValueError("beat is from 0.05 to 2 seconds, level_db from -80 to 0")


def ingest(task):
    take = task.path("take.wav")
    if given := task.files():
        name, path = next(iter(given.items()))
        task.log(f"the take is {name}, which came with the job")
        try:
            samples, rate = sound.read(path)
        except (ValueError, EOFError, sound.wave.Error) as error:
            raise Permanent(f"{name} is not a recording: {error}") from error
    else:
        samples, rate = played(task), RATE
    sound.write(take, samples, rate)
    task.artifact(take, content_type="audio/wav")
    return {"seconds": round(len(samples) / rate, 2), "rms_db": round(sound.decibels(sound.rms(samples)), 1)}


def played(task):
    notes, beat = task.params.melody.split(), round(task.params.beat * RATE)
    samples = [0.0] * (beat * (len(notes) + 4))
    for number, note in enumerate(notes):
        task.progress(number / len(notes), f"note {number + 1} of {len(notes)}")
        pause(task, 0.08)
        if note != ".":
            for i, sample in enumerate(plucked(261.63 * 2 ** (SCALE[note] / 12), 4 * beat), number * beat):
                samples[i] += sample
    task.progress(1, "the last note fades")
    gain = 10 ** (task.params.level_db / 20) / max(1e-9, sound.peak(samples))
    return [gain * sample for sample in samples]


@lru_cache
def plucked(frequency, length):
    """A note that fades out."""
    step = 2 * math.pi * frequency / RATE
    return [
        min(1.0, i / 200, (length - i) / 400)
        * math.exp(-4.5 * i / length)
        * sum(share * math.sin(n * step * i) for n, share in PARTIALS)
        for i in range(length)
    ]


if __name__ == "__main__":
    main(ingest, Params)
