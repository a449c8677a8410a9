"""Time zone rules of a test's own."""

import shutil
from pathlib import Path

from accsd.planning.recurrence import zone_rules


def folder_of_rules(folder: Path, version: str, **zones: str) -> Path:
    """Compiled rules in which each zone is like another one of the package's."""
    folder.mkdir(parents=True)
    (folder / "+VERSION").write_text(f"{version}\n")
    for name, like in {"UTC": "UTC", **zones}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(zone_rules().folder / like, folder / name)
    return folder
