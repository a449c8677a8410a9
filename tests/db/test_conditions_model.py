"""The judgement in SQL against the same judgement in Python, over any samples, gaps, errors and definitions."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from accsd.planning.conditions import ConditionJudgement, Standing, judge, miss, parse_condition
from tests.support.cluster import Connection
from tests.support.conditions import condition, fresh, report, standing
from tests.support.factory import clock, pass_time
from tests.support.schedules import settle, told

pytestmark = pytest.mark.every_postgresql

DURATION = st.sampled_from([0, 5, "10s", "25s", "1m"])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    how: dict[str, Any] = {}
    match draw(st.sampled_from(["above", "below", "is"])):
        case "above":
            how["above"] = draw(st.integers(4, 6))
            if draw(st.booleans()):
                how["clear_below"] = draw(st.integers(2, 4))
        case "below":
            how["below"] = draw(st.integers(3, 5))
            if draw(st.booleans()):
                how["clear_above"] = draw(st.integers(5, 7))
        case _:
            how["is"] = draw(st.integers(4, 5))
    for name in ("samples", "clear_samples"):
        if draw(st.booleans()):
            how[name] = draw(st.integers(1, 3))
    for name in ("for", "repeat"):
        if draw(st.booleans()):
            how[name] = draw(DURATION)
    if draw(st.booleans()):
        how["stale"] = draw(st.sampled_from(["15s", "40s"]))
        how["on_unknown"] = draw(st.sampled_from(["keep", "raise", "clear"]))
    if draw(st.booleans()):
        how["fire_initially"] = True
    return how


# a value after some seconds (null: it could not be measured), or a scheduler's pass
STEPS = st.lists(
    st.tuples(st.sampled_from([1, 5, 10, 20, 50]), st.one_of(st.integers(1, 8), st.none(), st.just("settle"))),
    min_size=1,
    max_size=14,
)


async def begun(conn: Connection, which: UUID) -> datetime:
    return (await standing(conn, which))["begun_at"]


@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(how=documents(), steps=STEPS)
async def test_sql_judges_as_the_model_does(conn: Connection, how: dict[str, Any], steps: list[tuple[int, Any]]):
    """CO2 to CO7: state, level, streak and every firing."""
    name, judgement = fresh(), parse_condition(how).judgement
    which = await condition(conn, how, expr=name)
    model, fired = Standing(await begun(conn, which)), 0
    is_stale = False  # noticed: until the next value it is not noticed again
    for seconds, what in steps:
        await pass_time(conn, seconds)
        if what == "settle":
            await settle(conn)
            now = await clock(conn)
            if not is_stale and (late := _late(model, judgement, now)):
                model, is_stale = miss(model, judgement, now), late
        else:
            await report(conn, what, name=name)
            if what is not None:
                at = (await standing(conn, which))["last_at"]
                model, is_stale = judge(model, judgement, what, at), False
        fired += model.crossed
        model = _at_rest(model)
        found = await standing(conn, which)
        assert (found["state"], found["level"], found["streak"], found["streak_since"], found["raised_at"]) == (
            model.state, model.level, model.streak, model.streak_since, model.raised_at,
        )  # fmt: skip
        assert len(await told(conn, which)) == fired
    await conn.execute("SELECT accs.end_schedule((SELECT name FROM schedules WHERE id = $1))", which)


def _late(model: Standing, how: ConditionJudgement, now: datetime) -> bool:
    return how.stale is not None and now - (model.last_at or model.began) >= how.stale


def _at_rest(model: Standing) -> Standing:
    return Standing(
        model.began, model.state, model.level, model.streak, model.streak_since, model.last_at, model.raised_at
    )


def test_the_model_itself_fires_once_for_a_crossing():
    how = ConditionJudgement(above=5, samples=2)
    at = datetime.fromisoformat("2026-11-18T00:00:00+00:00")
    now, crossings = Standing(at), 0
    for value in (1, 6, 7, 8, 1, 6, 1, 6, 6):
        at += timedelta(seconds=10)
        now = judge(now, how, value, at)
        crossings += now.crossed
    assert crossings == 2
