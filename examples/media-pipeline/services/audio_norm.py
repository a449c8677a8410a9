"""audio-norm: measures how loud the take is, and makes it as loud as asked without clipping."""

from dataclasses import dataclass

import sound
from accsd_wire import Permanent, main
from pace import pause


@dataclass
class Params:
    lufs: float = -16.0
    ceiling_db: float = -1.0  # no sample is louder than that

    def __post_init__(self):
        if not -60 <= self.lufs <= 0 or not -20 <= self.ceiling_db <= 0:
            raise ValueError("lufs is from -60 to 0, ceiling_db from -20 to 0")


def normalize(task):
    samples, rate = sound.read(task.input("ingest"))
    task.progress(0.1, "listening")
    pause(task, 0.5)
    before, peak = sound.loudness(samples, rate), sound.peak(samples)
    if peak == 0:
        raise Permanent("the take is silent: there is nothing to make louder")
    task.log(f"it has {before:.1f} LUFS, {task.params.lufs:g} are wanted", peak_db=round(sound.decibels(peak), 1))
    louder = amplified(task, samples, gain_for(task, before, peak))
    out = task.path("normalized.wav")
    sound.write(out, louder, rate)
    task.artifact(out, content_type="audio/wav")
    task.progress(0.9, "listening again")
    pause(task, 0.5)
    after = sound.loudness(louder, rate)
    return {
        "lufs_before": round(before, 1),
        "lufs": round(after, 1),
        "gain_db": round(after - before, 1),
        "peak_db": round(sound.decibels(sound.peak(louder)), 1),
        "seconds": round(len(louder) / rate, 2),
    }


def gain_for(task, before, peak):
    wanted, most = task.params.lufs - before, task.params.ceiling_db - sound.decibels(peak)
    if wanted > most:
        task.log(f"its peaks allow {most:.1f} dB only, {wanted:.1f} would be needed", "warn")
    return 10 ** (min(wanted, most) / 20)


def amplified(task, samples, gain, chunk=16384):
    louder = []
    for start in range(0, len(samples), chunk):
        share = start / len(samples)
        task.progress(0.3 + 0.6 * share, f"turned up {share:.0%}")
        louder += [gain * sample for sample in samples[start : start + chunk]]
        pause(task, 0.2)
    return louder


if __name__ == "__main__":
    main(normalize, Params)
