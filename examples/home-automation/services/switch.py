"""switch: switches a device. Here it only says so; the same state twice does no harm."""

from dataclasses import dataclass

from accsd_wire import main


@dataclass
class Params:
    device: str
    state: bool


def switch(task):
    task.log(f"{task.params.device} is {'on' if task.params.state else 'off'} now")
    return {"device": task.params.device, "state": task.params.state}


if __name__ == "__main__":
    main(switch, Params)
