"""appointments: what is in the calendar from `start` to `end`."""

from dataclasses import dataclass

from accsd_wire import main


@dataclass
class Params:
    start: str
    end: str


def events(task):
    task.log(f"asked for {task.params.start} to {task.params.end}")
    return {"events": [{"title": "Stand-up", "at": "09:30"}, {"title": "Dentist", "at": "15:00"}]}


if __name__ == "__main__":
    main(events, Params)
