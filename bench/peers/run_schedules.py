#!/usr/bin/env python3
"""Schedules of several systems while their processes are killed with -9: what runs late, not at all, or twice?

    .venv/bin/python bench/peers/run_schedules.py                     four systems, one after the other, 6 minutes each
    .venv/bin/python bench/peers/run_schedules.py --systems accsd_pull,pgqueuer --minutes 2

Each system has two processes, each of which schedules and works; each is killed every 4 to 6 seconds (by a seed) and
started again at once. Ten schedules are due every minute and, where a system can do that, five every ten seconds. What
they run takes half a second and appends a line to a file when it begins and when it ends: nothing of that is in the
database. After the last kill there is time for what is late. Method and results: bench/NOTES.md, docs/performance.md.

The peers are installed as for run_peers.py. accsd runs in the Python that runs this.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

from child import load
from pg import Postgres
from run_peers import HERE, OURS, Child, log, make_env

SYSTEMS = "accsd_pull,pgqueuer,procrastinate,pg_boss"
NAMES = {60: [f"minute{i}" for i in range(10)], 10: [f"tenth{i}" for i in range(5)]}
WORK = 0.5
SLOTS = 2


def schedules_of(a) -> dict[str, int]:
    return {name: every for every, names in NAMES.items() if every >= a.finest for name in names}


def killed_all_the_time(a, start, args) -> tuple[float, float, int]:
    """From when to when, and how many were killed."""
    rng = random.Random(args.seed)
    kids = [start(slot) for slot in range(SLOTS)]
    time.sleep(10)  # their schedules are known to them
    for kid in kids:
        if not kid.alive():
            raise RuntimeError(f"{a.name} ended by itself\n{kid.output()}")
    began, killed = time.time(), 0
    due = [began + rng.uniform(4, 6) for _ in kids]
    while time.time() < began + args.minutes * 60:
        time.sleep(max(0.0, min(due) - time.time()))
        slot = due.index(min(due))
        kids[slot].kill()
        kids[slot] = start(slot)
        killed += 1
        due[slot] = time.time() + rng.uniform(4, 6)
    ended = time.time()
    time.sleep(args.after)
    for kid in kids:
        kid.kill()
    return began, ended, killed


def counted(notes: Path, schedules: dict[str, int], began: float, ended: float) -> dict[int, dict]:
    """By what the functions wrote. A run that does not know its due time counts for the last one before it began."""
    runs: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: {"began": [], "ended": []})
    for line in notes.read_text().splitlines() if notes.exists() else []:
        what, name, due, at = line.split()
        every = schedules[name]
        moment = float(at) - (WORK if what == "ended" else 0.0)
        runs[name, round(float(due)) if due != "-" else int(moment // every * every)][what].append(float(at))
    found = {}
    for every in sorted(set(schedules.values()), reverse=True):
        first, last = int(began // every + 1) * every, int(ended)
        wanted = [(n, due) for n, e in schedules.items() if e == every for due in range(first, last + 1, every)]
        # what was due while the last kills were made had no less time than others: --after
        times = sorted(runs[key]["began"][0] - key[1] for key in wanted if runs[key]["began"])
        cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else [float("nan")] * 99
        ends = [len(runs[key]["ended"]) for key in wanted]
        found[every] = {
            "expected": len(wanted),
            "once": ends.count(1),
            "lost": ends.count(0),
            "doubled": sum(n > 1 for n in ends),
            "begun_again": sum(max(0, len(runs[key]["began"]) - max(1, len(runs[key]["ended"]))) for key in wanted),
            "late_p50": round(cuts[49], 2),
            "late_p99": round(cuts[98], 2),
            "late_max": round(times[-1], 2) if times else None,
        }
    return found


def measure(a, pg: Postgres, env: dict, tmp: Path, args) -> dict:
    room = tmp / f"schedules-{os.getpid()}-{a.module}"
    room.mkdir()
    notes, schedules, db = room / "notes", schedules_of(a), f"s_{a.module}"
    run = SimpleNamespace(pg=pg, env={**env, "python": sys.executable} if a.own_python else env, tmp=room)
    pg.create(db)
    for role, params in (("setup", {}), ("declare", {"schedules": schedules})):
        once = Child(run, a, role, db, params, a.schedule_config)
        once.wait(60)
        if "Traceback" in once.output() or "Error" in once.output():
            raise RuntimeError(once.output())
        once.kill()

    def start(slot: int) -> Child:
        params = {
            "schedules": schedules,
            "slot": slot,
            "notes": str(notes),
            "work": WORK,
            "state": str(room / str(slot)),
        }
        return Child(run, a, "schedules", db, params, a.schedule_config)

    log(f"{a.name}: {len(schedules)} schedules, {args.minutes:g} minutes")
    began, ended, killed = killed_all_the_time(a, start, args)
    found = counted(notes, schedules, began, ended)
    pg.drop(db)
    shutil.rmtree(room)
    return {"system": a.name, "version": a.version, "killed": killed, "load": os.getloadavg()[0], "every": found}


def markdown(results: list[dict]) -> str:
    lines = [
        "| | due every | expected | run once | lost | doubled | begun again after a kill | late p50, p99, at most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for every, f in result["every"].items():
            late = f"{f['late_p50']:.2f} s, {f['late_p99']:.2f} s, {f['late_max']} s"
            numbers = " | ".join(str(f[name]) for name in ("expected", "once", "lost", "doubled", "begun_again"))
            lines.append(f"| {result['system']} {result['version']} | {every} s | {numbers} | {late} |")
    return "\n".join(lines)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--systems", default=SYSTEMS)
    ap.add_argument("--minutes", type=float, default=6)
    ap.add_argument("--after", type=float, default=45, help="seconds without kills at the end")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", default="", help="file for the result as JSON")
    args = ap.parse_args()
    tmp = Path(os.environ.get("BENCH_TMP") or Path(tempfile.gettempdir()) / "accsd-bench")
    tmp.mkdir(parents=True, exist_ok=True)
    os.chmod(tmp, 0o755)
    adapters = []
    for name in args.systems.split(","):
        file = next(path for path in (OURS / f"{name}.py", HERE / "adapters" / f"{name}.py") if path.exists())
        a = load(str(file))
        a.module, a.file = name, str(file)
        adapters.append(a)
    env = make_env(tmp, [a for a in adapters if not a.own_python])
    pg = Postgres(env["pgbin"], tmp / f"pg-{os.getpid()}")
    pg.start()
    results = []
    try:
        for a in adapters:
            results.append(measure(a, pg, env, tmp, args))
            log(json.dumps(results[-1]))
    finally:
        for kid in list(Child.live):
            kid.kill()
        pg.stop()
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1))
    print(markdown(results))


if __name__ == "__main__":
    main()
