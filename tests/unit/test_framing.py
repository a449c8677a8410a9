"""However output is chopped into chunks, its lines are the same, and no line makes memory grow."""

import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from accsd.work.protocol.framing import LINE_LIMIT, OBJECT_LIMIT, TAIL, LineSplitter, OutputLine, PartialLine

pieces = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"\n", b"\r\n", b"\r", b"\x00", b'{"type": "heartbeat"}', b"\xff\xfe"]),
    # near the limits, where the off-by-ones live
    st.builds(
        lambda fill, size: fill * size,
        st.sampled_from([b"x", b"{", b"\r"]),
        st.sampled_from([LINE_LIMIT - 1, LINE_LIMIT, LINE_LIMIT + 1, OBJECT_LIMIT, OBJECT_LIMIT + 1]),
    ),
)
streams = st.lists(pieces, max_size=8).map(b"".join)


def all_lines(splitter: LineSplitter, *chunks: bytes) -> list[OutputLine]:
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    last = splitter.close()
    return lines if last is None else [*lines, last]


def chopped(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(streams, st.lists(st.integers(0, 3 * OBJECT_LIMIT), max_size=6))
def test_any_chopping_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    assert all_lines(LineSplitter(), *chopped(data, cuts)) == all_lines(LineSplitter(), data)


@given(streams)
def test_lines_are_what_stands_between_newlines_cut_at_their_limit(data: bytes) -> None:
    lines = all_lines(LineSplitter(), data)
    written = data.split(b"\n")
    if not written[-1]:
        written.pop()
    assert len(lines) == len(written)
    for line, whole in zip(lines, written, strict=True):
        limit = OBJECT_LIMIT if whole[:1] == b"{" else LINE_LIMIT
        assert line.truncated == (len(whole) > limit)
        if line.truncated:
            assert line.data == whole[:limit]
            assert line.tail == whole[limit:][-TAIL:]
        else:
            assert line.data == whole.removesuffix(b"\r")


@given(streams, st.integers(0, 3 * OBJECT_LIMIT))
def test_another_splitter_goes_on_from_a_partial_line(data: bytes, cut: int) -> None:
    before, after = chopped(data, [cut])
    first = LineSplitter()
    lines = list(first.feed(before))
    saved = PartialLine.from_json(first.partial.as_json())
    assert lines + all_lines(LineSplitter(saved), after) == all_lines(LineSplitter(), data)


def test_the_end_of_a_line_is_its_offset_behind_the_newline() -> None:
    splitter = LineSplitter()
    assert [line.end for line in splitter.feed(b"one\r\ntwo\nth")] == [5, 9]
    assert [line.end for line in splitter.feed(b"ree\n\n")] == [15, 16]
    assert list(splitter.feed(b"rest")) == []
    assert splitter.close() == OutputLine(b"rest", False, 20)
    assert splitter.close() is None


def test_bytes_count_as_fed_even_if_nobody_looks_at_the_lines() -> None:
    splitter = LineSplitter()
    splitter.feed(b"ignored\nbeg")
    assert [line.data for line in splitter.feed(b"un\n")] == [b"begun"]


def test_an_endless_line_takes_no_memory() -> None:
    splitter, chunk = LineSplitter(), b"x" * 65536
    tracemalloc.start()
    try:
        for _ in range(1600):  # 100 MiB
            assert list(splitter.feed(chunk)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024
    (line,) = splitter.feed(b"end\nnext")
    assert line.truncated
    assert len(line.data) == LINE_LIMIT
    assert line.tail.endswith(b"xend")
    assert splitter.partial.head == b"next"
