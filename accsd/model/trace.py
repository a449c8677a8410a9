"""W3C trace context: the trace that a job belongs to, and the TRACEPARENT that its tasks are given."""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from uuid import UUID

_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
# A later version may have more fields; version ff is none.
_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED: Final = 1
_ZERO_TRACE: Final = "0" * 32
_ZERO_SPAN: Final = "0" * 16


@dataclass(frozen=True, slots=True)
class Trace:
    """`parent` is the span that submitted the job, where it is known."""

    trace_id: str
    parent: str | None = None
    sampled: bool = True

    def traceparent(self) -> str:
        """For one child: its span id is fresh at every call."""
        return f"00-{self.trace_id}-{_fresh_span()}-{'01' if self.sampled else '00'}"


def trace_of(given: str | None, job_id: UUID) -> Trace:
    """The trace of a job that was submitted with `given`: 32 hex digits, a traceparent, or nothing.

    Without one the job's own id is its trace id. Any other text is hashed: jobs that share it share a trace.
    """
    written = (given or "").strip().lower()
    if not written:
        return Trace(_valid(job_id.hex))
    if _TRACE_ID.fullmatch(written):
        return Trace(_valid(written))
    return _from_traceparent(written) or Trace(_hashed(written))


def _from_traceparent(written: str) -> Trace | None:
    match = _TRACEPARENT.fullmatch(written)
    if match is None:
        return None
    version, trace_id, parent, flags, more = match.groups()
    if (version == "00" and more) or trace_id == _ZERO_TRACE or parent == _ZERO_SPAN:
        return None
    return Trace(trace_id, parent, bool(int(flags, 16) & _SAMPLED))


def _valid(trace_id: str) -> str:
    return _hashed(trace_id) if trace_id == _ZERO_TRACE else trace_id


def _hashed(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _fresh_span() -> str:
    span = secrets.token_hex(8)
    return span if span != _ZERO_SPAN else _fresh_span()
