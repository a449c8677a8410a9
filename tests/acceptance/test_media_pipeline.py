"""examples/media-pipeline as its README says: on the real daemon, as processes and in containers of a built image."""

import base64
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import uuid
import wave
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from accsd.model import WorkflowDef
from accsd.sdk.vendor import vendor
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.compose import PYTHON, why_not
from tests.support.compose_node import job_reaches, tasks_of
from tests.support.eventually import eventually
from tests.support.factory import submit_to, workflow
from tests.support.objectstore import log_lines

EXAMPLE = Path(__file__).parents[2] / "examples" / "media-pipeline"
IMAGE = "accsd-test-media-pipeline"
OPTIONS = {"pace": 0, "title": "Takes & <cuts>"}


def copied(folder: Path) -> Path:
    """The example in a folder of the test's own, with what its services import; the daemon's configuration goes beside
    it."""
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "work"))
    vendor(folder / "services", force=True)
    return folder


def steps(**ingest: Any) -> list[dict[str, Any]]:
    """Those of the example, with other params for the first one: a short melody is enough here."""
    document = yaml.safe_load((EXAMPLE / "workflow.yaml").read_text())
    first, *others = WorkflowDef.model_validate(document).steps_document()
    return [{**first, "default_params": ingest}, *others]


async def submitted(conn: Connection, melody: str = "c e g C") -> UUID:
    made = await workflow(conn, *steps(melody=melody, beat=0.2))
    return await submit_to(conn, made, options=OPTIONS)


async def reported(conn: Connection, job: UUID, step: str) -> bool:
    """Whether it has told of its progress."""
    found = """SELECT EXISTS (SELECT FROM task_events JOIN job_tasks ON job_tasks.id = job_task_id
        WHERE job_tasks.job_id = $1 AND task_key = $2 AND type = 'progress')"""
    return await conn.fetchval(found, job, step)


async def outputs(conn: Connection, objects: Path, job: UUID) -> dict[str, Path]:
    rows = await conn.fetch("SELECT key, size_bytes FROM task_artifacts WHERE job_id = $1 AND kind = 'output'", job)
    found = {Path(row["key"]).name: objects / row["key"] for row in rows}
    assert [(objects / row["key"]).stat().st_size for row in rows] == [row["size_bytes"] for row in rows]
    return found


def level(path: Path) -> tuple[float, float, float]:
    """Seconds, RMS and peak in dB, measured here and not by the example's own code."""
    with wave.open(str(path)) as file:
        samples = array("h", file.readframes(file.getnframes()))
        seconds = file.getnframes() / file.getframerate()
    rms = math.sqrt(sum(sample * sample for sample in samples) / len(samples))
    return seconds, 20 * math.log10(rms / 32768), 20 * math.log10(max(map(abs, samples)) / 32768)


def chunks(path: Path) -> list[tuple[bytes, bytes]]:
    data, at, found = path.read_bytes(), 8, []
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + content)
        found.append((kind, content))
        at += 12 + size
    return found


def frames(path: Path) -> list[bytes]:
    """The pixels of each frame of a PNG; every frame is whole and drawn in many colours."""
    found = chunks(path)
    width, height = struct.unpack(">II", found[0][1][:8])
    packed = [data if kind == b"IDAT" else data[4:] for kind, data in found if kind in (b"IDAT", b"fdAT")]
    pixels = [zlib.decompress(each) for each in packed]
    assert {len(each) for each in pixels} == {height * (width + 1)}
    return pixels


async def looks_and_sounds_right(conn: Connection, objects: Path, job: UUID) -> None:
    tasks, files = await tasks_of(conn, job), await outputs(conn, objects, job)
    assert set(files) == {
        "take.wav", "normalized.wav", "poster.png", "video.png", "index.html", "manifest.json"
    }  # fmt: skip
    seconds, quiet, quiet_peak = level(files["take.wav"])
    same, loud, loud_peak = level(files["normalized.wav"])
    assert (seconds, round(quiet_peak)) == (same, -30)
    assert loud == pytest.approx(-16, abs=1.5), "near the loudness that was asked for"
    assert loud - quiet == pytest.approx(tasks["audio"]["results"]["gain_db"], abs=0.2)
    assert loud_peak < -1
    assert tasks["audio"]["results"]["lufs"] == pytest.approx(-16, abs=0.2)

    (poster,), video = frames(files["poster.png"]), frames(files["video.png"])
    assert len(set(poster)) > 60, "a spectrogram has many shades"
    assert len(video) == tasks["render"]["results"]["frames"] == round(10 * seconds)
    assert len(set(video)) > 0.9 * len(video), "it moves"

    page = files["index.html"].read_text()
    embedded = dict(re.findall(r"data:(\w+)/\w+;base64,([^\"]+)", page))
    assert base64.b64decode(embedded["image"]) == files["video.png"].read_bytes()
    assert base64.b64decode(embedded["audio"]) == files["normalized.wav"].read_bytes()
    assert "<h1>Takes &amp; &lt;cuts&gt;</h1>" in page
    manifest = json.loads(files["manifest.json"].read_text())
    assert manifest == {"video": "index.html", "bytes": len(page.encode()), "job_id": str(job)}
    (said,) = await log_lines(conn, objects, job, "audio")
    assert re.fullmatch(r"it has -[34]\d\.\d LUFS, -16 are wanted", said)


def with_node(config: str, others: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Where Node is installed, its upload beside the shell's: both make the same page."""
    if shutil.which("node") is None:
        return config, others
    service = '[services.upload-node]\nrunner = "process"\ncommand = ["node", "services/yt-upload.mjs"]\n'
    return f"{config}\n{service}", [*others, {**others[-1], "key": "upload2", "service": "upload-node"}]


async def test_the_pipeline_runs_as_processes(tmp_path: Path, db_url: str, conn: Connection):
    config, wanted = with_node((copied(tmp_path) / "accsd.toml").read_text(), steps(melody="c e g C", beat=0.2))
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        job = await submit_to(conn, await workflow(conn, *wanted), options=OPTIONS)
        await job_reaches(conn, job, "done")
        assert accsd.stop() == 0
    objects = tmp_path / "state" / "objects"
    await looks_and_sounds_right(conn, objects, job)
    assert len({page.read_text() for page in objects.rglob("index.html")}) == 1
    progress = await conn.fetchval("SELECT count(*) FROM task_events WHERE job_id = $1 AND type = 'progress'", job)
    assert progress >= 4
    await check(conn)


async def test_wrong_params_fail_at_once_and_say_why(tmp_path: Path, db_url: str, conn: Connection):
    config = (copied(tmp_path) / "accsd.toml").read_text()
    with daemon.running(tmp_path, db_url, config=config):
        job = await submitted(conn, melody="c e h")
        await job_reaches(conn, job, "error")
    task = (await tasks_of(conn, job))["ingest"]
    assert (task["attempt"], task["error_code"]) == (1, "exit_nonzero")
    assert await conn.fetchval("SELECT reason FROM dead_letters WHERE job_id = $1", job) == "permanent_error"
    said = await log_lines(conn, tmp_path / "state" / "objects", job, "ingest")
    assert said == ["params: melody: h cannot be played"]


@pytest.fixture
def project() -> Iterator[dict[str, str]]:
    """The variables of compose.yaml, and what it makes is removed."""
    if reason := why_not():
        pytest.skip(reason)
    name = f"accsd-test-{uuid.uuid4().hex[:10]}"
    yield {"COMPOSE_PROJECT_NAME": name, "BASE": PYTHON, "IMAGE": IMAGE}
    listed = ["docker", "ps", "-aq", "--filter", f"label=com.docker.compose.project={name}"]
    if found := subprocess.run(listed, capture_output=True, check=True, timeout=30).stdout.decode().split():
        subprocess.run(["docker", "rm", "-f", "-v", *found], capture_output=True, check=True, timeout=60)


def build(file: Path, project: dict[str, str]) -> None:
    built = subprocess.run(
        ["docker", "compose", "-f", file, "build"], env={**os.environ, **project}, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, timeout=100, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr.decode()


@pytest.mark.needs_docker
@pytest.mark.xdist_group("compose")
async def test_the_pipeline_runs_in_containers_of_an_image_that_is_built_here(
    tmp_path: Path, db_url: str, conn: Connection, project: dict[str, str]
):
    file = copied(tmp_path) / "compose.yaml"
    build(file, project)
    named = project["COMPOSE_PROJECT_NAME"]
    config = f'[compose]\nfile = "{file}"\nproject = "{named}"\n[node]\nlabels = {{ gpu = true }}\n'
    node = f"node-{uuid.uuid4().hex[:8]}"
    with daemon.running(tmp_path, db_url, node=node, config=config, environ=project) as accsd:
        job = await submitted(conn, melody="c e g C g e c e g C g e")
        # killed while the service that is asked over HTTP draws: it goes on, and the next daemon reads on
        await eventually(lambda: reported(conn, job, "render"), within=100)
        accsd.kill()
        assert (await tasks_of(conn, job))["render"]["status"] == "running"
    with daemon.running(tmp_path, db_url, node=node, config=config, environ=project) as accsd:
        accsd.wait_for("adopted", task_key="render")
        await job_reaches(conn, job, "done", within=100)
        assert accsd.log("service_not_served") == []
        assert accsd.stop() == 0
    await looks_and_sounds_right(conn, tmp_path / "state" / "objects", job)
    render = (await tasks_of(conn, job))["render"]
    assert (render["attempt_id"], render["attempt"], render["lost"]) == (1, 0, 0), "the same attempt has ended"
    for name in ("audio-norm", "renderer"):
        assert list((tmp_path / "work" / name).iterdir()) == [], "the folders of exec and http tasks are removed"
    await check(conn)


def test_loudness_is_that_of_the_standard():
    """BS.1770: a sine of 997 Hz at full scale in one channel has -3.01 LUFS, at every rate."""
    code = """
import math, sound
for rate in (22050, 44100, 48000):
    tone = [math.sin(2 * math.pi * 997 * i / rate) for i in range(2 * rate)]
    print(round(sound.loudness(tone, rate), 2), round(sound.loudness([x / 10 for x in tone] + [0.0] * rate, rate), 1))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLE / "services", capture_output=True, check=True, timeout=60
    )
    for line in ran.stdout.decode().splitlines():
        full, tenth = map(float, line.split())
        assert full == pytest.approx(-3.01, abs=0.05)
        assert tenth == pytest.approx(-23.01, abs=0.5), "silence behind it does not count"


def test_a_recording_that_came_with_the_job_is_taken(tmp_path: Path):
    with wave.open(str(tmp_path / "mine.wav"), "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", "not compressed"))
        file.writeframes(array("h", [1000, -500] * 8000).tobytes())
    (tmp_path / "text.wav").write_text("not a recording")
    services = copied(tmp_path / "example") / "services"

    def ingest(name: str) -> tuple[int, list[dict[str, Any]]]:
        artifact = {"task_key": None, "name": name, "path": name}
        envelope = {"artifacts": [artifact], "workdir": str(tmp_path), "options": {"pace": 0}}
        ran = subprocess.run(
            [sys.executable, "ingest.py"], input=json.dumps(envelope).encode(), cwd=services,
            stdout=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
        return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()]

    code, said = ingest("mine.wav")
    assert (code, said[-1]["results"]) == (0, {"seconds": 1.0, "rms_db": -42.4})
    assert ingest("text.wav")[0] == 65
