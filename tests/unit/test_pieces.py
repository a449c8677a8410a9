"""Output is cut so that no piece takes long to hear."""

import pytest

from accsd.runners.base import pieces


@pytest.mark.parametrize("data", [b"", b"x" * 65536, b"\n" * 65536, b"y\n" * 32768, b"x" * 60000 + b"\n" * 5536])
def test_all_of_it_comes_in_order_and_no_piece_has_many_lines(data: bytes):
    cut = list(pieces(data))
    assert b"".join(cut) == data
    assert max(piece.count(b"\n") for piece in cut) <= 1000


def test_what_has_few_lines_is_not_cut():
    assert list(pieces(b"a line\n" * 1000)) == [b"a line\n" * 1000]
