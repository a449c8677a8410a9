"""Runs one role of one adapter in its own process (started by run_peers.py inside the venv).

    child.py <adapter file> <role> <json parameters>

Everything the orchestrator needs goes through the pipe BENCH_FD as short atomic writes:
    W 1\\n  waits for BENCH_GO   R <ns>\\n  goes   .   one no-op handler started
    L <i> <ns>\\n        handler of job i      I <i> <t0> <t1>\\n   job i inserted and committed
    E <n> <t0> <t1>\\n   n jobs enqueued       (all times: CLOCK_MONOTONIC, comparable between processes)
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

now = time.monotonic_ns


class Hooks:
    def __init__(self, fd: int, params: dict):
        self.fd = fd
        self.params = params
        self.now = now
        self.deadline = now() + int(params.get("cap", 3600) * 1e9)
        self._t0 = 0
        if params.get("record"):
            self.job = self._job_line

    def ready(self) -> None:
        """Blocks until all workers of the measurement are ready, so that they start together."""
        os.write(self.fd, b"W 1\n")
        os.read(int(os.environ["BENCH_GO"]), 1)
        os.write(self.fd, b"R %d\n" % now())

    def job(self, i=None) -> None:
        os.write(self.fd, b".")

    def _job_line(self, i=None) -> None:
        os.write(self.fd, b"L %d %d\n" % (-1 if i is None else int(i), now()))

    def start(self) -> None:
        self._t0 = now()
        self.deadline = self._t0 + int(self.params.get("cap", 3600) * 1e9)

    def expired(self) -> bool:
        return now() > self.deadline

    def stop(self, n: int) -> None:
        os.write(self.fd, b"E %d %d %d\n" % (n, self._t0, now()))

    # W3: the sender is woken at fixed times, independent of how long an insert takes
    def begin_pacing(self, gap: float) -> None:
        self._gap = gap
        self._pace0 = now()

    def due_in(self, i: int) -> float:
        return max(0.0, self._gap * (i + 1) - (now() - self._pace0) / 1e9)

    def inserted(self, i: int, t0: int) -> None:
        os.write(self.fd, b"I %d %d %d\n" % (i, t0, now()))

    # run_schedules.py: whatever is killed, a line that was written stays
    @contextlib.asynccontextmanager
    async def running(self, name: str, due: float | None):
        self._note("began", name, due)
        await asyncio.sleep(self.params["work"])
        yield
        self._note("ended", name, due)

    def _note(self, what: str, name: str, due: float | None) -> None:
        with open(self.params["notes"], "a") as file:
            file.write(f"{what} {name} {'-' if due is None else due} {time.time()}\n")


def load(path: str):
    # the adapters' folder is not on sys.path: its files bear the names of the libraries they measure
    p = Path(path)
    spec = importlib.util.spec_from_file_location("adapter_" + p.stem, p)
    mod = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = mod
    spec.loader.exec_module(mod)
    return mod.ADAPTER


def main() -> None:
    path, role, raw = sys.argv[1:4]
    params = json.loads(raw)
    adapter = load(path)
    hooks = Hooks(int(os.environ["BENCH_FD"]), params)
    cfg = dict(params.get("config") or {})
    for shape in ("dag", "fan"):
        if params.get(shape):
            cfg[shape] = True
    dsn = os.environ["BENCH_DSN"]
    if cfg.get("uvloop"):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if role == "setup":
        adapter.setup(dsn)
    elif role == "enqueue":
        adapter.enqueue_many(dsn, params["n"], cfg, hooks)
    elif role == "enqueue_workflows":
        adapter.enqueue_workflows(dsn, params["n"], cfg, hooks)
    elif role == "enqueue_fans":
        adapter.enqueue_fans(dsn, params["n"], cfg, hooks)
    elif role == "paced":
        adapter.enqueue_paced(dsn, params["n"], params["gap"], cfg, hooks)
    elif role == "worker":
        adapter.run_worker(dsn, cfg, hooks)
    elif role == "declare":
        adapter.declare_schedules(dsn, params["schedules"], cfg)
    elif role == "schedules":
        adapter.run_schedules(dsn, params["schedules"], cfg, hooks)
    else:
        raise SystemExit(f"unknown role {role}")


if __name__ == "__main__":
    main()
