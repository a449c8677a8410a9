"""Cases by the thousand, each made from a seed and its number, so that any of them can be made again alone.

    @at_length(cases=500)
    def test_of_a_door(run: Run):
        with run.judged() as findings:
            for case in run.cases():
                thing = make(case.random)
                with findings.about(case, thing):
                    ...  # whatever is raised here is a finding; the run goes on

`pytest -m soak` runs the same with further seeds. ACC_TEST_SEED chooses the first seed, ACC_TEST_CASE one case of it.
What may hang, swallow all memory or end the process is tried in a process of its own: `contained`.
"""

import json
import os
import re
import resource
import select
import signal
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import pytest

SEED: Final = int(os.environ.get("ACC_TEST_SEED", "1"))
ONLY: Final = os.environ.get("ACC_TEST_CASE")
_FURTHER_SEEDS: Final = 4
_SHOWN: Final = 2_000
_LISTED: Final = 10
_REPEATED: Final = re.compile(r"(.{1,12}?)\1{20,}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Case:
    seed: int
    number: int

    @property
    def random(self) -> Random:
        """The same at every call."""
        return Random(f"{self.seed}/{self.number}")

    def __str__(self) -> str:
        return f"seed {self.seed}, case {self.number}"


@dataclass(frozen=True, slots=True)
class Run:
    seed: int
    count: int

    def cases(self) -> Iterator[Case]:
        numbers = range(self.count) if ONLY is None else [int(ONLY)]
        return (Case(self.seed, number) for number in numbers)

    @property
    def random(self) -> Random:
        """For what belongs to no case: the world around them."""
        return Random(f"{self.seed}/world")

    @contextmanager
    def judged(self) -> Generator["Findings"]:
        """Fails at the end with all that was found, and with how to find it again."""
        findings = Findings()
        yield findings
        if findings.kinds:
            raise AssertionError(
                f"{findings}\nTo repeat it: ACC_TEST_SEED={self.seed} (all cases), and ACC_TEST_CASE=… for one alone"
            )


@dataclass(slots=True)
class Findings:
    """What was found, one of each kind with the case that showed it first."""

    kinds: dict[str, str] = field(default_factory=dict[str, str])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    @contextmanager
    def about(self, case: Case, thing: object) -> Generator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            self.add(case, thing, f"{type(error).__name__}: {error}", _where(error))

    def add(self, case: Case, thing: object, problem: str, where: str = "") -> None:
        kind = f"{where} {problem.partition(': …')[0][:80]}"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.kinds.setdefault(kind, f"{case}: {brief(problem)}\n  {where}\n  {brief(repr(thing))}")

    def __str__(self) -> str:
        told = [f"{text}\n  ({self.counts[kind]} times)" for kind, text in list(self.kinds.items())[:_LISTED]]
        return f"{len(self.kinds)} kinds of findings\n" + "\n".join(told)


def at_length(cases: int) -> pytest.MarkDecorator:
    """So many cases by default, and as many with each further seed when it may take long."""
    default = pytest.param(Run(SEED, cases), id=f"seed{SEED}")
    further = [
        pytest.param(Run(seed, cases), id=f"seed{seed}", marks=[pytest.mark.soak, pytest.mark.timeout(600)])
        for seed in range(SEED + 1, SEED + 1 + _FURTHER_SEEDS)
    ]
    return pytest.mark.parametrize("run", [default, *further])


def brief(text: str) -> str:
    """With what repeats itself said once."""
    text = _REPEATED.sub(lambda found: f"{found[1]}«{len(found[0]) // len(found[1])} times»", text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _where(error: Exception) -> str:
    """The last line of ours on the way: of the code that is tried, or of the test."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if ".venv" not in frame.filename]
    ours = [frame for frame in frames if "/accsd/" in frame.filename and "/tests/" not in frame.filename] or frames
    return f"{'/'.join(Path(ours[-1].filename).parts[-3:])}:{ours[-1].lineno}" if ours else ""


def contained(
    run: Run,
    make: Callable[[Random], T],
    attempt: Callable[[T], None],
    *,
    within: float = 5.0,
    memory: int = 1024**3,
) -> None:
    """Tries each case in a child, which is killed if one takes too long; a child has so much memory more than now."""
    with run.judged() as findings:
        left = list(run.cases())
        while left:
            ended, how = _in_child(left, make, attempt, findings, within=within, memory=memory)
            if ended < len(left):
                findings.add(left[ended], make(left[ended].random), how)
            left = left[ended + 1 :]


def _in_child(
    cases: list[Case],
    make: Callable[[Random], T],
    attempt: Callable[[T], None],
    findings: Findings,
    *,
    within: float,
    memory: int,
) -> tuple[int, str]:
    """How many of them came to an end, and why the next one did not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(cases, make, attempt, writing, memory)
    os.close(writing)
    ended, how = 0, "its process ended"
    try:
        with os.fdopen(reading, "rb", buffering=0) as answers:
            while ended < len(cases):
                if not select.select([answers], [], [], within)[0]:
                    how = f"it did not end within {within:g} s"
                    break
                if not (line := answers.readline()):
                    break
                if problem := json.loads(line):
                    findings.add(cases[ended], make(cases[ended].random), *problem)
                ended += 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return ended, how


def _be_the_child(
    cases: list[Case], make: Callable[[Random], Any], attempt: Callable[[Any], None], writing: int, memory: int
) -> None:
    """Never returns: what pytest has set up belongs to the parent."""
    try:
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        for case in cases:
            problem: tuple[str, str] | None = None
            try:
                attempt(make(case.random))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
                problem = (f"{type(error).__name__}: {str(error)[:_SHOWN]}", _where(error))
            os.write(writing, json.dumps(problem).encode() + b"\n")
    finally:
        os._exit(0)
