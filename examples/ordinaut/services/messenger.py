"""messenger: sends `text`, here into the log; a chat or a mail would be the same."""

from dataclasses import dataclass

from accsd_wire import main


@dataclass
class Params:
    text: str


def send(task):
    task.log(task.params.text)
    return {"sent": True, "text": task.params.text}


if __name__ == "__main__":
    main(send, Params)
