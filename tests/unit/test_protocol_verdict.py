"""How an attempt ended, over every combination of what can be known about it."""

from itertools import product

import pytest

from accsd.model.outcome import PERMANENT_EXIT_CODES, ErrorCode
from accsd.model.state import Level
from accsd.runners.base import Ending
from accsd.work.protocol import (
    Failure,
    Infrastructure,
    JudgeLine,
    JudgeVerdict,
    LogLine,
    ProtocolViolation,
    Result,
    ResultTooLarge,
    Success,
    TaskAnswer,
    verdict_of,
)

CODES = (None, *ErrorCode)
EXITS = (None, 0, 1, 64, 65, 78, 137, -9, -200)
JUDGED = tuple(Result({"verdict": verdict}, JudgeLine(verdict)) for verdict in JudgeVerdict)
RESULTS = (None, Result({"x": 1}), ResultTooLarge(300_000), *JUDGED)
VIOLATIONS = (None, ProtocolViolation("of another attempt"))


@pytest.mark.parametrize("cause", CODES)
def test_the_first_that_is_known_decides(cause: ErrorCode | None) -> None:
    for code, result, violation in product(EXITS, RESULTS, VIOLATIONS):
        verdict = verdict_of(Ending(code, cause, "detail"), result, violation)
        known = ErrorCode.WORKER_LOST if cause is None and code is None else cause
        if known is not None:
            expected = Infrastructure if known.is_infrastructure else Failure
            assert isinstance(verdict, expected)
            assert verdict.code is known
            assert verdict.message.endswith(": detail")
        elif violation is not None:
            assert verdict == Failure(ErrorCode.PROTOCOL_ERROR, "of another attempt")
        elif isinstance(result, ResultTooLarge):
            assert isinstance(verdict, Failure)
            assert verdict.code is ErrorCode.RESULT_TOO_LARGE
        elif code != 0 or result is JUDGED[-1]:
            assert isinstance(verdict, Failure)
            assert verdict.permanent == (code in PERMANENT_EXIT_CODES)
        else:
            assert verdict == Success(result.results if result else {})


def test_exit_code_0_is_done_with_what_came() -> None:
    assert verdict_of(Ending(0)) == Success({})
    assert verdict_of(Ending(0), Result({"x": 1})) == Success({"x": 1})


@pytest.mark.parametrize(
    ("code", "permanent"), [(1, False), (2, False), (64, True), (65, True), (75, False), (78, True)]
)
def test_the_exit_code_says_whether_another_attempt_is_useful(code: int, permanent: bool) -> None:
    verdict = verdict_of(Ending(code))
    assert verdict == Failure(ErrorCode.EXIT_NONZERO, f"it ended with exit code {code}", permanent)


def test_what_the_task_gave_as_its_reason_is_what_people_are_told() -> None:
    """By raise Permanent("…") of the SDK, or any log line of level error."""
    said = TaskAnswer()
    for message in (
        LogLine(Level.ERROR, "the disk is slow"),
        LogLine(Level.ERROR, "no such page"),
        LogLine(Level.INFO, "bye"),
    ):
        said.note(message)
    said = TaskAnswer.from_json(said.as_json())

    verdict = verdict_of(Ending(65), reason=said.reason)

    assert verdict == Failure(ErrorCode.EXIT_NONZERO, "no such page (exit code 65)", permanent=True)
    assert verdict_of(Ending(0), reason=said.reason) == Success({})


def test_a_nonzero_exit_fails_even_after_a_result() -> None:
    assert isinstance(verdict_of(Ending(1), Result({"x": 1})), Failure)


def test_a_signal_is_not_an_exit_code() -> None:
    assert verdict_of(Ending(-9)) == Failure(ErrorCode.KILLED, "SIGKILL ended it")
    assert verdict_of(Ending(-200)) == Failure(ErrorCode.KILLED, "signal 200 ended it")


def test_an_unknown_end_spends_no_attempt() -> None:
    verdict = verdict_of(Ending(), Result({"x": 1}), violation=ProtocolViolation("why"))
    assert verdict == Infrastructure(ErrorCode.WORKER_LOST, "how it ended is unknown")


@pytest.mark.parametrize("judged", JUDGED[:-1])
def test_a_judgement_is_a_result_and_no_failure(judged: Result) -> None:
    assert verdict_of(Ending(0), judged) == Success(judged.results)


@pytest.mark.parametrize("code", [0, 1])
def test_a_sandbox_that_failed_has_judged_nothing(code: int) -> None:
    result = Result({"verdict": "SE"}, JudgeLine(JudgeVerdict.SE, sandbox_error="no cgroup"))
    assert verdict_of(Ending(code), result) == Failure(ErrorCode.SANDBOX_ERROR, "the sandbox failed: no cgroup")


def test_a_kill_for_the_time_is_a_timeout_whatever_the_runner_saw() -> None:
    stopped = Failure(ErrorCode.TIMEOUT, "it ran longer than 5 s")
    for ending, result, violation in product((Ending(137, ErrorCode.KILLED), Ending(0)), RESULTS, VIOLATIONS):
        assert verdict_of(ending, result, violation, stopped=stopped) is stopped
