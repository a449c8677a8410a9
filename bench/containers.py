"""What does accsd add to a command in a container? From the claim to the first line, beside a bare `docker exec`.

    python -m bench.containers                     20 tasks of each, by turns
    python -m bench.containers --image my/image    any image that has sleep and python3

A service in exec mode on the real engine, served by the real daemon. Its command writes down when it began; so does the
same command through `docker exec`. By turns, so that both meet the same machine.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from bench.throwaway import installed, postgres

PROJECT = "accsd-bench-containers"
COMMAND = [
    "python3",
    "-c",
    "import json, sys, time; now = time.time(); sys.stdin.readline();"
    "print(json.dumps({'type': 'result', 'results': {'began': now}}))",
]


def compose_file(folder: Path, image: str) -> Path:
    service = {
        "image": image,
        "command": ["sleep", "3600"],
        "init": True,
        "labels": {"accs.mode": "exec", "accs.command": json.dumps(COMMAND), "accs.concurrency": "1"},
    }
    path = folder / "compose.json"
    path.write_text(json.dumps({"name": PROJECT, "services": {"noop": service}}))
    return path


@contextmanager
def daemon(folder: Path, url: str, compose: Path) -> Generator[None]:
    environ = {
        **os.environ,
        "ACC_DB_URL": url,
        "ACC_NODE_NAME": "bench",
        "ACC_COMPOSE_FILE": str(compose),
        "ACC_STATE_DIR": str(folder / "state"),
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "accsd", "--role", "all"], env=environ, stdout=log, stderr=log
        )
        try:
            yield
        except BaseException:
            print((folder / "log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(60)
            subprocess.run(
                ["docker", "compose", "-f", str(compose), "down", "-t", "0"], capture_output=True, check=False
            )


async def through_accsd(connection: asyncpg.Connection) -> float:
    """Seconds from the claim until the command began."""
    job = await connection.fetchval("SELECT accs.submit('noop')")
    async with asyncio.timeout(40):
        while (task := await connection.fetchrow("SELECT * FROM job_tasks WHERE job_id = $1", job))["status"] != "done":
            assert task["status"] != "error", task["error_message"]
            await asyncio.sleep(0.02)
    return json.loads(task["results"])["began"] - task["claimed_at"].timestamp()


async def bare(container: str) -> float:
    sent = time.time()
    process = await asyncio.create_subprocess_exec(
        "docker", "exec", "-i", container, *COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    said, _ = await process.communicate(b"{}\n")
    return json.loads(said)["results"]["began"] - sent


def container_of(compose: Path) -> str:
    return subprocess.check_output(["docker", "compose", "-f", str(compose), "ps", "-q"], text=True).strip()


async def compare(url: str, folder: Path, image: str, count: int) -> None:
    connection = await installed(url)
    compose = compose_file(folder, image)
    with daemon(folder, url, compose):
        await through_accsd(connection)  # starts the container
        container = await asyncio.to_thread(container_of, compose)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(count):
            theirs.append(await bare(container))
            ours.append(await through_accsd(connection))
    await connection.close()
    one, other = statistics.median(theirs), statistics.median(ours)
    print(f"from docker exec to the command: {one * 1000:.0f} ms (median of {count})")
    print(f"from the claim to the command:   {other * 1000:.0f} ms")
    print(f"ratio: {other / one:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="accsd-test-python", help="tools/make_test_images.sh makes the default")
    parser.add_argument("--count", type=int, default=20)
    asked = parser.parse_args()
    with postgres() as server, tempfile.TemporaryDirectory(prefix="accsd-bench-") as folder:
        asyncio.run(compare(server.url, Path(folder), asked.image, asked.count))


if __name__ == "__main__":
    main()
