"""Traces and fleet files: what is read, and what is said about mistakes in them."""

from pathlib import Path

import pytest

from accsd.errors import ConfigError, InvalidValue, NotFound
from accsd.simulation.fleet import read_fleet
from accsd.simulation.trace import TraceJob, read_trace, write_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulation" / "fleet.toml"


def test_a_trace_is_read_as_it_was_written(tmp_path: Path):
    jobs = [TraceJob(0, "render", 0.0, 60.5), TraceJob(1, "audio", 3.0, 7.0, 90.0, {"gpu": True, "zone": "eu"})]
    write_trace(tmp_path / "jobs.jsonl", jobs)

    assert read_trace(tmp_path / "jobs.jsonl") == jobs


def test_csv_says_the_same_in_any_order_of_lines_and_columns(tmp_path: Path):
    trace = tmp_path / "jobs.csv"
    trace.write_text(
        "service,submitted,duration,due,requires\naudio,3,7,1m30s,gpu=true;zone=eu;vram=48\n\nrender,0,1m,,\n"
    )

    assert read_trace(trace) == [
        TraceJob(0, "render", 0.0, 60.0),
        TraceJob(1, "audio", 3.0, 7.0, 90.0, {"gpu": True, "zone": "eu", "vram": 48}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"submitted": 0, "service": "a", "duration": 1}\n{"submitted": 0,', r"a.jsonl:2: not JSON"),
        ("a.jsonl", '\n{"submitted": 0, "service": "a"}', r"a.jsonl:2: duration is missing"),
        ("a.jsonl", '{"submitted": 0, "service": "a", "duratoin": 1}', r'did you mean "duration"'),
        ("a.jsonl", '{"submitted": "soon", "service": "a", "duration": 1}', r"a.jsonl:1: submitted a duration is"),
        ("a.jsonl", '{"submitted": -1, "service": "a", "duration": 1}', r"submitted a duration must be between 0"),
        ("a.jsonl", "[1]", r"a.jsonl:1: must be a table"),
        ("a.jsonl", "\n \n", r"has no jobs"),
        ("a.csv", "submitted,service,duratoin\n", r'a.csv:1: the column "duratoin" .*did you mean "duration"'),
        ("a.csv", "submitted,service,duration\n0,a\n", r"a.csv:2: 2 fields, and the first line names 3"),
        ("a.csv", "submitted,service,duration\n0,a,1\n0,,1\n", r"a.csv:3: service"),
        ("a.csv", "", r"has no jobs"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number_and_what_is_wrong(tmp_path: Path, name: str, text: str, said: str):
    (tmp_path / name).write_text(text)

    with pytest.raises(InvalidValue, match=said):
        read_trace(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("machines = 3", r"machines must be a list"),
        ("[[machines]]\nname = 'a'", r"machines.0.services is missing"),
        ("[[machines]]\nname = 'a'\nservices = {r = 1}\nboott = '1m'", r'unknown field "boott" \(did you mean "boot"'),
        ("[[machines]]\nname = 'a'\nservices = {r = 1}\n[polcy]", r'unknown field "polcy" \(did you mean "policy"'),
        ("[[machines]]\nname = 'a'\nservices = {r = 1}\nboot = 'long'", r"machines.0.boot a duration is"),
        ("[[machines]]\nname = 'a'\nservices = {r = 1}\ndead = 2", r"machines.0.dead must be less than or equal to 1"),
        ("[[machines]]\nname='a'\nservices={r=1}\n" * 2, r"two groups of machines have the name a"),
        ("machines = [", r"is not TOML"),
    ],
)
def test_a_wrong_fleet_file_is_refused_with_the_place_and_the_word_that_was_meant(tmp_path: Path, text: str, said: str):
    path = tmp_path / "fleet.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        read_fleet(path)


def test_a_file_that_is_not_there_is_said_to_be_not_there(tmp_path: Path):
    for read in (read_fleet, read_trace):
        with pytest.raises(NotFound, match="there is no file"):
            read(tmp_path / "none")


def test_the_example_is_a_fleet_of_50_machines_and_a_week_of_10_000_jobs():
    fleet = read_fleet(EXAMPLE)

    assert sum(group.count for group in fleet.machines) == 50
    assert fleet.workload is not None
    assert (fleet.workload.jobs, fleet.workload.days) == (10_000, 7)
