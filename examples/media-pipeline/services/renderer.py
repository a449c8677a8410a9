"""renderer: draws the sound, as a still picture and as one that moves along with it."""

from dataclasses import dataclass

import sound
import spectrum
from accsd_serving import serve_if_asked
from accsd_wire import main
from pace import pause
from png import Writer

WIDTH, HEIGHT, MARGIN = 640, 360, 20
BAR = 4  # columns for each bar of the waveform
COLUMNS = (WIDTH - 2 * MARGIN) // BAR
BANDS = 40
WAVE_HEIGHT, SPECTRUM_HEIGHT = 140, 150

GROUND, QUIET, HEAD, PLAYED, HEAT = 0, 1, 2, 16, 128  # colours; PLAYED and HEAT are the first of 64 and of 128


@dataclass
class Params:
    frames_per_second: int = 10

    def __post_init__(self):
        if not 1 <= self.frames_per_second <= 30:
            raise ValueError("frames_per_second is from 1 to 30")


def render(task):
    samples, rate = sound.read(task.input("audio"))
    seconds = len(samples) / rate
    wave = Wave(samples)
    draw_poster(task, wave, samples, rate, seconds)
    frames = max(2, round(seconds * task.params.frames_per_second))
    draw_video(task, wave, samples, rate, seconds, frames)
    return {"seconds": round(seconds, 2), "frames": frames, "width": WIDTH, "height": HEIGHT}


def draw_poster(task, wave, samples, rate, seconds):
    task.progress(0, "poster")
    columns = [spectrum.bands(samples, rate, seconds * (x + 0.5) / COLUMNS, BANDS) for x in range(COLUMNS)]
    rows = []
    for y in range(SPECTRUM_HEIGHT):
        band = BANDS - 1 - y * BANDS // SPECTRUM_HEIGHT
        rows.append(framed(b"".join(bytes([HEAT + round(127 * levels[band])]) * BAR for levels in columns)))
    with Writer(task.path("poster.png"), WIDTH, HEIGHT, palette()) as writer:
        writer.add(page(wave.rows(COLUMNS), rows))
    task.artifact("poster.png")


def draw_video(task, wave, samples, rate, seconds, frames):
    falling = [0.0] * BANDS
    with Writer(task.path("video.png"), WIDTH, HEIGHT, palette(), frames, task.params.frames_per_second) as writer:
        for frame in range(frames):
            now = frame / frames
            levels = spectrum.bands(samples, rate, now * seconds, BANDS)
            falling = list(map(max, levels, [0.85 * before for before in falling]))
            writer.add(page(wave.rows(int(now * COLUMNS)), bars(falling)))
            task.progress(0.1 + 0.9 * (frame + 1) / frames, f"frame {frame + 1} of {frames}")
            pause(task, 0.03)
    task.artifact("video.png")


class Wave:
    """The whole sound from left to right, drawn once as heard and once as still to come."""

    def __init__(self, samples):
        size = max(1, len(samples) // COLUMNS)
        loudest = [sound.peak(samples[i * size : (i + 1) * size]) for i in range(COLUMNS)]
        top = max(loudest) or 1.0
        self._heights = [max(1, round(value / top * WAVE_HEIGHT / 2)) for value in loudest]
        self._played = [self._row(y, lambda column: PLAYED + column * 64 // COLUMNS) for y in range(WAVE_HEIGHT)]
        self._to_come = [self._row(y, lambda column: QUIET) for y in range(WAVE_HEIGHT)]

    def rows(self, played):
        cut = min(played, COLUMNS) * BAR
        head = bytes([HEAD]) * 2 if played < COLUMNS else b""
        later = cut + len(head)
        return [framed(self._played[y][:cut] + head + self._to_come[y][later:]) for y in range(WAVE_HEIGHT)]

    def _row(self, y, colour):
        away = abs(y - WAVE_HEIGHT // 2)
        return b"".join(
            bytes([colour(column) if away <= height else GROUND]) * (BAR - 1) + bytes([GROUND])
            for column, height in enumerate(self._heights)
        )


def bars(levels):
    """The strength of each band, from low to high notes."""
    width = COLUMNS * BAR // BANDS
    rows = []
    for y in range(SPECTRUM_HEIGHT):
        height = 1 - y / SPECTRUM_HEIGHT
        lit, dark = bytes([HEAT + round(127 * height)]) * (width - 3) + bytes([GROUND]) * 3, bytes([GROUND]) * width
        rows.append(framed(b"".join(lit if level >= height else dark for level in levels)))
    return rows


def framed(row):
    return bytes(MARGIN) + row + bytes(WIDTH - MARGIN - len(row))


def page(above, below):
    empty = bytes(WIDTH)
    gap = HEIGHT - len(above) - len(below) - 2 * MARGIN
    return [*[empty] * MARGIN, *above, *[empty] * gap, *below, *[empty] * MARGIN]


def palette():
    colours = [(16, 19, 26)] * 256
    colours[QUIET], colours[HEAD] = (58, 70, 92), (255, 255, 255)
    colours[PLAYED : PLAYED + 64] = blend([(64, 224, 208), (90, 130, 255)], 64)
    colours[HEAT : HEAT + 128] = blend([(16, 19, 26), (70, 30, 120), (220, 60, 90), (255, 200, 80)], 128)
    return colours


def blend(stops, count):
    steps = []
    for number in range(count):
        place = number / (count - 1) * (len(stops) - 1)
        left = min(int(place), len(stops) - 2)
        steps.append(
            tuple(round(stops[left][i] * (left + 1 - place) + stops[left + 1][i] * (place - left)) for i in range(3))
        )
    return steps


def work():
    main(render, Params)


if __name__ == "__main__":
    serve_if_asked(work)  # --serve :8080
    work()
