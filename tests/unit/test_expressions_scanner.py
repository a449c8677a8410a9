"""Where an expression begins and ends in a text (EX3)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.errors import ExpressionInvalid
from accsd.expressions.scanner import Embedded, pieces


def expressions(text: str) -> list[str]:
    return [piece.expression for piece in pieces(text) if isinstance(piece, Embedded)]


@pytest.mark.parametrize(
    "expression",
    [
        "a.b",
        "{'x': {'y': 1}}",
        "a['}']",
        'a["}"]',
        r"'it\'s }'",
        r'"a \" } b"',
        r"'\\'",
        r"r'\'",
        r'R"\"',
        r"br'}\'",
        r"b'}'",
        "'''it's a } and a ' '''",
        '"""a " } "" b"""',
        "r'''\\}'''",
        "'''\n}\n'''",
        r"'''\'''}'''",
        "a // a comment with } and '\n+ b",
        "a.`x-y}`",
        "'http://example.org/}'",
        "'${not.mine}'",
        "'é𝄞}'",
    ],
)
def test_an_expression_ends_at_its_own_brace_whatever_it_holds(expression: str):
    """EX3: braces of maps, strings of every kind, comments and quoted names belong to the expression."""
    assert pieces(f"before ${{{expression}}} after") == ("before ", Embedded(expression, 8), " after")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("no template", ("no template",)),
        ("costs 5 $ {x}", ("costs 5 $ {x}",)),
        ("$${a}", ("${a}",)),
        ("x $${a} y $${", ("x ${a} y ${",)),
        ("$$${a}", ("$${a}",)),
        ("$${a}${b}", ("${a}", Embedded("b", 6))),
        ("${a}$${b}", (Embedded("a", 1), "${b}")),
        ("${a}${b}", (Embedded("a", 1), Embedded("b", 5))),
        ("${ a\n}", (Embedded("a", 1),)),
        ("}${a}}{", ("}", Embedded("a", 2), "}{")),
    ],
)
def test_a_text_is_cut_into_literals_and_expressions(text: str, expected: tuple[object, ...]):
    """EX3: `$${` is a literal `${`."""
    assert pieces(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("hello ${name", 7, "no } closes its ${"),
        ("${a} and ${b", 10, "no } closes its ${"),
        ("${ {'a': 1 }", 1, "no } closes its ${"),
        ("${ 'abc }", 1, "no ' closes the one at character 4"),
        ('${ """abc }', 1, 'no " closes'),
        ("${ a // }", 1, "no } closes its ${"),
        ("${", 1, "no } closes its ${"),
    ],
)
def test_an_expression_that_nothing_closes_is_refused_with_its_position(text: str, position: int, words: str):
    with pytest.raises(ExpressionInvalid, match=f"character {position}: ") as refused:
        pieces(text)

    assert words in str(refused.value)
    assert refused.value.position == position


@given(st.lists(st.text(alphabet="ab${}'\"\\ \n/`r", max_size=8), max_size=5))
def test_any_text_is_cut_without_loss_or_refused(parts: list[str]):
    text = "".join(parts)
    try:
        found = pieces(text)
    except ExpressionInvalid:
        return
    literal = "".join(piece.replace("${", "$${") for piece in found if isinstance(piece, str))
    held = sum(len(piece.expression) for piece in found if isinstance(piece, Embedded))

    assert len(literal) + held <= len(text)
    assert [text[piece.position - 1 :][:2] for piece in found if isinstance(piece, Embedded)] == ["${"] * len(
        expressions(text)
    )


@given(st.text())
def test_a_text_comes_back_when_its_marks_are_doubled(text: str):
    assert "".join(map(str, pieces(text.replace("${", "$${")))) == text


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "${'" + "a" * 1_000_000,
        '${"""' * 200_000,
        "${" * 500_000,
        "${" + "{" * 1_000_000,
        "${'a'}" * 150_000,
        "$" * 1_000_000,
    ],
    ids=["string", "triple", "openings", "braces", "many", "dollars"],
)
def test_a_megabyte_of_anything_is_read_once(text: str):
    with suppress(ExpressionInvalid):
        assert pieces(text)
