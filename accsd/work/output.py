"""Reads the output of one attempt: it becomes messages, the log grows, and the answer is remembered.

Everything for one chunk happens in one synchronous step, and a seal saves the state between two chunks. So the cursor,
the lines that have only begun, the answer and the log always agree, whenever the agent dies.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from accsd.runners.base import Output, Stream
from accsd.work.protocol import Expected, LogLine, Message, TaskAnswer, parse_line
from accsd.work.protocol.framing import LineSplitter, OutputLine
from accsd.work.tasklog import LogPosition, Segment, TaskLog


class OutputReader:
    """Reads one attempt's output. It begins where the log's last seal left off: watch the execution from `cursor`."""

    def __init__(self, expected: Expected, log: TaskLog) -> None:
        place = log.place
        self._expected: Expected = expected
        self._log: TaskLog = log
        self._splitters: dict[Stream, LineSplitter] = {
            stream: LineSplitter(place.partial.get(stream)) for stream in Stream
        }
        self.cursor = place.cursor
        self.output_bytes: int = place.carried.get("output_bytes", 0)
        self.answer: TaskAnswer = TaskAnswer.from_json(place.carried["answer"]) if place.carried else TaskAnswer()

    def hear(self, output: Output) -> list[Message]:
        """The messages that end in this chunk, for the caller to act on. Their log lines are in the log already."""
        self.output_bytes += len(output.data)
        self.cursor = output.cursor
        return list(self._take(output.stream, self._splitters[output.stream].feed(output.data)))

    def close(self) -> list[Message]:
        """The messages behind the last newlines, when the work has ended. Seal once more afterwards."""
        heard: list[Message] = []
        for stream, splitter in self._splitters.items():
            if (last := splitter.close()) is not None:
                heard += self._take(stream, [last])
        return heard

    async def seal(self) -> Segment | None:
        return await self._log.seal(self._place)

    def _place(self) -> LogPosition:
        partial = {stream: splitter.partial for stream, splitter in self._splitters.items()}
        carried = {"answer": self.answer.as_json(), "output_bytes": self.output_bytes}
        return LogPosition(self.cursor, partial, carried)

    def _take(self, stream: Stream, lines: Iterable[OutputLine]) -> Iterator[Message]:
        now = datetime.now(UTC)
        for line in lines:
            message = parse_line(line, stream, self._expected)
            if isinstance(message, LogLine):
                self._log.add(stream, message, now)
            else:
                self.answer.note(message)
            yield message
