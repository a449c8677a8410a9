"""The test data of a problem: a zip as its author sends it, checked, and packed anew for the judge.

What the judge is given has its cases at the top and nothing else, and the same data makes the same bytes.
"""

import errno
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Final

from accsd.errors import StorageUnavailable
from accsd.gateway.judge.refusals import Refusal

MOST_FILES: Final = 2_000
MOST_BYTES: Final = 256 * 1024 * 1024
LARGEST_FILE: Final = 64 * 1024 * 1024
_ANSWERS: Final = (".out", ".ans")
_CHUNK: Final = 1024 * 1024
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    given: zipfile.ZipInfo
    wanted: zipfile.ZipInfo


def repack(source: IO[bytes], target: IO[bytes]) -> list[str]:
    """The names of the cases, in the order in which they are judged (OJ-20 to OJ-23)."""
    try:
        with zipfile.ZipFile(source) as archive:
            cases = _cases(_files(archive))
            _write(archive, cases, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise StorageUnavailable("the gateway has no room to unpack the zip", hint="free its disk") from error
        raise _bad(f"the file can't be read as a zip: {error}") from None
    return [case.name for case in cases]


def _files(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """What is in it, by names as they are below the one folder that all of it may be in."""
    found: dict[PurePosixPath, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in info.filename or "\0" in info.orig_filename:
            raise _bad(f"the zip has the path {info.filename[:100]!r}, which leads out of its folder")
        if info.is_dir() or _is_noise(path):
            continue
        if info.external_attr >> 28 not in (0, 8):
            raise _bad(f"{info.filename[:100]!r} in the zip is a link, and not a file")
        if path in found:
            raise _bad(f"the zip has {info.filename[:100]!r} twice")
        found[path] = info
        if len(found) > MOST_FILES:
            raise _bad(f"the zip has more than {MOST_FILES} files")
    return {str(path): info for path, info in _without_common_folder(found).items()}


def _is_noise(path: PurePosixPath) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.parts)


def _without_common_folder(found: dict[PurePosixPath, zipfile.ZipInfo]) -> dict[PurePosixPath, zipfile.ZipInfo]:
    tops = {path.parts[0] for path in found}
    if len(tops) == 1 and all(len(path.parts) > 1 for path in found):
        return {PurePosixPath(*path.parts[1:]): info for path, info in found.items()}
    return found


def _cases(files: dict[str, zipfile.ZipInfo]) -> list[Case]:
    cases: list[Case] = []
    for name in sorted(each[: -len(".in")] for each in files if each.endswith(".in") and "/" not in each):
        wanted = next((files[name + end] for end in _ANSWERS if name + end in files), None)
        if wanted is None:
            raise _bad(f"the zip has {name}.in, and neither {name}.out nor {name}.ans")
        cases.append(Case(name, files[f"{name}.in"], wanted))
    if not cases:
        raise _bad("the zip has no case: a NAME.in with its NAME.out at the top, or in one folder")
    return cases


def _write(archive: zipfile.ZipFile, cases: Sequence[Case], target: IO[bytes]) -> None:
    left = MOST_BYTES
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for case in cases:
            for info, end in ((case.given, ".in"), (case.wanted, ".out")):
                with packed.open(case.name + end, "w") as written:  # of 1980, whenever that is done
                    for chunk in _content(archive, info):
                        left -= len(chunk)
                        if left < 0:
                            raise _bad(f"the zip has more than {MOST_BYTES // 1024**2} MiB in it")
                        written.write(chunk)


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Counted as it comes out: a zip may say anything of its sizes."""
    left = LARGEST_FILE
    with archive.open(info) as opened:
        while chunk := opened.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise _bad(f"{info.filename[:100]!r} has more than {LARGEST_FILE // 1024**2} MiB")
            yield chunk


def _bad(what: str) -> Refusal:
    return Refusal("INVALID_PARAM", what)
