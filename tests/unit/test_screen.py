"""Which lines of a long page are seen, and which task is chosen, key by key."""

from uuid import UUID

import pytest

from accsd.cli.screen import ScreenLine, Scroller

HEIGHT = 4


def task(number: int) -> tuple[UUID, str]:
    return UUID(int=number), "render"


def page(*tasks: int) -> list[ScreenLine]:
    """Ten lines of text, then one for each task, then two more."""
    text = [ScreenLine(f"text {n}") for n in range(10)]
    return [*text, *(ScreenLine(f"task {n}", task(n)) for n in tasks), ScreenLine("end 1"), ScreenLine("end 2")]


def seen(scroller: Scroller) -> list[str]:
    return [f"[{line.text}]" if is_chosen else line.text for line, is_chosen in scroller.window(HEIGHT)]


def pressed(scroller: Scroller, *keys: str) -> list[str]:
    for key in keys:
        scroller.press(key, HEIGHT)
    return seen(scroller)


def test_the_arrows_choose_a_task_and_bring_it_into_view():
    scroller = Scroller()
    scroller.show(page(1, 2))
    assert seen(scroller) == ["text 0", "text 1", "text 2", "text 3"]
    assert pressed(scroller, "down") == ["text 7", "text 8", "text 9", "[task 1]"]
    assert pressed(scroller, "down") == ["text 8", "text 9", "task 1", "[task 2]"]
    assert pressed(scroller, "down")[-1] == "[task 2]", "it is the last"
    assert scroller.chosen == task(2)
    assert pressed(scroller, "up", "up") == ["text 0", "text 1", "text 2", "text 3"]
    assert (scroller.chosen, pressed(scroller, "up")[0]) == (None, "text 0")


def test_what_is_chosen_stays_chosen_while_it_is_there():
    scroller = Scroller()
    scroller.show(page(1, 2))
    pressed(scroller, "down", "down")
    scroller.show(page(3, 4, 2))
    assert pressed(scroller, "up")[-1] != "[task 2]"
    assert scroller.chosen == task(4)
    scroller.show(page(2))
    assert scroller.chosen is None


def test_pages_are_turned_whatever_is_chosen():
    scroller = Scroller()
    scroller.show(page(1))
    assert pressed(scroller, "page down") == ["text 3", "text 4", "text 5", "text 6"]
    assert pressed(scroller, "end") == ["text 9", "task 1", "end 1", "end 2"]
    assert pressed(scroller, "down") == ["text 9", "[task 1]", "end 1", "end 2"]
    assert pressed(scroller, "home") == ["text 0", "text 1", "text 2", "text 3"]
    assert scroller.chosen is None, "it is not seen any more"
    assert pressed(scroller, "page up", "x") == ["text 0", "text 1", "text 2", "text 3"]


def test_on_a_page_of_text_the_arrows_scroll():
    scroller = Scroller()
    scroller.show(page()[:10])
    assert pressed(scroller, "down", "down")[0] == "text 2"
    assert pressed(scroller, "up")[0] == "text 1"


def test_the_end_of_a_log_is_followed_until_somebody_scrolls_up():
    scroller = Scroller(at_end=True)
    scroller.show(page()[:8])
    assert seen(scroller)[-1] == "text 7"
    scroller.show(page()[:10])
    assert seen(scroller)[-1] == "text 9"
    pressed(scroller, "up")
    scroller.show(page())
    assert seen(scroller) == ["text 5", "text 6", "text 7", "text 8"]


@pytest.mark.parametrize("key", ["up", "down", "page up", "page down", "home", "end"])
def test_a_page_without_lines_is_one_that_nothing_moves(key: str):
    scroller = Scroller(at_end=key == "end")
    scroller.show([])
    assert pressed(scroller, key) == []
