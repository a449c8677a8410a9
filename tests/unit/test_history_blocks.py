"""An archive's blocks: an ordinary .gz file, whose index finds one job, and whose every changed byte is noticed."""

import gzip
import hashlib
import io
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.history import blocks
from accsd.history.blocks import BLOCK, Damaged, Index, Packer, adjacent, chained, unpack

JOBS = st.lists(st.integers(0, 40).map(lambda number: str(UUID(int=number))), max_size=60).map(sorted)


def packed(jobs: list[str]) -> tuple[bytes, Packer]:
    target = io.BytesIO()
    packer = Packer(target)
    for number, job in enumerate(jobs):
        packer.add(job, f'{{"id":{number},"job_id":"{job}","data":null}}')
    packer.end()
    return target.getvalue(), packer


def index_of(packer: Packer) -> Index:
    return Index("task_events_2026_05", packer.rows, packer.size, packer.sha256, "", "d", tuple(packer.blocks))


@given(JOBS, st.integers(1, 400))
def test_the_blocks_of_a_job_hold_all_its_lines_and_together_they_are_a_gzip_file(jobs: list[str], size: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", size)
        stored, packer = packed(jobs)
    whole = gzip.decompress(stored)
    assert (packer.rows, packer.size) == (len(jobs), len(whole))
    assert packer.sha256 == hashlib.sha256(whole).hexdigest()
    index = Index.unpacked(index_of(packer).packed())
    assert index == index_of(packer)
    for job in {*jobs, str(UUID(int=99))}:
        found = b"".join(unpack(b, stored[b.offset : b.offset + b.length]) for b in index.blocks_of(job))
        assert found.count(job.encode()) == jobs.count(job)
    runs = adjacent(index.blocks, 100)
    assert [block for run in runs for block in run] == list(index.blocks)
    assert all(len(run) == 1 or run[-1].offset + run[-1].length - run[0].offset <= 100 for run in runs)


def test_the_same_lines_make_the_same_bytes():
    jobs = [str(UUID(int=1))] * 3
    assert packed(jobs)[0] == packed(jobs)[0]


def test_a_block_ends_at_its_size():
    line = "x" * (BLOCK // 2)
    packer = Packer(io.BytesIO())
    for _ in range(5):
        packer.add(str(UUID(int=1)), line)
    packer.end()
    assert [block.rows for block in packer.blocks] == [2, 2, 1]


@given(st.data())
def test_a_changed_byte_is_noticed_wherever_it_is(data: st.DataObject):
    stored, packer = packed([str(UUID(int=1))] * 5)
    at = data.draw(st.integers(0, len(stored) - 1))
    changed = stored[:at] + bytes([stored[at] ^ data.draw(st.integers(1, 255))]) + stored[at + 1 :]
    with pytest.raises(Damaged, match="not those that were written"):
        unpack(packer.blocks[0], changed)


def test_an_archive_without_events_is_a_gzip_file_too():
    stored, packer = packed([])
    assert gzip.decompress(stored) == b""
    assert packer.rows == 0
    assert packer.subjects is None


@pytest.mark.parametrize("data", [b"", b"[]", b'{"blocks":[1]}', b'{"format":1,"blocks":[]}', b"\xff"])
def test_an_index_that_is_none_is_damaged(data: bytes):
    with pytest.raises(Damaged, match="not readable"):
        Index.unpacked(data)


def test_every_part_of_an_archive_is_in_its_digest():
    digests = {
        chained(*parts)
        for parts in [("", "p", 1, "s"), ("x", "p", 1, "s"), ("", "q", 1, "s"), ("", "p", 2, "s"), ("", "p", 1, "t")]
    }
    assert len(digests) == 5
