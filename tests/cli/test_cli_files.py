"""Files that a workflow names: checked beside the workflow's own file, put into the store once, listed, compared."""

import hashlib
import os
from pathlib import Path

import pytest
import yaml

from accsd.db import Database
from accsd.history.prune import remove_doomed
from accsd.settings import StorageSettings
from accsd.storage import build_file_key, open_store
from tests.support.cli import Cli
from tests.support.cluster import Connection

MEDIA = """\
name: media
files:
  - {name: fonts/a.ttf, source: a.ttf}
  - {name: model, source: ./data/model.bin}
steps:
  - {key: render, service: renderer}
  - {key: upload, service: uploader, depends_on: [render], files: [fonts]}
"""
FONT = hashlib.sha256(b"font").hexdigest()


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "workflows"
    (folder / "data").mkdir(parents=True)
    (folder / "a.ttf").write_bytes(b"font")
    (folder / "data" / "model.bin").write_bytes(b"model")
    (folder / "media.yaml").write_text(MEDIA)
    return folder / "media.yaml"


@pytest.fixture
def stored(db_url: str, tmp_path: Path) -> Cli:
    return Cli(db_url, ACC_STORAGE_URL=f"file://{tmp_path}/objects")


def objects(tmp_path: Path) -> dict[str, bytes]:
    root = tmp_path / "objects" / "files"
    return {str(file.relative_to(root.parent)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


async def test_files_are_put_into_the_store_once_and_the_version_names_them(
    stored: Cli, media: Path, tmp_path: Path, conn: Connection
):
    (await stored("workflows", "apply", str(media))).ends(
        0, "media version 1 created", "stored a.ttf, 4 B", "stored model.bin, 5 B"
    )
    key = build_file_key(FONT)
    assert objects(tmp_path)[key] == b"font"
    files = await conn.fetchval("SELECT files FROM workflows")
    assert files[0] == {"name": "fonts/a.ttf", "key": key, "size": 4, "sha256": FONT}
    assert str(tmp_path) not in str(await conn.fetchrow("SELECT * FROM workflows"))

    again = (await stored("workflows", "apply", str(media))).ends(0, "media version 1 unchanged")
    assert "stored" not in again.err
    (await stored("workflows", "diff", str(media))).ends(0)
    (media.parent / "a.ttf").write_bytes(b"FONT")
    (await stored("workflows", "diff", str(media))).ends(1, f"-  sha256: {FONT}")
    changed = (await stored("workflows", "apply", str(media))).ends(0, "media version 2 created", "stored a.ttf")
    assert "model.bin" not in changed.err
    assert len(objects(tmp_path)) == 3


async def test_show_lists_the_files_and_what_it_writes_is_applied_without_them(
    stored: Cli, media: Path, tmp_path: Path
):
    await stored("workflows", "apply", str(media))
    shown = (await stored("workflows", "show", "media")).ends(0, "files fonts").out.splitlines()
    assert [line.split() for line in shown[1:4]] == [
        ["files"],
        ["fonts/a.ttf", "4", "B", "sha256", f"{FONT[:12]}…"],
        ["model", "5", "B", "sha256", f"{hashlib.sha256(b'model').hexdigest()[:12]}…"],
    ]
    written = (await stored("workflows", "show", "media", "-o", "yaml")).out
    assert yaml.safe_load(written)["files"][0] == {"name": "fonts/a.ttf", "key": build_file_key(FONT), "sha256": FONT}
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(written.replace("name: media", "name: other").replace("version: 1\n", ""))
    (await stored("workflows", "apply", str(elsewhere))).ends(0, "other version 1 created")
    (tmp_path / "objects" / build_file_key(FONT)).unlink()
    elsewhere.write_text(elsewhere.read_text().replace("name: other", "name: third"))
    (await stored("workflows", "apply", str(elsewhere))).ends(
        1, f'workflow "third": file "fonts/a.ttf": there is no object {build_file_key(FONT)} in the store'
    )


async def test_what_is_gone_from_the_store_is_put_back_and_what_is_damaged_when_it_is_asked_for(
    stored: Cli, media: Path, tmp_path: Path
):
    await stored("workflows", "apply", str(media))
    font = tmp_path / "objects" / build_file_key(FONT)
    font.unlink()
    (await stored("workflows", "apply", str(media))).ends(0, "media version 1 unchanged", "stored a.ttf")
    font.write_bytes(b"fOnt")
    await stored("workflows", "apply", str(media))
    assert font.read_bytes() == b"fOnt"
    (await stored("workflows", "apply", "--again", str(media))).ends(0, "stored a.ttf", "stored model.bin")
    assert font.read_bytes() == b"font"


async def test_mistakes_have_their_line_before_anything_is_stored(media: Path, tmp_path: Path):
    offline = Cli(None, ACC_STORAGE_URL=f"file://{tmp_path}/objects")
    (await offline("workflows", "check", str(media))).ends(0, "media: ok, 2 steps, 2 files")
    (media.parent / "a.ttf").unlink()
    (media.parent / "data" / "model.bin").unlink()
    (media.parent / "data" / "model.bin").mkdir()
    (await offline("workflows", "check", str(media))).ends(
        1,
        'media.yaml:3: file "fonts/a.ttf": source a.ttf: No such file or directory',
        'media.yaml:4: file "model": source ./data/model.bin: it is no file',
        "relative to the workflow file",
    )
    (await offline("workflows", "render", str(media), "--step", "render")).ends(0, "render: runs with {}")
    rewrite(media, MEDIA.replace("fonts/a.ttf", "../a.ttf").replace("files: [fonts]", "files: [font]"))
    (await offline("workflows", "check", str(media))).ends(1, "media.yaml:3: files.0.name must be a relative path")
    rewrite(media, MEDIA.replace("files: [fonts]", "files: [font]"))
    (await offline("workflows", "check", str(media))).ends(1, 'media.yaml:7: step "upload": files: the workflow has')
    assert not (tmp_path / "objects").exists()


async def test_a_machine_without_a_store_says_what_to_do(db_url: str, media: Path, tmp_path: Path, conn: Connection):
    alone = Cli(db_url, ACC_STATE_DIR=str(tmp_path / "nobody"))
    (await alone("workflows", "apply", str(media))).ends(2, "no storage is configured", "ACC_STORAGE_URL")
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


async def test_files_that_a_version_names_are_no_orphans(stored: Cli, media: Path, tmp_path: Path, conn: Connection):
    await stored("workflows", "apply", str(media))
    for key in objects(tmp_path):
        os.utime(tmp_path / "objects" / key, (0, 0))
    assert (await stored("history", "orphans", "-o", "json")).json == []
    await conn.execute("DELETE FROM workflows")
    (await stored("history", "orphans", "--remove")).ends(0, "removed 0 of 2")
    (await stored("history", "orphans", "--remove", "--foreign")).ends(0, "removed 2 of 2")
    assert objects(tmp_path) == {}


async def test_an_output_that_a_version_names_outlives_its_job(
    stored: Cli, media: Path, tmp_path: Path, conn: Connection, db: Database
):
    await stored("workflows", "apply", str(media))
    key, other = build_file_key(FONT), build_file_key(hashlib.sha256(b"model").hexdigest())
    await conn.execute('UPDATE workflows SET files = files - 1, steps = \'[{"key": "a", "service": "x"}]\'')
    await conn.execute("DELETE FROM accs.file_sets WHERE files @> $1", [{"name": "model"}])
    await conn.executemany("INSERT INTO accs.doomed_objects (bucket, key) VALUES ('accs', $1)", [(key,), (other,)])
    async with open_store(StorageSettings(url=f"file://{tmp_path}/objects")) as store:
        assert await remove_doomed(db, store) == 2
    assert set(objects(tmp_path)) == {key}
