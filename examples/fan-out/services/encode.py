"""encode: makes one part small without a loss: what changes from sample to sample is packed."""

import sys
import time
import wave
import zlib
from array import array
from dataclasses import dataclass

from accsd_wire import Permanent, main


@dataclass
class Params:
    name: str  # the part, a file that split has left
    level: int = 6

    def __post_init__(self):
        if not 0 <= self.level <= 9:
            raise ValueError("level is from 0 to 9")


def encode(task):
    if task.params.name == task.options.get("broken"):
        raise Permanent(f"{task.params.name} is broken, as the job's options say")
    with wave.open(str(task.input("split", task.params.name))) as file:
        samples = array("h", file.readframes(file.getnframes()))
    with task.cancellable():
        time.sleep(float(task.options.get("pace", 0.5)))
    changes = array(
        "h", [((now - before + 32768) & 65535) - 32768 for before, now in zip([0, *samples[:-1]], samples, strict=True)]
    )
    if sys.byteorder == "big":
        changes.byteswap()
    packed = zlib.compress(changes.tobytes(), task.params.level)
    task.path("part.z").write_bytes(packed)
    task.artifact("part.z", content_type="application/zlib")
    task.log(f"{task.params.name}: {2 * len(samples)} bytes became {len(packed)}")
    return {"name": task.params.name, "samples": len(samples), "bytes": len(packed)}


if __name__ == "__main__":
    main(encode, Params)
