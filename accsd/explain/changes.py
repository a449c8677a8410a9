"""What the state machine answered to a person who wanted to change something, in words: what is so now, or why it was
refused, and the next command to try."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from accsd.db.answers import Answer, Verdict
from accsd.db.retry import DeadLetterAnswer
from accsd.db.views.jobs import JobRow
from accsd.explain.words import short
from accsd.values.validation import did_you_mean


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The answer for one row, for people and programs."""

    id: UUID | int | str
    answer: Verdict
    reason: str | None
    sentence: str
    next: str | None = None

    @property
    def is_refused(self) -> bool:
        return self.answer is Verdict.REFUSED

    def document(self) -> dict[str, Any]:
        return {"id": self.id, "answer": self.answer, "reason": self.reason, "message": self.sentence}


def cancelled(answer: Answer) -> ChangeOutcome:
    named = short(answer.id)
    match answer.verdict:
        case Verdict.ACCEPTED:
            return ChangeOutcome(answer.id, answer.verdict, None, f"job {named} is cancelled")
        case Verdict.REPEATED:
            return ChangeOutcome(answer.id, answer.verdict, None, f"job {named} was cancelled before")
        case Verdict.REFUSED:
            said = f"job {named} can't be cancelled: it has ended already, as {answer.held.status}"
            return ChangeOutcome(answer.id, answer.verdict, answer.reason, said, f"accsd job {named}")


def retried(answer: Answer, step: str | None, steps: Sequence[str]) -> ChangeOutcome:
    """`steps` are the job's own steps, for a suggestion if it has none of that name."""
    named = short(answer.id)
    where = f" from {step}" if step else ""
    match answer.verdict:
        case Verdict.ACCEPTED:
            said = f"job {named} runs again{where}"
            return ChangeOutcome(answer.id, answer.verdict, None, said, f"accsd job {named}")
        case Verdict.REPEATED:
            said = f"job {named} is running again already"
            return ChangeOutcome(answer.id, answer.verdict, None, said, f"accsd job {named}")
        case Verdict.REFUSED:
            why, then = _why_not_retried(answer, step, steps)
            said = f"job {named} can't be retried{where}: {why}"
            return ChangeOutcome(answer.id, answer.verdict, answer.reason, said, then)


def _why_not_retried(answer: Answer, step: str | None, steps: Sequence[str]) -> tuple[str, str]:
    named = short(answer.id)
    look = f"accsd job {named}"
    match answer.reason:
        case "not_in_expected_state":
            return f"it has not ended, it is {answer.held.status}", f"accsd cancel {named}, or {look}"
        case "never_instantiated":
            return "it ended before it had any task", f"{look} says why; correct that and submit another one"
        case "nothing_to_retry":
            return "all of its steps have succeeded", f"accsd retry {named} --from STEP runs one of them again"
        case "step_not_found":
            return f'it has no step "{step}"{did_you_mean(step or "", steps)}', look
        case "earlier_step_unfinished":
            return f"a step that {step} depends on has not succeeded", f"accsd retry {named}, or --from an earlier step"
        case reason:
            return reason or "unknown", look


def rerun(job_id: UUID, made: UUID) -> ChangeOutcome:
    said = f"job {short(made)} runs in place of job {short(job_id)}, with other options"
    return ChangeOutcome(made, Verdict.ACCEPTED, None, said, f"accsd job {short(made)}")


def rerun_too_early(job: JobRow) -> ChangeOutcome:
    said = f"job {short(job.id)} can't be retried: it has not ended, it is {job.status}"
    then = f"accsd cancel {short(job.id)}, or accsd submit {job.workflow}"
    return ChangeOutcome(job.id, Verdict.REFUSED, "not_in_expected_state", said, then)


def one_off_ended(job_id: UUID) -> ChangeOutcome:
    said = f"job {short(job_id)} can't be retried: its command was in the memory of an `accsd run`"
    return ChangeOutcome(job_id, Verdict.REFUSED, "one_off", said, "accsd run -- CMD…")


def settled(answer: DeadLetterAnswer, done: str) -> ChangeOutcome:
    """`done` says what the dead letter does now: "goes back to work"."""
    named = f"dead letter {answer.dead_letter_id}"
    match answer.verdict:
        case Verdict.ACCEPTED:
            return ChangeOutcome(answer.dead_letter_id, answer.verdict, None, f"{named} {done}")
        case Verdict.REPEATED:
            return ChangeOutcome(answer.dead_letter_id, answer.verdict, None, f"{named}: that was done before")
        case Verdict.REFUSED:
            why, then = _why_not_settled(answer.reason)
            return ChangeOutcome(answer.dead_letter_id, answer.verdict, answer.reason, f"{named}: {why}", then)


def _why_not_settled(reason: str | None) -> tuple[str, str]:
    match reason:
        case "not_found":
            return "there is none of that id", "accsd dead list"
        case "already_redriven":
            return "it was sent back to work already, so there is nothing to dismiss", "accsd dead list --all"
        case "not_in_expected_state":
            return (
                "its task does not stand in error any more: it was retried or its job was cancelled",
                "accsd dead list --all",
            )
        case other:
            return other or "refused", "accsd dead list --all"
