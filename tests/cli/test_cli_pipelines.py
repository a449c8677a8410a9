"""Workflows through which data flows, as people meet them: checked and rendered before anything runs (RS8), drawn with
what each step becomes, and explained while they run."""

from pathlib import Path

import pytest

from tests.support.cli import Cli

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
    (await offline("workflows", "check", "--no-services", film)).ends(0, "film: ok, 3 steps")
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
