"""Problems: made of a zip, whose content is checked before anything is kept; taken away."""

import errno
import io
import struct
import zipfile
import zlib
from typing import Any

import pytest

from accsd.errors import StorageUnavailable
from accsd.gateway.judge import package
from accsd.gateway.judge.package import repack
from accsd.gateway.judge.refusals import Refusal
from tests.support.cluster import Connection
from tests.support.judging import SUM, Door, judging, zipped


def repacked(data: bytes) -> dict[str, bytes]:
    packed = io.BytesIO()
    names = repack(io.BytesIO(data), packed)
    with zipfile.ZipFile(packed) as archive:
        assert [name[:-3] for name in archive.namelist() if name.endswith(".in")] == names
        return {name: archive.read(name) for name in archive.namelist()}


class FullDisk(io.BytesIO):
    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_of_the_gateway_is_not_the_fault_of_the_zip():
    with pytest.raises(StorageUnavailable, match="no room"):
        repack(io.BytesIO(zipped(SUM)), FullDisk())


async def test_a_problem_is_a_workflow_whose_version_holds_its_test_data(door: Door, conn: Connection):
    """OJ-3, OJ-20 and 3.5."""
    made = await door.upload(zipped(SUM), title="A + B", time_limit=2000, memory_limit=64, difficulty="easy")
    told = made.json()
    number = told["id"]
    assert (made.status_code, told["status"], told["minio_path"]) == (200, "created", f"problems/{number}.zip")
    assert isinstance(number, int)
    row = await conn.fetchrow("SELECT * FROM workflows WHERE name = $1", f"judge.{number}")
    assert row is not None
    (step,), (file,) = row["steps"], row["files"]
    assert (step["key"], step["service"], step["max_attempts"]) == ("judge", "judge", 3)
    assert step["default_params"] == {
        "problem": number, "title": "A + B", "time_limit_ms": 2000, "memory_limit_kb": 65_536, "cases": 2,
        "difficulty": "easy",
    }  # fmt: skip
    assert (row["created_by"], row["title"], file["name"]) == ("admin", "A + B", "tests.zip")
    store = door.gateway.context.store
    assert store is not None
    stored = await store.get_bytes(file["key"])
    assert len(stored) == file["size"]
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == SUM
    other = (await door.upload(zipped(SUM))).json()
    assert other["id"] == number + 1
    assert other["key"] == told["key"], "the same data are stored once"
    audit = await conn.fetch("SELECT action, via FROM accs.audit WHERE target = $1", f"judge.{number}")
    assert [(row["action"], row["via"]) for row in audit] == [("apply_workflow", "http")]


async def test_a_problem_that_is_taken_away_takes_nothing_more(door: Door, conn: Connection):
    """OJ-4: what was submitted stays; 404 for what is not there, or no more."""
    problem = await door.problem()
    job = await door.submitted(problem)
    gone = await door.ask("DELETE", f"/api/v1/problems/{problem}", by="admin")
    assert (gone.status_code, gone.json()) == (200, {"status": "deleted"})
    assert (await door.submit(problem)).json()["code"] == "PROBLEM_NOT_FOUND"
    assert (await door.status(job))["state"] == "pending"
    for which in (problem, 999, 0, "x", "-1"):
        refused = await door.ask("DELETE", f"/api/v1/problems/{which}", by="admin")
        assert (refused.status_code, refused.json()["code"]) == (404, "NOT_FOUND"), which
    assert not await conn.fetchval("SELECT bool_or(is_active) FROM workflows WHERE name = $1", f"judge.{problem}")


async def test_a_form_that_is_none_is_refused_and_leaves_nothing(door: Door, conn: Connection):
    """OJ-20: title and a *.zip are required; numbers are numbers."""
    good = zipped(SUM)
    for made in (
        await door.upload(good, title=""),
        await door.upload(good, name="tests.tar"),
        await door.upload(good, time_limit="fast"),
        await door.upload(good, memory_limit="1.5"),
        await door.ask("POST", "/api/v1/problems", by="admin", data={"title": "no file"}),
        await door.ask("POST", "/api/v1/problems", by="admin", json={"title": "no form"}),
        await door.ask(
            "POST", "/api/v1/problems", by="admin", content=b"--x", headers={"Content-Type": "multipart/form-data"}
        ),
    ):
        assert (made.status_code, made.json()["code"]) == (400, "BAD_REQUEST"), made.text
        assert made.json()["details"]
    for data in (b"", b"no zip", good[:-30], zipped({}), zipped({"1.in": "1"}), zipped({"a/1.in": "", "b/1.out": ""})):
        refused = await door.upload(data)
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_PARAM"), data[:20]
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


async def test_a_zip_has_its_limit(db_url: str, tmp_path: Any, conn: Connection):
    """OJ-20: 50 MiB unless the settings say otherwise, 413."""
    async with judging(db_url, tmp_path / "objects", zip="2m") as door:
        for size in (2 * 2**20 + 1, 4 * 2**20):
            refused = await door.upload(b"x" * size)
            assert (refused.status_code, refused.json()["code"]) == (413, "BODY_TOO_LARGE")
        assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


def test_each_input_has_its_answer_and_noise_is_ignored():
    """OJ-20: X.in with X.out or X.ans; folders, __MACOSX and dot files do not count."""
    noise = {"__MACOSX/1.in": "", ".DS_Store": "", "sub/": "", "checker.cpp": "int main() {}", "notes.out": "x"}
    found = repacked(zipped({"1.in": "a", "1.ans": "b", "2.in": "c", "2.out": "d", **noise}))
    assert found == {"1.in": b"a", "1.out": b"b", "2.in": b"c", "2.out": b"d"}
    with pytest.raises(Refusal, match=r"2\.in, and neither"):
        repacked(zipped({"1.in": "a", "1.out": "b", "2.in": "c"}))


def test_one_folder_around_all_of_it_is_taken_off_and_a_zip_without_cases_is_refused():
    """OJ-21: the reference took those, and accepted every submission."""
    assert repacked(zipped({"sum/": "", "sum/1.in": "a", "sum/1.out": "b"})) == {"1.in": b"a", "1.out": b"b"}
    for files in (
        {"a/b/1.in": "", "a/b/1.out": ""},
        {"readme.txt": ""},
        {"1.out": ""},
        {"a/1.in": "", "a/1.out": "", "x": ""},
    ):
        with pytest.raises(Refusal, match="no case"):
            repacked(zipped(files))


def test_the_same_data_make_the_same_bytes_in_the_order_of_their_names():
    """OJ-23: as text, so that 10 comes before 2."""
    files = {f"{n}.{end}": str(n) for n in (2, 10, 1) for end in ("in", "out")}
    assert list(repacked(zipped(files))) == ["1.in", "1.out", "10.in", "10.out", "2.in", "2.out"]
    first, second = io.BytesIO(), io.BytesIO()
    repack(io.BytesIO(zipped(files)), first)
    repack(io.BytesIO(zipped(dict(reversed(files.items())))), second)
    assert first.getvalue() == second.getvalue()


@pytest.mark.parametrize("name", ["../1.in", "/etc/1.in", "a/../../1.in", "..\\1.in"])
def test_no_path_leads_out_of_the_folder(name: str):
    """OJ-22."""
    with pytest.raises(Refusal, match="leads out"):
        repacked(zipped({name: "x", "1.in": "", "1.out": ""}))


def test_links_and_twins_are_refused():
    """OJ-22."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        link = zipfile.ZipInfo("1.in")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("1.out", "")
    with pytest.raises(Refusal, match="link"):
        repacked(made.getvalue())
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in ("1.out", "1.in"):
            archive.writestr(name, "")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("1.in", "")
    with pytest.raises(Refusal, match="twice"):
        repacked(made.getvalue())


def test_what_is_unpacked_has_its_limits_whatever_the_zip_says_of_itself(monkeypatch: pytest.MonkeyPatch):
    """OJ-22: 256 MiB in all, 64 MiB a file, 2,000 files. Bombs are told before they have gone off: smaller here."""
    assert (package.MOST_BYTES, package.LARGEST_FILE, package.MOST_FILES) == (256 * 2**20, 64 * 2**20, 2000)
    monkeypatch.setattr(package, "LARGEST_FILE", 2**20)
    monkeypatch.setattr(package, "MOST_BYTES", 3 * 2**20)
    monkeypatch.setattr(package, "MOST_FILES", 20)
    with pytest.raises(Refusal, match="more than 1 MiB"):
        repacked(zipped({"1.in": bytes(2**20 + 1), "1.out": ""}))
    with pytest.raises(Refusal, match="more than 3 MiB"):
        repacked(zipped({f"{n}.{end}": bytes(2**20) for n in range(2) for end in ("in", "out")}))
    with pytest.raises(Refusal, match="more than 20 files"):
        repacked(zipped({f"{n}.in": "" for n in range(21)}))
    lying = _with_size(zipped({"1.in": bytes(2**20 + 1), "1.out": ""}), 2**20 + 1, 5)
    with pytest.raises(Refusal, match="can't be read"):
        repacked(lying)


def _with_size(data: bytes, real: int, said: int) -> bytes:
    """The zip with another size of a file in its heads."""
    return data.replace(struct.pack("<I", real), struct.pack("<I", said))


def test_a_zip_that_is_damaged_is_refused():
    """OJ-20: whatever is wrong inside."""
    good = zipped({"1.in": "abcdef" * 1000, "1.out": "x"})
    damaged = bytearray(good)
    damaged[45] ^= 0xFF
    with pytest.raises(Refusal, match="can't be read"):
        repacked(bytes(damaged))
    assert zlib.crc32(good) != zlib.crc32(bytes(damaged))
