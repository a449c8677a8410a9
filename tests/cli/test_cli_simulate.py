"""`accsd simulate`, as somebody uses it who wonders what a fleet would cost."""

from pathlib import Path

import pytest

from tests.support.cli import Cli

FLEET = """
[[machines]]
name = "m"
count = 4
services = { render = 1 }
call_fails = 0.1
[workload]
days = 1
jobs = 60
[[workload.kinds]]
service = "render"
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(None, tmp_path)


async def test_policies_stand_side_by_side_and_the_same_seed_says_the_same(cli: Cli, fleet: Path):
    said = (await cli("simulate", str(fleet), "--seed", "3")).ends(0, "60 jobs", "lower bound", "node-hours awake")
    header = said.out.splitlines()[1].split()

    assert header == ["MEASURE", "ACCSD", "SLURM", "ALWAYS-ON"]
    assert (await cli("simulate", str(fleet), "--seed", "3")).out == said.out
    assert (await cli("simulate", str(fleet), "--seed", "4")).out != said.out


async def test_programs_read_every_figure_of_the_policies_that_were_asked_for(cli: Cli, fleet: Path):
    rows = (await cli("simulate", str(fleet), "--policy", "accsd", "--seeds", "2", "-o", "json")).ends(0).json

    assert [(row["policy"], row["seed"]) for row in rows] == [("accsd", 1), ("accsd", 2)]
    assert all(row["jobs"] == 60 and row["ratio"] > 0 for row in rows)


async def test_a_trace_that_was_written_gives_the_same_report_as_the_jobs_that_were_made_up(
    cli: Cli, fleet: Path, tmp_path: Path
):
    trace = tmp_path / "jobs.jsonl"
    made_up = (await cli("simulate", str(fleet), "--write-trace", str(trace))).ends(0)

    assert len(trace.read_text().splitlines()) == 60
    assert (await cli("simulate", str(fleet), str(trace))).out == made_up.out


async def test_a_drawing_shows_machines_awake_and_at_work(cli: Cli, fleet: Path):
    said = (await cli("simulate", str(fleet), "--policy", "accsd", "--plot")).ends(0, "machines awake ░, at work █")

    assert said.out.count("█") > 5
    assert "┤" not in (await cli("simulate", str(fleet), "--policy", "accsd")).out


async def test_without_a_fleet_small_ones_are_searched_for_what_must_never_happen(cli: Cli):
    (await cli("simulate", "--seeds", "20")).ends(0, "20 small fleets", "no job starved")
    assert (await cli("simulate", "--seeds", "20", "-o", "json")).json[0]["fleets"] == 20


async def test_mistakes_are_said_in_a_sentence_with_the_usual_exit_codes(cli: Cli, fleet: Path, tmp_path: Path):
    (await cli("simulate", str(tmp_path / "none.toml"))).ends(3, "there is no file", "examples/simulation")
    (await cli("simulate")).ends(2, "name a FLEET")
    (await cli("simulate", str(fleet), str(tmp_path / "none.csv"))).ends(3, "there is no file")
    (tmp_path / "empty.jsonl").write_text("")
    (await cli("simulate", str(fleet), str(tmp_path / "empty.jsonl"))).ends(2, "has no jobs")
    (tmp_path / "typo.toml").write_text(FLEET.replace("call_fails", "call_fail"))
    (await cli("simulate", str(tmp_path / "typo.toml"))).ends(2, 'did you mean "call_fails"?')
    (tmp_path / "bare.toml").write_text(FLEET.partition("[workload]")[0])
    (await cli("simulate", str(tmp_path / "bare.toml"))).ends(2, "has no [workload]", "TRACE")


async def test_jobs_that_no_machine_could_run_are_named_and_counted(cli: Cli, fleet: Path, tmp_path: Path):
    trace = tmp_path / "jobs.csv"
    trace.write_text("submitted,service,duration,requires\n0,render,60,\n0,render,60,gpu=true\n0,audio,60,\n")
    said = await cli("simulate", str(fleet), str(trace), "--policy", "accsd")

    said.ends(0, "could run 1 jobs that want render with gpu=True", "could run 1 jobs that want audio")
    assert said.out.splitlines()[-1].split() == ["jobs", "not", "run", "2"]


async def test_a_trace_may_hold_schedules_and_the_calendar_counts_from_begin(cli: Cli, fleet: Path, tmp_path: Path):
    trace = tmp_path / "nightly.jsonl"
    trace.write_text(
        '{"schedule": "nightly", "cron": "30 2 * * SAT", "timezone": "Europe/Berlin",'
        ' "service": "render", "duration": "9m"}\n'
    )
    asked = ("simulate", str(fleet), str(trace), "--policy", "accsd", "-o", "json")

    assert [(row["due"], row["late"]) for row in (await cli(*asked)).ends(0).json] == [(1, 0)]
    assert (await cli(*asked, "--begin", "2026-03-27", "--days", "2")).ends(0).json[0]["due"] == 1
    (await cli(*asked, "--begin", "2026-03-28T12:00+01:00", "--days", "2")).ends(2, "has no jobs")
    (await cli(*asked, "--begin", "soon")).ends(2, '"soon" is no date')
    (await cli(*asked, "--write-trace", str(tmp_path / "copy.jsonl"))).ends(2, "has schedules")
    trace.write_text(trace.read_text().replace("30 2", "70 2"))
    (await cli(*asked)).ends(2, "nightly.jsonl:1:", "minute")
