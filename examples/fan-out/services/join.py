"""join: the encoded parts become one file, in their order. A part that was skipped or failed left null."""

import json
from dataclasses import dataclass

from accsd_wire import main


@dataclass
class Params:
    title: str = "untitled"


def join(task):
    parts = task.upstream["encode"]  # a list: the results of each item, in the order of the list that split gave
    with task.path("recording.bin").open("wb") as out:
        for number, part in enumerate(parts):
            if part is not None:
                out.write(task.input(f"encode[{number}]", "part.z").read_bytes())
    task.path("index.json").write_text(json.dumps({"title": task.params.title, "parts": parts}))
    task.artifact("recording.bin")
    task.artifact("index.json", content_type="application/json")
    there = [part for part in parts if part is not None]
    return {"title": task.params.title, "parts": len(there), "bytes": sum(part["bytes"] for part in there)}


if __name__ == "__main__":
    main(join, Params)
