"""Copies the modules that a service imports in an image without accsd: the wire as accsd_wire.py, and the folder
accsd_serving/ for a service that stays up. `accsd sdk vendor` calls it, and so does the demo."""

from dataclasses import dataclass
from pathlib import Path

from accsd.errors import InvalidValue
from accsd.sdk import serving, wire


@dataclass(frozen=True, slots=True)
class VendoredFile:
    path: Path
    is_new: bool  # False: the file was there, and is the same


def vendor(folder: Path, *, force: bool = False) -> list[VendoredFile]:
    """Writes the copies into the folder. All files are compared before the first is written; one that differs is
    replaced only by force."""
    copies = {folder / name: text for name, text in _copies().items()}
    try:
        there = {path: path.read_bytes() for path in copies if path.exists()}
        changed = [path for path, text in there.items() if text != copies[path]]
        if changed and not force:
            names = ", ".join(map(str, changed))
            raise InvalidValue(
                f"nothing is written, because this would change {names}",
                hint="--force replaces what an older accsd wrote, or somebody by hand",
            )
        made = [VendoredFile(path, is_new=there.get(path) != text) for path, text in copies.items()]
        for each in made:
            if each.is_new:
                each.path.parent.mkdir(parents=True, exist_ok=True)
                each.path.write_bytes(copies[each.path])
    except OSError as error:
        raise InvalidValue(
            f"{error.filename} cannot be written: {error.strerror}", hint="name another folder"
        ) from error
    return made


def _copies() -> dict[str, bytes]:
    package = sorted(Path(serving.__file__).parent.glob("*.py"))
    return {
        "accsd_wire.py": Path(wire.__file__).read_bytes(),
        **{f"accsd_serving/{file.name}": file.read_bytes() for file in package},
    }
