"""Workflows through which data flows, as people meet them: checked and rendered before anything runs (RS8), drawn with
what each step becomes, and explained while they run."""

from pathlib import Path
from uuid import UUID

import pytest

from accsd.builder.resolver import Resolver
from accsd.db import Database
from accsd.explain.words import short
from tests.support.cli import Cli
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import claim, done, fail, finish, node, pass_time, started, step, submit, task

FILM = """\
name: film
params: {quality: 20}
steps:
  - {key: split, service: splitter, default_params: {parts: 3}}
  - key: encode
    service: encoder
    depends_on: [split]
    if: steps.split.parts.size() > 0
    for_each: steps.split.parts
    if_item: item.size > 1
    max_parallel: 2
    tolerate: 1
    delay: ${index * 60}
    default_params: {codec: opus}
    with: {name: "${item.name}", quality: "${params.quality}"}
  - {key: join, service: joiner, depends_on: [encode], with: {count: "${length(steps.encode)}"}}
"""
PARTS = (
    '{"steps": {"split": {"parts": [{"name": "a", "size": 3}, {"name": "b", "size": 1}, {"name": "c", "size": 2}]}}}'
)


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    """One version: what differs between them is in tests/db."""
    return clusters.get(SERVER_NAMES[0])


@pytest.fixture
def offline() -> Cli:
    return Cli(None)


@pytest.fixture
def cli(db_url: str) -> Cli:
    return Cli(db_url)


@pytest.fixture
def film(tmp_path: Path) -> str:
    return written(tmp_path, FILM)


def written(folder: Path, text: str) -> str:
    (folder / "film.yaml").write_text(text)
    return str(folder / "film.yaml")


# check


async def test_a_mistake_in_an_expression_is_named_with_its_line_step_and_field(offline: Cli, tmp_path: Path):
    """PL4"""
    wrong = FILM.replace("item.name", "iten.name").replace("length(steps.encode)", "length(steps.encoded)")
    said = (await offline("workflows", "check", written(tmp_path, wrong))).ends(1)
    assert 'film.yaml:15: step "encode": with.name: expression "iten.name"' in said.err
    assert 'film.yaml:16: step "join": with.count: ' in said.err
    assert 'there is no step "encoded" (did you mean "encode"?)' in said.err


async def test_a_step_that_is_not_above_is_refused_with_the_dependency_that_is_missing(offline: Cli, tmp_path: Path):
    """PL4"""
    wrong = written(tmp_path, FILM.replace(", depends_on: [encode]", ""))
    said = (await offline("workflows", "check", wrong)).ends(1, "film.yaml:16")
    assert 'the step does not depend on "encode"; add it to depends_on' in said.err


async def test_what_is_sound_and_perhaps_not_meant_is_a_warning(offline: Cli, tmp_path: Path):
    odd = FILM.replace("item.size > 1", "true").replace("${index * 60}", "60").replace("${item.name}", "x")
    said = (await offline("workflows", "check", "--no-services", written(tmp_path, odd))).ends(0, "film: ok, 3 steps")
    assert "warning: " in said.err
    assert 'film.yaml:9: step "encode": for_each: no expression of the step refers to item or index' in said.err


async def test_the_old_name_of_check_is_understood_and_not_listed(offline: Cli, film: str):
    (await offline("workflows", "validate", "--no-services", film)).ends(0, "film: ok, 3 steps")
    assert "validate" not in (await offline("workflows", "--help")).out


# render (RS8)


async def test_render_shows_what_each_item_would_be_sent(offline: Cli, film: str):
    said = (await offline("workflows", "render", film, "--step", "encode", "--with", PARTS)).ends(0)
    assert said.out.splitlines() == [
        "encode: 3 tasks, 2 at once, 1 may fail",
        '  encode[0]: runs with {"codec":"opus","name":"a","quality":20}',
        "  encode[1]: is skipped, because if_item does not hold",
        '  encode[2]: runs 2m later with {"codec":"opus","name":"c","quality":20}',
    ]


async def test_render_gives_programs_all_items(offline: Cli, tmp_path: Path):
    file = written(tmp_path, FILM.replace("steps.split.parts.size() > 0", "true").replace("if_item: item.size > 1", ""))
    parts = str([{"name": "p"}] * 30).replace("'", '"')
    asked = (
        "workflows",
        "render",
        file,
        "--step",
        "encode",
        "--with",
        f'{{"steps": {{"split": {{"parts": {parts}}}}}}}',
    )
    assert "(and 20 more; -o json has all)" in (await offline(*asked)).ends(0).out
    found = (await offline(*asked, "-o", "json")).ends(0).json
    assert (found["decision"], found["count"], len(found["tasks"])) == ("fan_out", 30, 30)
    assert found["tasks"][29]["delay"] == 29 * 60


async def test_render_says_why_a_step_would_be_skipped_or_fail(offline: Cli, film: str, tmp_path: Path):
    async def encode(sample: str, code: int) -> str:
        (tmp_path / "sample.json").write_text(sample)
        asked = ("workflows", "render", film, "--step", "encode", "--with", str(tmp_path / "sample.json"))
        return (await offline(*asked)).ends(code).out

    assert "is skipped, because its condition did not hold" in await encode('{"steps": {"split": {"parts": []}}}', 0)
    assert "refers to steps.split, which was skipped" in await encode('{"steps": {"split": null}}', 0)
    said = await encode('{"steps": {"split": {"part": []}}}', 1)
    assert "condition_error" in said
    assert 'there is no steps.split.parts (did you mean "part"?)' in said


async def test_a_step_without_expressions_is_sent_its_params(offline: Cli, film: str):
    asked = ("workflows", "render", film, "--step", "split")
    (await offline(*asked)).ends(0, 'split: runs with {"parts":3}')
    assert (await offline(*asked, "-o", "json")).json["decision"] == "run"


async def test_a_sample_must_say_something_of_each_step_that_is_read(offline: Cli, film: str):
    said = (await offline("workflows", "render", film, "--step", "join")).ends(2, "the sample says nothing")
    assert '{"steps":{"encode":[]}}' in said.err


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ('{"steps": {"splitt": {}}}', 'there is no such step (did you mean "split"?)'),
        ('{"stepz": {}}', 'an unknown part "stepz" (did you mean "steps"?)'),
        ('{"steps": {"encode": {}}}', "steps.encode of the sample must be a list: the results of its items"),
        ('{"steps": []}', "steps of the sample must be an object"),
        ('{"now": "soon", "steps": {"split": {}}}', "now of the sample must be a moment"),
        ('{"steps": ', "the sample is not JSON"),
        ("nowhere.json", "nowhere.json can't be read"),
    ],
)
async def test_a_sample_that_does_not_fit_is_refused_in_words(offline: Cli, film: str, sample: str, words: str):
    (await offline("workflows", "render", film, "--step", "encode", "--with", sample)).ends(2, words)


async def test_of_steps_that_share_a_name_a_sample_may_say_which_was_done(offline: Cli, tmp_path: Path):
    """PL3"""
    text = """\
name: branches
steps:
  - {key: small, service: s, save_as: picture}
  - {key: large, service: s, save_as: picture}
  - {key: show, service: s, depends_on: [small, large], with: {file: "${steps.picture.file}"}}
"""
    asked = ("workflows", "render", written(tmp_path, text), "--step", "show", "--with")
    by_name = '{"steps": {"picture": {"file": "a.png"}}}'
    by_key = '{"steps": {"small": {"file": "s.png"}, "large": null}}'
    (await offline(*asked, by_name)).ends(0, '{"file":"a.png"}')
    (await offline(*asked, by_key)).ends(0, '{"file":"s.png"}')


async def test_render_of_a_name_takes_what_was_applied(cli: Cli, film: str):
    (await cli("workflows", "apply", film)).ends(0, "film version 1 created")
    (await cli("workflows", "render", "film", "--step", "encode", "--with", PARTS)).ends(0, "encode: 3 tasks")
    (await cli("workflows", "render", "film", "--step", "encod")).ends(3, 'no step "encod" (did you mean "encode"?)')


# Drawn


async def test_a_drawn_workflow_shows_conditions_lists_delays_and_names(cli: Cli, film: str):
    (await cli("workflows", "apply", film)).ends(0)
    shown = (await cli("workflows", "show", "film")).ends(0).out
    assert (
        "if steps.split.parts.size() > 0, × for_each steps.split.parts, if_item item.size > 1, 2 at once, 1 may fail, "
        "after index * 60" in shown
    )


async def fanned(conn: Connection, items: int = 4, *, tolerate: int = 0, delays: list[float] | None = None) -> UUID:
    """split → encode × items → join, where encode was multiplied."""
    await node(conn, render=3)
    job_id = await submit(
        conn,
        step("split"),
        step("encode", after="split", for_each="${steps.split.parts}", max_attempts=1),
        step("join", after="encode"),
    )
    await done(conn)
    await multiply(conn, job_id, items, tolerate, delays)
    return job_id


async def multiply(
    conn: Connection, job_id: UUID, items: int, tolerate: int = 0, delays: list[float] | None = None
) -> None:
    row = await task(conn, job_id, "encode")
    given = [{"with": {"n": n}} for n in range(items)]
    arguments = (row["id"], row["generation"], given, None, tolerate, delays)
    (answer,) = await conn.fetch("SELECT * FROM accs.fan_out($1, $2, $3, $4, $5, $6)", *arguments)
    assert answer["answer"] == "accepted"


async def resolve(conn: Connection, job_id: UUID, key: str, **said: str) -> None:
    row = await task(conn, job_id, key)
    verdict = {"task_id": str(row["id"]), "generation": row["generation"], **said}
    await conn.fetch("SELECT * FROM accs.resolve_tasks($1)", [verdict])


def steps_shown(said: str) -> list[str]:
    """The lines of the drawing, without what stands beside a step."""
    lines = said.partition("\nSTEP")[2].partition("\n\n")[0].splitlines()[1:]
    return [line.rstrip() for line in lines]


async def test_a_step_that_became_many_tasks_is_one_line(cli: Cli, conn: Connection):
    job_id = await fanned(conn)
    await done(conn, 2)
    await started(conn, 1)
    drawn = steps_shown((await cli("job", short(job_id))).ends(0).out)
    assert [line.split()[:2] for line in drawn] == [["●", "split"], ["◐", "encode"], ["○", "join"]]
    assert "encode × 4  running" in drawn[1]
    assert drawn[1].endswith("2 done, 1 running, 1 queued")
    every = steps_shown((await cli("job", short(job_id), "--items")).out)
    assert [line.split()[1] for line in every] == ["split", "encode", *(f"encode[{n}]" for n in range(4)), "join"]
    assert every[2].startswith("│   encode[0]")


async def test_items_that_failed_are_always_named(cli: Cli, conn: Connection):
    job_id = await fanned(conn)
    first, second, _ = await started(conn, 3)
    await finish(conn, second)
    await fail(conn, first, message="no such codec")
    shown = (await cli("job", short(job_id))).ends(0).out
    drawn = steps_shown(shown)
    assert [line.split()[1] for line in drawn] == ["split", "encode", "encode[0]", "join"]
    assert "no such codec" in drawn[2]


async def test_a_tolerated_failure_is_told_as_one(cli: Cli, conn: Connection):
    job_id = await fanned(conn, 2, tolerate=1)
    first, second = await started(conn, 2)
    await finish(conn, second)
    await fail(conn, first)
    drawn = steps_shown((await cli("job", short(job_id))).ends(0).out)
    assert drawn[1].split()[:5] == ["●", "encode", "×", "2", "done"]
    assert drawn[1].endswith("1 done, 1 failed (tolerated)")
    assert "tolerated: " in drawn[2]


async def test_an_empty_list_and_a_false_condition_are_said_in_words(cli: Cli, conn: Connection):
    empty = await fanned(conn, 0)
    assert "its list was empty" in (await cli("job", short(empty))).out
    job_id = await submit(conn, step("a", **{"if": "params.x"}))
    await resolve(conn, job_id, "a", verdict="skip", reason="condition_false")
    shown = (await cli("job", short(job_id))).ends(0, "queued → skipped: its condition did not hold").out
    assert "its condition did not hold" in steps_shown(shown)[0]
    (await cli("why", f"{short(job_id)}/a")).ends(0, "it was skipped: condition_false (its condition did not hold)")


# why


async def test_why_says_that_a_step_is_resolved_on_the_control_host(cli: Cli, conn: Connection):
    job_id = await submit(conn, step("a", **{"if": "params.x"}))
    asked = ("why", f"{short(job_id)}/a")
    said = (await cli(*asked)).ends(0, "its condition and input are worked out on the control host, and no builder was")
    assert "→ start one: `accsd --role builder`" in said.out
    await conn.fetch("SELECT accs.note_daemon('control', '{builder}')")
    assert "no builder" not in (await cli(*asked)).ends(0, "worked out on the control host").out
    missing = {"resolver": "cel-expr-python is missing"}
    await conn.fetch("SELECT accs.note_daemon('control', '{builder}', p_problems => $1)", missing)
    (await cli(*asked)).ends(0, "which can't: cel-expr-python is missing")


async def test_why_tells_a_delay_from_a_backoff_also_of_an_item_and_after_a_retry(cli: Cli, conn: Connection):
    job_id = await fanned(conn, 2, delays=[600, 0])
    asked = ("why", f"{short(job_id)}/encode[0]")
    said = (await cli(*asked)).ends(0, "its step says that it begins later: in ")
    assert "failed" not in said.out
    assert "delayed by its step for " in (await cli("job", short(job_id), "--items")).out
    await fail(conn, *await started(conn, 1))
    await pass_time(conn, 700)
    await fail(conn, *await started(conn, 1))
    await conn.fetch("SELECT * FROM accs.retry_jobs($1, $2)", [job_id], ["encode"])
    await multiply(conn, job_id, 2, delays=[0, 600])
    (await cli("why", f"{short(job_id)}/encode[1]")).ends(0, "its step says that it begins later: in ")


async def test_a_join_lists_some_of_the_items_that_it_waits_for(cli: Cli, conn: Connection):
    job_id = await fanned(conn, 30)
    said = (await cli("why", f"{short(job_id)}/join")).ends(0).out
    assert said.count("it waits for step") == 5
    assert 'it waits for step "encode[4]", which is queued, and for 25 more items of "encode"' in said
    assert f"→ `accsd why '{short(job_id)}/encode[0]'`" in said
    assert len((await cli("why", f"{short(job_id)}/join", "-o", "json")).json) >= 30


async def test_a_join_counts_also_the_items_that_it_does_not_list(cli: Cli, conn: Connection):
    job_id = await fanned(conn, 1500)
    said = (await cli("why", f"{short(job_id)}/join")).ends(0).out
    assert 'which is queued, and for 1,495 more items of "encode"' in said
    assert len((await cli("why", f"{short(job_id)}/join", "-o", "json")).json) < 1500


async def test_of_a_job_the_items_before_a_join_come_before_a_step_on_which_nothing_depends(cli: Cli, conn: Connection):
    await node(conn, render=3)
    steps = [
        step("split"),
        step("encode", after="split", for_each="${[1]}"),
        step("join", after="encode"),
        step("lone"),
    ]
    job_id = await submit(conn, *steps)
    await done(conn)
    await multiply(conn, job_id, 1)
    rows = (await cli("why", short(job_id), "-o", "json")).ends(0).json
    assert [(row["task_key"], row["is_critical"]) for row in rows[1:]] == [("encode[0]", True), ("lone", False)]


# One item again


async def test_one_item_can_be_run_again_by_its_name(cli: Cli, conn: Connection):
    """FO8"""
    job_id = await fanned(conn, 3)
    for attempt in await started(conn, 3):
        await finish(conn, attempt)
    await resolve(conn, job_id, "join", verdict="run")
    await done(conn)
    (await cli("retry", short(job_id), "--from", "encode[7]")).ends(1, 'it has no step "encode[7]"')
    (await cli("retry", short(job_id), "--from", "encode[1]")).ends(0, "runs again from encode[1]")
    assert [row["task_key"] for row in await claim(conn, 9)] == ["encode[1]"]


# Cached results

MEMO = """
name: memo
steps:
  - { key: probe, service: render, cache: 7d, with: { n: "${params.n}" } }
  - key: each
    service: render
    depends_on: [probe]
    for_each: 2
    cache: { for: 1h, salt: v2 }
    with: { i: "${item}" }
"""


async def test_render_and_show_say_that_a_result_is_used_again(cli: Cli, offline: Cli, tmp_path: Path):
    file = written(tmp_path, MEMO)
    asked = ("workflows", "render", file, "--step")
    said = (await offline(*asked, "probe", "--with", '{"params": {"n": 1}}')).ends(0).out
    assert said == 'probe: runs with {"n":1}, unless the same input had a result in the last 7d\n'
    assert (
        "each: 2 tasks, each unless the same input had a result in the last 1h" in (await offline(*asked, "each")).out
    )
    assert (await offline(*asked, "each", "-o", "json")).ends(0).json["cache"] == {"for": 3600, "salt": "v2"}
    (await cli("workflows", "apply", file)).ends(0)
    assert "cached for 7d" in (await cli("workflows", "show", "memo")).ends(0).out
    assert (await cli("workflows", "apply", file)).ends(0).out.endswith("unchanged\n")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("cache: 400d", 'step "a": cache.for must be at least 1 second and at most 365 days'),
        ("cache: soon", 'step "a": cache.for must be a number of seconds, or text such as 90s'),
        ("cache: 1h, delay: 5", 'step "a": has a cache and a delay, which exclude each other'),
        ("cache: 1h, service: accs, uses: accs.submit", "the result of a tool of accsd itself is not cached"),
    ],
)
async def test_a_cache_that_makes_no_sense_is_refused_in_words(offline: Cli, tmp_path: Path, field: str, words: str):
    field += "" if "service" in field else ", service: s"
    file = written(tmp_path, f"name: w\nsteps:\n  - {{ key: a, {field} }}\n")
    assert words in (await offline("workflows", "check", file)).ends(1).err


async def test_a_cached_step_is_marked_and_the_cache_can_be_ignored_and_forgotten(
    cli: Cli, conn: Connection, db: Database, tmp_path: Path
):
    async def submitted(*how: str) -> UUID:
        made = UUID((await cli("submit", "memo", "-o", "n=1", *how)).ends(0).out.strip())
        while (await Resolver(db).run_once()).did or await done(conn):
            pass
        return made

    await node(conn)
    (await cli("workflows", "apply", written(tmp_path, MEMO))).ends(0)
    first = await submitted()
    shown = (await cli("job", str(await submitted()))).ends(0).out
    assert f"cached: the result of job {short(first)}" in shown
    assert "2 cached" in steps_shown(shown)[1]
    assert f"done with the result of each[1] of job {first}" in shown
    found = (await cli("job", str(await submitted()), "-o", "json")).ends(0).json
    assert [task["cached"]["job_id"] for task in found["tasks"] if task["items"] is None] == [str(first)] * 3
    ignored = (await cli("job", str(await submitted("--no-cache")))).ends(0).out
    assert "cache      ignored" in ignored
    assert "cached:" not in ignored

    forget = ("workflows", "forget-cache", "memo")
    assert (await cli(*forget, "--step", "each")).ends(0).out == "4 cached results forgotten\n"
    assert (await cli(*forget)).ends(0).out == "2 cached results forgotten\n"
    (await cli(*forget, "--step", "probes")).ends(3, 'has no step "probes" (did you mean "probe"?)')


async def test_render_names_the_steps_where_the_one_that_is_asked_for_is_not_there(offline: Cli, tmp_path: Path):
    file = tmp_path / "w.yaml"
    file.write_text("name: w\nsteps:\n  - {key: cut, service: s}\n  - {key: glue, service: s}\n")
    said = (await offline("workflows", "render", str(file), "--step", "nope")).ends(3)
    assert "its steps are cut, glue" in said.err
