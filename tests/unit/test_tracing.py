"""Traces: what a job was submitted with goes on into its tasks."""

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.work.protocol.wire import Trace, trace_of

JOB = UUID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
VALID = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[01]")


def test_a_job_without_a_trace_is_traced_by_its_own_id() -> None:
    assert trace_of(None, JOB) == trace_of("", JOB) == Trace(JOB.hex)


@pytest.mark.parametrize("written", [TRACE, TRACE.upper(), f" {TRACE}\n"])
def test_thirty_two_hex_digits_are_a_trace_id(written: str) -> None:
    assert trace_of(written, JOB) == Trace(TRACE)


def test_a_traceparent_gives_trace_parent_and_sampling() -> None:
    assert trace_of(f"00-{TRACE}-{SPAN}-01", JOB) == Trace(TRACE, SPAN, sampled=True)
    assert trace_of(f"00-{TRACE}-{SPAN}-00", JOB) == Trace(TRACE, SPAN, sampled=False)
    assert trace_of(f"00-{TRACE}-{SPAN}-03", JOB).sampled


def test_a_later_version_may_have_more_fields() -> None:
    assert trace_of(f"01-{TRACE}-{SPAN}-01-what-is-to-come", JOB) == Trace(TRACE, SPAN)


@pytest.mark.parametrize(
    "written",
    [
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        "0" * 32,
        "request-17",
        "\ud800",
    ],
)
def test_what_is_no_trace_becomes_one_that_all_jobs_with_it_share(written: str) -> None:
    trace = trace_of(written, JOB)
    assert trace == trace_of(written, UUID(int=7))
    assert trace.trace_id not in (JOB.hex, TRACE)
    assert VALID.fullmatch(trace.traceparent())


def test_each_child_gets_a_span_of_its_own_in_the_same_trace() -> None:
    trace = trace_of(f"00-{TRACE}-{SPAN}-00", JOB)
    children = {trace.traceparent() for _ in range(100)}
    assert len(children) == 100
    assert all(child.startswith(f"00-{TRACE}-") and child.endswith("-00") for child in children)


@given(st.none() | st.text(st.characters()), st.uuids() | st.just(UUID(int=0)))
def test_whatever_was_given_the_traceparent_is_valid(given_text: str | None, job_id: UUID) -> None:
    assert VALID.fullmatch(trace_of(given_text, job_id).traceparent())
