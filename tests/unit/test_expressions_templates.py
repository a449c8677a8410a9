"""Documents with expressions in their texts (EX1 to EX5)."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.errors import ExpressionInvalid, ExpressionTooExpensive, InvalidValue
from accsd.expressions import Context, Names, has_templates, render

NAMES = Names(values=("event",), moments=("event.at", "nominal"))
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
marks = st.text(alphabet="${}'\" ab1+", max_size=12)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)


def documents(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | marks, inner, max_size=4),
        max_leaves=10,
    )


def context(**payload: object) -> Context:
    return Context({"event": {"topic": "shop.order", "payload": payload, "at": NOW}, "nominal": NOW}, NAMES)


@pytest.mark.parametrize("value", [1, 1.0, True, None, "text", [1, "a"], {"a": {"b": None}}, "", [], {}])
def test_a_whole_value_keeps_its_type(value: object):
    """EX1."""
    rendered = render({"x": "${event.payload.v}", "y": ["${ event.payload.v }"]}, context(v=value))

    assert rendered == {"x": value, "y": [value]}
    assert type(rendered["x"]) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (True, "true"),
        (False, "false"),
        (25, "25"),
        (-(2**63), "-9223372036854775808"),
        (25.5, "25.5"),
        (25.0, "25"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        ([1, "a", None, 2.0], '[1,"a",null,2.0]'),
        ({"a": {"b": "é"}}, '{"a":{"b":"é"}}'),
    ],
)
def test_inside_of_a_text_a_value_is_written_out(value: object, text: str):
    """EX1."""
    assert render("<${event.payload.v}>", context(v=value)) == f"<{text}>"
    assert render("${event.payload.v}${event.payload.v}", context(v=value)) == text * 2


def test_times_are_rfc_3339_in_a_text_and_as_a_value():
    """EX1."""
    assert render(["${nominal}", "at ${event.at}"], context()) == ["2026-03-01T12:30:00Z", "at 2026-03-01T12:30:00Z"]


def test_null_inside_of_a_text_is_an_error():
    """EX1."""
    with pytest.raises(ExpressionInvalid, match=r"title: expression \"event.payload.v\": the result is null"):
        render({"title": "for ${event.payload.v}"}, context(v=None))


def test_keys_are_no_templates():
    """EX2."""
    assert render({"${event.topic}": "${event.topic}"}, context()) == {"${event.topic}": "shop.order"}


def test_doubled_marks_are_literal():
    """EX3."""
    assert render({"x": "$${event.topic}", "y": "$${a} ${event.topic}"}, context()) == {
        "x": "${event.topic}",
        "y": "${a} shop.order",
    }


def test_a_missing_field_names_the_place_and_the_expression():
    """EX4, EV10."""
    with pytest.raises(ExpressionInvalid) as refused:
        render({"mail": [{"to": "x ${event.payload.adress}"}]}, context(address="ann"), at=("options",))

    assert str(refused.value) == (
        'options.mail.0.to: expression "event.payload.adress", character 15: there is no event.payload.adress '
        '(did you mean "address"?)'
    )
    assert refused.value.place == ("options", "mail", 0, "to")
    assert "orValue" in (refused.value.hint or "")
    assert render("${event.payload.?adress.orValue('nobody')}", context()) == "nobody"


def test_an_unterminated_expression_names_the_place():
    """EX3."""
    with pytest.raises(ExpressionInvalid, match=r"a\.0: .*character 3: no } closes its \$\{"):
        render({"a": ["x ${event"]}, context())


def test_a_document_has_at_most_two_hundred_expressions():
    """EX5."""
    assert render(["${1}"] * 200, context()) == [1] * 200
    assert render("${1}" * 200, context()) == "1" * 200
    with pytest.raises(ExpressionTooExpensive, match="one more than 200"):
        render(["${1}"] * 201, context())


def test_a_rendered_document_has_at_most_256_kibibytes():
    """EX5."""
    assert len(render("${event.payload.v}", context(v="x" * 262_142))) == 262_142
    for document in ("${event.payload.v}", ["${event.payload.h}"] * 3, "${event.payload.h}" * 3):
        with pytest.raises(ExpressionTooExpensive, match="262144 bytes"):
            render(document, context(v="x" * 262_143, h="y" * 100_000))
    with pytest.raises(InvalidValue, match="the limit is 262144"):
        render(["x" * 200_000, "${event.payload.h}"], context(h="y" * 100_000))


def test_a_document_that_is_too_deep_is_refused_before_and_after():
    deep: Any = "${event.payload.v}"
    for _ in range(60):
        deep = [deep]

    with pytest.raises(InvalidValue, match="deeper than 64"):
        render(deep, context(v=[[[[[[1]]]]]]))
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidValue, match="deeper than 64"):
        render(deep, context(v=1))


def test_the_expressions_of_a_document_share_what_they_may_cost():
    heavy = "${event.payload.l.map(x, x + 1).size()}"

    assert render(heavy, context(l=list(range(1000)))) == 1000
    with pytest.raises(ExpressionTooExpensive, match="together"):
        render([heavy] * 100, context(l=list(range(1000))))


def test_a_large_event_does_not_make_simple_expressions_expensive():
    large = context(name="Ann", n=3, blob="x" * 250_000, items=[{"k": number} for number in range(10_000)])

    assert render(["${event.payload.n + 1}", "for ${event.payload.name}"] * 100, large) == [4, "for Ann"] * 100
    assert len(render("${event.payload.items}", large)) == 10_000


@given(documents(scalars | texts.filter(lambda text: "${" not in text)))
def test_a_document_without_templates_renders_to_itself(document: Any):
    """Section 13."""
    assert not has_templates(document)
    assert repr(render(document, context())) == repr(document)


@given(documents(scalars | texts | marks))
def test_types_survive_and_what_was_filled_in_is_not_scanned_again(value: Any):
    """EX1, EX2: whatever an event holds, expressions among it, comes out as it is."""
    filled = render({"x": "${event.payload.v}", "y": ["${event.payload}"]}, context(v=value))

    assert filled == {"x": value, "y": [{"v": value}]}
    assert type(filled["x"]) is type(value)


@given(st.lists(st.tuples(texts | marks, st.none() | texts | marks), max_size=5))
def test_no_output_holds_an_expression_that_was_not_or_twice_evaluated(parts: list[tuple[str, str | None]]):
    """Section 13: literal pieces come out as they were written, expressions as what they give, and nothing else."""
    payload = {f"v{number}": value for number, (_, value) in enumerate(parts) if value is not None}
    template = expected = ""
    for number, (written, value) in enumerate(parts):
        literal = f"{written}."  # A dollar before an expression would make it a literal one.
        template += literal.replace("${", "$${") + (f"${{event.payload.v{number}}}" if value is not None else "")
        expected += literal + (value or "")

    assert render({"text": template}, context(**payload)) == {"text": expected}
