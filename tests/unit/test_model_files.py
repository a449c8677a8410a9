"""Files in a workflow document: what may be named, and how steps choose."""

from typing import Any

import pytest

from accsd.errors import WorkflowInvalid
from accsd.model import WorkflowDef

SHA = "ab" * 32


def document(*files: Any, **step: Any) -> dict[str, Any]:
    return {"name": "w", "files": list(files), "steps": [{"key": "a", "service": "x", **step}]}


def stored(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "key": f"files/{name}", "sha256": SHA, "size": 3, **fields}


@pytest.mark.parametrize("name", ["a.ttf", "fonts/a b.ttf", "grüße/日本.txt", ".hidden", "..a/b", "n" * 255])
def test_a_name_is_a_relative_path(name: str):
    assert WorkflowDef.model_validate(document(stored(name))).files[0].name == name


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../a", "a/../b", "a//b", "a/", "./a", ".", "a\\b", "a\nb", "a\0", "n" * 256, "n/" * 300],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str):
    with pytest.raises(WorkflowInvalid, match=r"files\.0\.name"):
        WorkflowDef.model_validate(document(stored(name)))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([{"name": "a"}], "one of them"),
        ([{"name": "a", "source": "x", "key": "k", "sha256": SHA}], "one of them"),
        ([{"name": "a", "source": "x", "sha256": SHA}], "works out sha256 and size itself"),
        ([{"name": "a", "key": "k"}], "has a key but no sha256"),
        ([stored("a", sha256="AB" * 32)], "must be 64 hex digits"),
        ([stored("a", size=-1)], "files.0.size"),
        ([stored("a"), stored("a")], 'has the name "a" twice'),
        ([stored("a/b"), stored("a")], 'has "a" as a file, and as a folder'),
        ([stored("a", size=60 * 1024**3), stored("b", size=60 * 1024**3)], "more than 100 GiB"),
        ([stored(f"f{n}") for n in range(1001)], "files"),
        ([{"name": "a", "sauce": "x"}], 'unknown field "sauce"'),
    ],
)
def test_what_is_no_file_is_refused_in_words(files: list[Any], words: str):
    with pytest.raises(WorkflowInvalid) as refused:
        WorkflowDef.model_validate(document(*files))
    assert words in str(refused.value)


@pytest.mark.parametrize("wanted", [None, [], ["fonts"], ["fonts/"], ["fonts/a.ttf", "model.bin"]])
def test_a_step_chooses_files_and_folders(wanted: list[str] | None):
    files = [stored("fonts/a.ttf"), stored("model.bin")]
    assert WorkflowDef.model_validate(document(*files, files=wanted)).steps[0].files == wanted


@pytest.mark.parametrize("wanted", ["font", "fonts/b.ttf", "model.bin/", "", "/"])
def test_a_step_that_chooses_what_is_not_there_is_refused(wanted: str):
    with pytest.raises(WorkflowInvalid, match='step "a": files: the workflow has neither') as refused:
        WorkflowDef.model_validate(document(stored("fonts/a.ttf"), stored("model.bin"), files=[wanted]))
    assert refused.value.complaints[0][0] == ("steps", 0, "files", 0)


def test_only_what_is_in_the_store_can_be_written():
    assert WorkflowDef.model_validate(document(stored("a"))).files_document() == [stored("a")]
    assert WorkflowDef.model_validate(document()).files_document() == []
    with pytest.raises(WorkflowInvalid, match='file "a" has no key') as refused:
        WorkflowDef.model_validate(document({"name": "a", "source": "a.txt"})).files_document()
    assert "accsd workflows apply" in (refused.value.hint or "")
