"""notes: writes a line for people. Here into the log; a chat or a mail would be the same."""

from dataclasses import dataclass

from accsd_wire import main


@dataclass
class Params:
    text: str


def note(task):
    task.log(task.params.text)


if __name__ == "__main__":
    main(note, Params)
