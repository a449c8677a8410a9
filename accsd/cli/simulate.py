"""`accsd simulate`: what a fleet would cost and how long its jobs would wait, on virtual time."""

import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from accsd.cli.output import Shown, is_terminal, output_option, say, show
from accsd.errors import InvalidValue
from accsd.simulation.fleet import Fleet, read_fleet
from accsd.simulation.plot import highest, plot
from accsd.simulation.rehearse import POLICIES, rehearse, wanted_by_none
from accsd.simulation.report import Report, mean
from accsd.simulation.stress import stress
from accsd.simulation.trace import MONDAY, TraceJob, read_trace, write_trace
from accsd.simulation.workload import make_jobs

_LINE_AGAIN: Final = Shown("\r\x1b[K")
_PATH: Final = click.Path(dir_okay=False, path_type=Path)
_MEASURES: Final[dict[str, str]] = {
    "hours": "node-hours awake",
    "ratio": "times the lower bound",
    "kwh": "energy, kWh",
    "wait_p50": "wait, median, s",
    "wait_p95": "wait, 95 of 100, s",
    "wait_max": "wait, longest, s",
    "late": "due times missed",
    "late_by_a_boot": "by more than a boot",
    "latest": "by at most, s",
    "wakes": "machines woken",
    "wake_failures": "calls in vain",
    "flaps": "woken again at once",
    "skipped": "runs skipped",
    "unserved": "jobs not run",
}
Progress = Callable[[str], None]


@click.command()
@click.argument("fleet", type=_PATH, required=False)
@click.argument("trace", type=_PATH, required=False)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(list(POLICIES)),
    multiple=True,
    help="Compare only these; can be given several times.  [default: all]",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Same seed, same report.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="So many runs, with this seed and the next; without FLEET, of small random fleets that fail a lot.",
)
@click.option(
    "--begin",
    metavar="TIME",
    help=f"When second 0 of TRACE is, for its schedules, such as 2026-03-28.  [default: {MONDAY:%Y-%m-%d}, a Monday]",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=3660),
    help="How long the schedules of TRACE go on.  [default: until its last job is wanted; a week without jobs]",
)
@click.option("--write-trace", "copy", type=_PATH, help="Write the jobs that were made up, as JSON lines.")
@click.option(
    "--plot/--no-plot", "drawn", default=None, help="Draw machines awake over time.  [default: on a terminal]"
)
@output_option()
def simulate(
    fleet: Path | None,
    trace: Path | None,
    policies: tuple[str, ...],
    seed: int,
    seeds: int,
    begin: str | None,
    days: float | None,
    copy: Path | None,
    drawn: bool | None,
    output: str,
) -> None:
    """Rehearse a fleet on virtual time: the daemon's own planning, machines that are only numbers.

    FLEET is a TOML file of machines; TRACE has a job on each line (.jsonl, or .csv), or in .jsonl a schedule, by the
    same rules as `accsd schedules`. Without TRACE the jobs are made up as [workload] in FLEET says. A week of 50
    machines takes some seconds.

    \b
    accsd simulate fleet.toml
    accsd simulate fleet.toml jobs.csv --policy accsd --policy slurm -o json
    accsd simulate fleet.toml nightly.jsonl --begin 2026-03-28 --days 3
    accsd simulate fleet.toml --seeds 5          the mean of five weeks
    accsd simulate --seeds 1000                  search 1000 small failing fleets for what must never happen
    """
    if fleet is None:
        _search(range(seed, seed + seeds), output)
        return
    machines = read_fleet(fleet)
    when = _Period(_moment(begin), None if days is None else timedelta(days=days))
    chosen = policies or tuple(POLICIES)
    reports: list[Report] = []
    with _progress() as tell:
        for number in range(seed, seed + seeds):
            jobs = _jobs(machines, fleet, trace, when, number, copy if number == seed else None)
            reports += rehearse(machines, jobs, chosen, number, tell)
    if output == "table":
        _table(reports, chosen, seeds)
        if drawn or (drawn is None and is_terminal()):
            _draw([report for report in reports if report.seed == seed])
    else:
        show([report.figures() for report in reports], {}, output, name="policy")


class _Period(NamedTuple):
    """When the rehearsal begins, and how long schedules go on (None: as long as the other jobs)."""

    begin: datetime
    span: timedelta | None


def _moment(written: str | None) -> datetime:
    if written is None:
        return MONDAY
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise InvalidValue(f'"{written[:40]}" is no date', hint="write 2026-03-28, or 2026-03-28T12:00+01:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _jobs(
    fleet: Fleet, path: Path, trace: Path | None, when: _Period, seed: int, copy: Path | None
) -> Sequence[TraceJob]:
    if trace is not None:
        jobs = read_trace(trace, when.begin, when.span)
        if copy is not None and any(job.run is not None for job in jobs):
            raise InvalidValue(f"{trace} has schedules, which --write-trace can't write as jobs", hint="copy the file")
    elif fleet.workload is not None:
        jobs = make_jobs(fleet.workload, seed)
    else:
        raise InvalidValue(f"{path} has no [workload], and no trace is given", hint="name a TRACE, or add a [workload]")
    if copy is not None:
        write_trace(copy, jobs)
    for lane, count in wanted_by_none(fleet, jobs).items():
        say(f"accsd: no machine could run {count} jobs that want {lane}", err=True)
    return jobs


def _search(seeds: Sequence[int], output: str) -> None:
    if len(seeds) == 1:
        raise click.UsageError("name a FLEET; or give --seeds, to search so many small random fleets")
    with _progress() as tell:
        found = [_told(seed, seeds, tell) for seed in seeds]
    row = {
        "fleets": len(found),
        "jobs": sum(outcome.jobs for outcome in found),
        "unserved": sum(outcome.unserved for outcome in found),
        "calls": sum(outcome.calls for outcome in found),
        "wakes": sum(outcome.wakes for outcome in found),
    }
    if output != "table":
        show([row], {}, output, name="fleets")
        return
    say(
        f"{row['fleets']} small fleets, {row['jobs']} jobs, {row['calls']} calls, {row['wakes']} machines woken: "
        "no job starved, no machine slept at work or too soon"
    )
    say(f"({row['unserved']} jobs could run only on machines that are broken for good)")


def _told(seed: int, seeds: Sequence[int], tell: Progress) -> Any:
    if seed % 20 == 0:
        tell(f"fleet {seed - seeds[0]} of {len(seeds)}")
    return stress(seed)


def _table(reports: Sequence[Report], policies: Sequence[str], seeds: int) -> None:
    by_policy = {name: mean([report for report in reports if report.policy == name]) for name in policies}
    any_report = next(iter(by_policy.values()))
    rows: list[dict[str, Any]] = [
        {"measure": label} | {name: _figure(measure, figures[measure]) for name, figures in by_policy.items()}
        for measure, label in _MEASURES.items()
    ]
    runs = f"{seeds} seeds, their means; " if seeds > 1 else ""
    say(
        f"{runs}{any_report['jobs']:.0f} jobs, {any_report['due']:.0f} of them due at a time; "
        f"lower bound {any_report['bound']:.0f} node-hours"
    )
    show(rows, {"measure": "measure"} | {name: name for name in policies}, "table")


def _figure(measure: str, value: float) -> str:
    return f"{value:.3f}" if measure == "ratio" else f"{value:.0f}"


def _draw(reports: Sequence[Report]) -> None:
    width = min(100, shutil.get_terminal_size()[0])
    compared = [report for report in reports if report.policy != "always-on"] or reports
    scale = highest(compared, width)
    for report in compared:
        say("\n" + "\n".join(plot(report, width, scale)))


@contextmanager
def _progress() -> Generator[Progress]:
    """Writes one line on stderr, on a terminal only, and removes it at the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        yield lambda said: say(_LINE_AGAIN, said, err=True, end="")
    finally:
        say(_LINE_AGAIN, err=True, end="")
