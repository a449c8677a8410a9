"""`accsd workflows`: files in, versions made, graphs drawn, mistakes named with their line."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import chain, claim, diamond, node, started, step, submit_to, workflow

MEDIA = """\
name: media
steps:
  - {key: fetch, service: fetcher}
  - {key: render, service: renderer, depends_on: [fetch], timeout: 600}
"""


@pytest.fixture
def offline() -> Cli:
    return Cli(None)


@pytest.fixture
def media(tmp_path: Path) -> Path:
    return written(tmp_path, "media.yaml", MEDIA)


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


# Applied


async def test_a_changed_file_makes_a_new_version_and_an_unchanged_one_none(cli: Cli, media: Path, conn: Connection):
    (await cli.process("workflows", "apply", str(media))).ends(0, "media version 1 created", "no node has registered")
    (await cli("workflows", "apply", str(media))).ends(0, "media version 1 unchanged")
    rewrite(media, "# a comment\n" + MEDIA.replace("timeout: 600", "max_attempts: 3, timeout: 600.0"))
    (await cli("workflows", "apply", str(media))).ends(0, "media version 1 unchanged")
    rewrite(media, MEDIA.replace("600", "60"))
    (await cli("workflows", "apply", str(media))).ends(0, "media version 2 created (version 1 was the newest)")
    assert await conn.fetchval("SELECT steps -> 1 -> 'timeout' FROM workflows WHERE version = 1") == 600


async def test_what_a_workflow_subscribes_to_belongs_to_its_version(cli: Cli, media: Path, conn: Connection):
    (await cli("workflows", "apply", str(media))).ends(0, "media version 1 created")
    rewrite(media, MEDIA + "notify: [task.error, task.failed]\n")
    refused = (await cli("workflows", "check", str(media))).ends(1, "media.yaml:5: notify.1 ", '"task.failed" is no')
    assert "there are job.submitted, job.started" in refused.err
    rewrite(media, MEDIA + "notify: [task.error, task.done]\n")
    (await cli("workflows", "diff", str(media))).ends(1, "+- task.error")
    (await cli("workflows", "apply", str(media))).ends(0, "media version 2 created")
    rewrite(media, MEDIA + "notify: [task.done, task.error]\n")
    (await cli("workflows", "apply", str(media))).ends(0, "media version 2 unchanged")
    (await cli("workflows", "show", "media")).ends(0, "others are told: task.error, task.done")
    rewrite(media, (await cli("workflows", "show", "media", "-o", "yaml")).out)
    (await cli("workflows", "diff", str(media))).ends(0)
    assert await conn.fetchval("SELECT notify FROM workflows WHERE version = 2") == ["task.error", "task.done"]


async def test_a_title_is_for_people_and_belongs_to_its_version(cli: Cli, media: Path, tmp_path: Path):
    (await cli("workflows", "apply", str(media))).ends(0)
    assert "title" not in (await cli("workflows", "list")).ends(0).out
    titled = tmp_path / "titled.yaml"
    titled.write_text(f"title: Tides & Waves\n{MEDIA}")
    assert "+title: Tides & Waves" in (await cli("workflows", "diff", str(titled))).ends(1).out
    (await cli("workflows", "apply", str(titled))).ends(0, "version 2")
    (await cli("workflows", "apply", str(titled))).ends(0, "unchanged")
    (await cli("workflows", "list")).ends(0, "Tides & Waves")
    (await cli("workflows", "show", "media")).ends(0, "\nTides & Waves\n")
    assert "title: Tides & Waves" in (await cli("workflows", "show", "media", "-o", "yaml")).ends(0).out
    titled.write_text(f"title: {'x' * 201}\n{MEDIA}")
    assert f"{titled}:1: title" in (await cli("workflows", "check", str(titled))).ends(1).err
    titled.write_text(f'title: "two\\nlines"\n{MEDIA}')
    assert "title must be one line of text" in (await cli("workflows", "check", str(titled))).ends(1).err


async def test_a_file_that_names_its_version_is_written_under_it(cli: Cli, media: Path, conn: Connection):
    rewrite(media, "version: 7\n" + MEDIA)
    (await cli("workflows", "apply", str(media))).ends(0, "media version 7 created")
    rewrite(media, "version: 7\n" + MEDIA.replace("600", "60"))
    told = (await cli("workflows", "apply", str(media), "-o", "json")).ends(0)
    assert told.json == [{"name": "media", "version": 7, "change": "updated", "previous": 7}]
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 1


async def test_an_inactive_version_is_made_active_again(cli: Cli, media: Path, conn: Connection):
    await cli("workflows", "apply", str(media))
    await conn.execute("UPDATE workflows SET is_active = false")
    (await cli("workflows", "apply", str(media))).ends(0, "media version 1 updated")
    assert await conn.fetchval("SELECT is_active FROM workflows")


async def test_a_folder_of_yaml_and_json_and_several_documents_are_applied_together(
    cli: Cli, tmp_path: Path, conn: Connection
):
    written(
        tmp_path,
        "a.yaml",
        "{name: one, steps: [{key: a, service: s}]}\n---\n{name: two, steps: [{key: a, service: s}]}",
    )
    written(tmp_path, "b.json", '{"name": "three",\n\t"steps": [{"key": "a", "service": "s"}]}')
    written(tmp_path, "notes.txt", "not a workflow")
    (await cli("workflows", "apply", str(tmp_path))).ends(0, "one version 1", "two version 1", "three version 1")


async def test_one_wrong_file_keeps_all_of_them_out(cli: Cli, tmp_path: Path, media: Path, conn: Connection):
    wrong = written(tmp_path, "wrong.yaml", "name: wrong\nsteps: []\n")
    (await cli("workflows", "apply", str(media), str(wrong))).ends(1, "wrong.yaml")
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


async def test_stdin_is_a_file_too(cli: Cli):
    (await cli("workflows", "apply", "-", stdin=MEDIA)).ends(0, "media version 1 created")


async def test_a_service_that_no_node_offers_is_a_warning(cli: Cli, media: Path, conn: Connection):
    await node(conn, fetcher=1, rendrer=1)
    said = (await cli("workflows", "apply", str(media))).ends(0)
    assert 'warning: no node offers service renderer (did you mean "rendrer"?)' in said.err
    assert "fetcher" not in said.err


# Checked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MEDIA.replace("timeout", "tiemout"), [":4: ", 'unknown field "tiemout" (did you mean "timeout"?)']),
        (MEDIA.replace("[fetch]", "[fecth]"), [":4: ", '"fecth", which does not exist', 'did you mean "fetch"?']),
        (MEDIA.replace("fetcher}", "fetcher, depends_on: [render]}"), [":3: ", "in a circle: fetch → render → fetch"]),
        (
            MEDIA.replace("key: render", "key: fetch").replace("[fetch]", "[]"),
            [":4: ", 'two steps have the key "fetch"'],
        ),
        (MEDIA + "name: again\n", [":5: name is written twice"]),
        (MEDIA + "steps:\n", ["steps is written twice"]),
        ("name: x\nsteps: [\n", [":3: "]),
        ("- a\n", [":1: must be a table"]),
        ("", ["the file is empty"]),
    ],
    ids=["field", "dependency", "circle", "twins", "name twice", "steps twice", "syntax", "list", "empty"],
)
async def test_a_mistake_is_named_with_its_line_without_a_database(
    offline: Cli, tmp_path: Path, text: str, words: list[str]
):
    path = written(tmp_path, "w.yaml", text)
    said = (await offline("workflows", "check", str(path))).ends(1, *words)
    assert str(path) in said.err


async def test_all_mistakes_are_told_at_once(offline: Cli, tmp_path: Path):
    path = written(tmp_path, "w.yaml", MEDIA.replace("timeout: 600", "timeout: -1, max_attempts: 0"))
    said = (await offline("workflows", "check", str(path), str(path))).ends(1)
    assert said.err.count("timeout must be greater than 0") == 2
    assert said.err.count("max_attempts must be greater than or equal to 1") == 2


async def test_a_json_mistake_has_its_line_too(offline: Cli, tmp_path: Path):
    path = written(tmp_path, "w.json", '{"name": "x",\n "steps": [\n  {"key": "a", "servise": "s"}]}')
    (await offline("workflows", "check", str(path))).ends(1, 'w.json:3: step "a": has an unknown field "servise"')
    path.write_text('{"name": "x",\n')
    (await offline("workflows", "check", str(path))).ends(1, "w.json:")


async def test_a_sound_file_is_ok_and_the_services_are_checked_where_there_is_a_database(
    offline: Cli, cli: Cli, media: Path, conn: Connection
):
    said = (await offline.process("workflows", "check", str(media))).ends(0, "media: ok, 2 steps")
    assert said.err == ""
    await node(conn, fetcher=1)
    (await cli("workflows", "check", str(media))).ends(0, "no node offers service renderer")
    assert (await cli("workflows", "check", "--no-services", str(media))).err == ""


async def test_a_database_that_is_away_is_only_fatal_where_it_was_asked_for(media: Path):
    nowhere = Cli("postgresql://ann@127.0.0.1:1/x")
    (await nowhere("workflows", "check", str(media))).ends(0, "media: ok", "services were not checked")
    (await nowhere("workflows", "check", "--services", str(media))).ends(4, "can't be reached")


async def test_a_file_that_is_not_there_is_not_found(offline: Cli, tmp_path: Path):
    (await offline("workflows", "check", str(tmp_path / "none.yaml"))).ends(3, "there is no file")
    (await offline("workflows", "check", "x" * 5_000)).ends(3, "there is no file")
    (await offline("workflows", "check", str(tmp_path))).ends(3, "there is no workflow file in")


# Listed, shown, compared


async def test_list_has_the_newest_version_of_each(cli: Cli, conn: Connection):
    (await cli("workflows", "list")).ends(0, "no workflows yet: `accsd workflows apply FILE`")
    await workflow(conn, *chain("a", "b"), name="media")
    await workflow(conn, *chain("a", "b", "c"), name="media", version=2)
    await workflow(conn, name="other")
    listed = (await cli.process("workflows", "list", "-o", "json")).ends(0).json
    assert [(row["name"], row["version"], row["steps"]) for row in listed] == [("media", 2, 3), ("other", 1, 1)]
    assert (await cli("workflows", "list", "--all", "-o", "name")).out.split() == ["media", "media", "other"]


async def test_show_draws_the_graph(cli: Cli, conn: Connection):
    await workflow(conn, *diamond("gpu"), name="d")
    lines = [line.rstrip() for line in (await cli.process("workflows", "show", "d")).ends(0).out.splitlines()]
    assert lines[0].startswith("d  version 1, active, 4 steps")
    assert [line[:9].rstrip() for line in lines[2:]] == [
        "STEP", "● top", "├─╮", "● │ left", "│ ● right", "├─╯", "● bottom",
    ]  # fmt: skip
    assert lines[3].split() == ["●", "top", "gpu", "3"]


async def test_what_show_gives_as_yaml_is_what_apply_takes(cli: Cli, conn: Connection, tmp_path: Path):
    await workflow(conn, step("a", timeout=5, requires={"gpu": True}, backoff=[1, 2]), step("b", after="a"), name="w")
    shown = (await cli("workflows", "show", "w", "-o", "yaml")).ends(0).out
    document: dict[str, Any] = yaml.safe_load(shown)
    assert document["steps"][0]["timeout"] == 5
    (await cli("workflows", "apply", str(written(tmp_path, "w.yaml", shown)))).ends(0, "w version 1 unchanged")


async def test_a_workflow_that_is_not_there_is_not_found_and_the_name_that_was_meant_is_said(
    cli: Cli, conn: Connection
):
    (await cli("workflows", "show", "media")).ends(3, "nor any other", "accsd workflows apply FILE")
    await workflow(conn, name="media")
    (await cli("workflows", "show", "meida")).ends(3, 'did you mean "media"?', "→ try `accsd workflows list`")
    (await cli("workflows", "show", "media", "--version", "9")).ends(3, "version 9", "workflows list --all")


async def test_diff_compares_with_what_is_applied(cli: Cli, media: Path):
    new = (await cli("workflows", "diff", str(media))).ends(1)
    assert "+name: media" in new.out
    await cli("workflows", "apply", str(media))
    assert (await cli("workflows", "diff", str(media))).ends(0).out == ""
    rewrite(media, MEDIA.replace("600", "60"))
    lines = (await cli.process("workflows", "diff", str(media))).ends(1).out.splitlines()
    assert [line for line in lines if line[:1] in "+-" and line[1:2] == " "] == ["-  timeout: 600", "+  timeout: 60"]


# Paused


async def test_a_paused_workflow_begins_nothing_until_it_is_resumed(cli: Cli, conn: Connection):
    await node(conn, render=2)
    flow = await workflow(conn, step("a"), step("b"), name="media")
    job_id = await submit_to(conn, flow)
    await started(conn)
    (await cli("workflows", "pause", "media", "--reason", "codec")).ends(
        0, "1 tasks go on", "`accsd workflows resume media`"
    )
    assert await claim(conn) == []
    (await cli("workflows", "pause", "media")).ends(0, "media was paused already", ": codec")
    (await cli("jobs")).ends(0, "running (paused)")
    assert (await cli("jobs", "-o", "json")).json[0]["is_paused"] is True
    (await cli("why", str(job_id))).ends(0, 'workflow "media" is paused', ": codec", "→ `accsd workflows resume media`")
    (await cli("workflows", "list")).ends(0, "PAUSED")
    (await cli("workflows", "resume", "media")).ends(0, "media goes on")
    (await cli("workflows", "resume", "media")).ends(0, "was not paused")
    assert "PAUSED" not in (await cli("workflows", "list")).ends(0).out
    assert len(await claim(conn)) == 1
    (await cli("workflows", "pause", "meida")).ends(3, 'did you mean "media"?')


@pytest.mark.parametrize(("written_as", "seconds"), [("10m", 600), ('"1h30m"', 5400), ("500ms", 0.5), ("600", 600)])
async def test_a_timeout_may_be_written_as_a_length_of_time(
    cli: Cli, tmp_path: Path, conn: Connection, written_as: str, seconds: float
):
    file = written(tmp_path, "w.yaml", MEDIA.replace("600", written_as))
    (await cli("workflows", "apply", str(file))).ends(0)
    assert await conn.fetchval("SELECT steps -> 1 -> 'timeout' FROM workflows") == seconds
    (await cli("workflows", "apply", str(file))).ends(0, "unchanged")


@pytest.mark.parametrize("written_as", ["10 minuets", "soon", "0s", "-5m", "999999999d", "[10m]", "yes"])
async def test_a_timeout_that_is_no_length_of_time_is_refused(offline: Cli, tmp_path: Path, written_as: str):
    file = written(tmp_path, "w.yaml", MEDIA.replace("600", written_as))
    (await offline("workflows", "check", str(file))).ends(1, ':4: step "render": timeout must be')


# Files that mean no good, or went wrong

ONE_STEP = "name: w\nsteps: [{key: a, service: s"


def nested_aliases(levels: int) -> str:
    """Ten times as many values with each line."""
    lines = ["name: w", "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join([*lines, f"steps: *x{levels - 1}", ""])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: w\nsteps: &s [*s]\n", ":2: *s stands within what it names"),
        ("name: w\nsteps: &s [*s, *s]\n", ":2: *s stands within what it names"),
        ("&w\nname: w\nsteps: [{key: a, service: s, default_params: {p: *w}}]\n", ":3: *w stands within"),
        (nested_aliases(10), ":7: *x4 and the aliases before it repeat more than 1,000,000 values"),
        ("name: *nobody\n", ":1: there is no anchor &nobody"),
        (f"{ONE_STEP}, depends_on: 5}}]\n", ':2: step "a": depends_on must be a list'),
        (f"{ONE_STEP}, depends_on: {{b: 1}}}}]\n", 'step "a": depends_on must be a list'),
        (f"{ONE_STEP}, depends_on: [5]}}]\n", 'step "a": depends_on.0 must be text'),
        ("name: w\nsteps: [{key: [a], service: s}]\n", "step number 1: key must be text"),
        (f"{ONE_STEP}, default_params: {{p: {'[' * 150}{']' * 150}}}}}]\n", ":2: this is nested deeper than 100"),
        ("[" * 1_000_000, ":1: this is nested deeper than 100 levels"),
        ("{a: " * 1_000_000, ":1: this is nested deeper than 100 levels"),
        ("- " * 1_000_000, ":1: this is nested deeper than 100 levels"),
        ("name: !!python/object/apply:os.system [id]\n", ":1: the tag tag:yaml.org,2002:python/object/apply:os.system"),
        ("name: w\nsteps: !!set {a, b}\n", ":2: the tag tag:yaml.org,2002:set has no meaning here"),
        (f"{ONE_STEP}, max_attempts: 1{':1' * 500_000}}}]\n", "max_attempts must be a whole number"),
        (f"{ONE_STEP}, max_attempts: {'9' * 5_000}}}]\n", "max_attempts must be a whole number"),
        (f"{ONE_STEP}, max_attempts: !!int {'9' * 5_000}}}]\n", ":2: the tag tag:yaml.org,2002:int has no meaning"),
        ("name: w\n? [a, b]\n: 1\n", ":2: a key must be text"),
        ("name: w\n? {a: b}\n: 1\n", ":2: a key must be text"),
        ("name: w\n<<: [5]\nsteps: []\n", "<< takes a mapping, or a list of them"),
        ("name: 2026-13-45\n", "can't be read"),
        ("name: !!timestamp soon\n", "is no timestamp"),
        ("name: w\x1b]0;x\x07\n", "control characters are not allowed"),
        ("name: \"\\e[31mx\"\nsteps: [{key: \"\\e[2J\", service: s}]\n", 'is not a step key'),
        ("", "the file is empty"),
        ("---\n---\n", "must be a table of keys and values"),
        ("5\n", "must be a table of keys and values"),
    ],
)  # fmt: skip
async def test_a_hostile_file_is_refused_at_once_in_words(offline: Cli, tmp_path: Path, text: str, words: str):
    file = written(tmp_path, "w.yaml", text)
    said = (await offline("workflows", "check", str(file))).ends(1, words)
    assert len(said.err) < 3000
    assert not any(c < " " and c != "\n" for c in said.err)


async def test_anchors_and_merged_mappings_are_still_a_way_to_write_less(cli: Cli, tmp_path: Path, conn: Connection):
    text = """\
name: media
steps:
  - &first {key: a, service: s, max_attempts: 7, default_params: &p {x: 1}}
  - <<: *first
    key: b
    depends_on: [a]
  - {<<: [{key: c, timeout: 5}, *first], default_params: *p}
"""
    (await cli("workflows", "apply", str(written(tmp_path, "w.yaml", text)))).ends(0)
    _, second, third = await conn.fetchval("SELECT steps FROM workflows")
    assert second == {
        "key": "b",
        "service": "s",
        "max_attempts": 7,
        "default_params": {"x": 1},
        "depends_on": ["a"],
    }
    assert (third["key"], third["timeout"], third["max_attempts"]) == ("c", 5, 7)


async def test_the_first_mistakes_of_a_hundred_thousand_are_told(offline: Cli, tmp_path: Path):
    steps = "".join(f"- {{key: s{n}, service: s, dependson: [a]}}\n" for n in range(100_000))
    file = written(tmp_path, "w.yaml", f"name: w\nsteps:\n{steps}")
    said = (await offline("workflows", "check", str(file))).ends(1, "and 99980 more")
    first, *_ = said.err.splitlines()
    assert first.endswith(':3: step "s0": has an unknown field "dependson" (did you mean "depends_on"?)')


async def test_a_hundred_thousand_steps_are_a_moderate_file(tmp_path: Path):
    """By memory, which does not depend on how busy the machine is. A tree of nodes was 379 MB. (Not by ru_maxrss: that
    begins with the size of the process that forked.)"""
    steps = "".join(
        f"- key: s{n}\n  service: render\n" + (f"  depends_on: [s{n - 1}]\n" if n else "") for n in range(100_000)
    )
    written(tmp_path, "w.yaml", f"name: w\nsteps:\n{steps}")
    measured = (
        "import re, sys; from accsd.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "print(int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", measured, "workflows", "check", "--no-services", str(tmp_path / "w.yaml")],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    said, megabytes = ended.stdout.splitlines()
    assert said == "w: ok, 100000 steps"
    assert int(megabytes) < 300
