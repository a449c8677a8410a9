"""thermometer: what a sensor says. Here the job's options say it; put the reading of yours in its place."""

from dataclasses import dataclass

from accsd_wire import Permanent, main


@dataclass
class Params:
    room: str


def measure(task):
    if "celsius" not in task.options:
        raise Permanent("no sensor: submit the job with -o celsius=27.5")
    return {"room": task.params.room, "celsius": float(task.options["celsius"])}


if __name__ == "__main__":
    main(measure, Params)
