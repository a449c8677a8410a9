"""Does the judge's door hold its line when far more is submitted than can be judged, and is anything lost?

    python -m bench.doors_judge                 500 submissions a second for 20 s
    python -m bench.doors_judge --rate 100 --seconds 5

A real gateway with the judge's door is asked over HTTP at a rate that does not wait for answers; a pull worker stands
for the judges and takes so many submissions a second as it is told. Everything that was taken is judged in the end, and
is in the table of submissions once; what was not taken was told to come back, and when. Bounded in count and time.
"""

import argparse
import asyncio
import io
import socket
import statistics
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx

from accsd.db.access import create_token
from accsd.db.pool import Database
from accsd.model.access import Scope
from accsd.settings import DatabaseSettings
from bench.throwaway import cpu_of, installed, postgres, process

MOST = 100_000  # submissions
LONGEST = 300  # seconds, for the judges to end what was taken
WORKER = """
import asyncio
from accsd.sdk import Service, Task
service = Service("judge")
@service.task
async def judge(task: Task):
    await asyncio.sleep({seconds})
    return {{"verdict": "OK", "status": "Accepted", "time_ms": 1, "mem_kb": 1}}
service.run(concurrency={slots})
"""
CONFIG = """
[gateway]
listen = "127.0.0.1:{port}"
[gateway.judge]
inflight = {inflight}
per_address = 10000000
per_user = 10000000
[storage]
url = "file://{folder}/objects"
"""


@dataclass
class Told:
    """What clients were told."""

    taken: list[str] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=dict)  # by status: how long the answer took
    retry_after: list[int] = field(default_factory=list)
    cut: int = 0  # connections that were lost before an answer came

    def note(self, answer: httpx.Response, took: float) -> None:
        body = answer.json()
        self.codes[f"{answer.status_code} {body.get('code', body.get('status'))}"] += 1
        self.seconds.setdefault(answer.status_code, []).append(took)
        if answer.status_code == 200:
            self.taken.append(body["job_id"])
        elif answer.status_code == 429:
            assert (body["error"], body["reason"]) == ("backpressure", "inflight_cap"), body
            self.retry_after.append(int(answer.headers["retry-after"]))


async def burst(client: httpx.AsyncClient, problem: int, rate: float, seconds: float) -> Told:
    """Sends at its rate, whether answers come or not."""
    told, began = Told(), time.monotonic()

    async def send(number: int) -> None:
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        body = {"code": f"int main() {{ return {number}; }}", "language": 1, "problem_id": problem}
        sent = time.monotonic()
        try:
            told.note(await client.post("/submit", json=body), time.monotonic() - sent)
        except httpx.TransportError as error:  # a starved machine: what was sent may have arrived or not
            told.codes[f"cut off: {type(error).__name__}"] += 1
            told.cut += 1

    async with asyncio.TaskGroup() as group:
        for number in range(min(MOST, round(rate * seconds))):
            group.create_task(send(number))
    print(f"{sum(told.codes.values())} submissions in {time.monotonic() - began:.1f} s")
    return told


async def make_problem(client: httpx.AsyncClient) -> int:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("1.in", "1 2")
        archive.writestr("1.out", "3")
    files = {"file": ("tests.zip", packed.getvalue())}
    answer = await client.post("/api/v1/problems", data={"title": "bench"}, files=files)
    return answer.raise_for_status().json()["id"]


async def highest(connection: asyncpg.Connection, ends: asyncio.Event) -> int:
    """The most that waited or ran at any look."""
    found = 0
    while not ends.is_set():
        found = max(found, await connection.fetchval("SELECT claimable + live FROM accs.service_load") or 0)
        await asyncio.sleep(0.1)
    return found


async def judged(connection: asyncpg.Connection, taken: Sequence[str], cut: int) -> None:
    """Waits until all that was taken has ended, and compares."""
    ends = time.monotonic() + LONGEST
    while await connection.fetchval("SELECT count(*) FROM jobs WHERE status IN ('queued', 'running')"):
        if time.monotonic() > ends:
            raise SystemExit("the judges did not end in time")
        await asyncio.sleep(0.5)
    rows = await connection.fetch("SELECT job_id::text AS id, status FROM submissions")
    assert len(set(taken)) == len(taken), "one id was given twice"
    assert {row["id"] for row in rows} >= set(taken), "something was lost"
    assert len(rows) <= len(taken) + cut, "something was made twice"
    assert {row["status"] for row in rows} <= {"Accepted"}
    print(f"all {len(taken)} that were taken are judged; nothing is lost, nothing is there twice")


def show(told: Told, most: int, inflight: int, cpu: float) -> None:
    for code, count in sorted(told.codes.items()):
        print(f"  {count:6} × {code}")
    for status, seconds in sorted(told.seconds.items()):
        p50, p95 = statistics.median(seconds), sorted(seconds)[int(0.95 * len(seconds))]
        print(f"  {status}: p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms")
    if told.retry_after:
        print(f"  Retry-After: {min(told.retry_after)} to {max(told.retry_after)} s")
    print(f"  most in flight: {most} of {inflight}; the gateway spent {cpu / 1e6:.1f} s on a processor")


async def measure(url: str, folder: Path, asked: argparse.Namespace) -> None:
    connection, port = await installed(url), _free_port()
    (folder / "gateway.toml").write_text(CONFIG.format(port=port, folder=folder, inflight=asked.inflight))
    (folder / "worker.py").write_text(WORKER.format(seconds=asked.judge_ms / 1000, slots=asked.slots))
    db = await Database.open(DatabaseSettings.model_validate({"url": url, "pool_size": 1}), application="bench")
    token = (await create_token(db, "bench", [Scope.ADMIN])).token
    await db.close()
    gateway = ["-m", "accsd", "--role", "gateway", "--config", str(folder / "gateway.toml")]
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}, timeout=60, limits=limits
    ) as client:
        with (
            process(folder, url, ["-m", "accsd", "--role", "builder"], node="control"),
            process(folder, url, gateway, node="gateway") as served,
            process(folder, url, ["worker.py"], node="judges"),
        ):
            await answers(client)
            problem = await make_problem(client)
            ends = asyncio.Event()
            looking = asyncio.create_task(highest(await asyncpg.connect(url), ends))
            before = cpu_of([served.pid])
            told = await burst(client, problem, asked.rate, asked.seconds)
            spent = cpu_of([served.pid]) - before
            ends.set()
            show(told, await looking, asked.inflight, spent)
            await judged(connection, told.taken, told.cut)


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


async def answers(client: httpx.AsyncClient) -> None:
    for _ in range(300):
        try:
            if (await client.get("/api/v1/health")).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    raise SystemExit("the gateway does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--inflight", type=int, default=500)
    parser.add_argument("--judge-ms", type=float, default=50)
    parser.add_argument("--slots", type=int, default=4)
    asked = parser.parse_args()
    with postgres() as server, tempfile.TemporaryDirectory(prefix="accsd-bench-") as folder:
        asyncio.run(measure(server.url, Path(folder), asked))


if __name__ == "__main__":
    main()
