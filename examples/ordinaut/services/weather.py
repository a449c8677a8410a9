"""weather: how warm it is in `city`."""

from dataclasses import dataclass

from accsd_wire import main


@dataclass
class Params:
    city: str


def forecast(task):
    return {"city": task.params.city, "temperature": 31, "sky": "clear"}


if __name__ == "__main__":
    main(forecast, Params)
