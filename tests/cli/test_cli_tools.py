"""`accsd tools`: written from files, listed, shown, retired; and workflows that use them."""

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.cluster import Connection

TOOL = """name: media.probe
service: prober
description: How long a recording is.
input_schema:
  required: [url]
  properties:
    url: {type: string, description: where it is}
output_schema:
  required: [seconds]
  properties: {seconds: {type: number}}
defaults: {timeout: 2m}
"""


@pytest.fixture
def cli(db_url: str, conn: Connection) -> Cli:
    return Cli(db_url)


async def test_a_tool_is_written_shown_used_and_retired(cli: Cli, tmp_path: Path):
    tool, workflow = tmp_path / "probe.yaml", tmp_path / "media.yaml"
    tool.write_text(TOOL)
    workflow.write_text('name: media\nsteps: [{key: a, uses: media.probe, with: {url: "${params.url}"}}]\n')
    assert (await cli("tools", "apply", str(tool))).ends(0).out == "media.probe version 1 written\n"
    assert (await cli("tools", "apply", str(tool))).ends(0).out == "media.probe version 1 unchanged\n"
    assert "media.probe" in (await cli("tools", "list", "-o", "name")).ends(0).out.split()
    shown = (await cli("tools", "show", "media.probe")).ends(0).out
    assert shown.splitlines() == [
        "media.probe@1  service, done by prober",
        "How long a recording is.",
        "",
        "takes",
        "  url  string  required  where it is",
        "",
        "gives",
        "  seconds  number  required",
    ]

    (await cli("workflows", "validate", str(workflow))).ends(0, "media: ok")
    (await cli("workflows", "apply", str(workflow))).ends(0)
    (await cli("workflows", "diff", str(workflow))).ends(0)
    assert "media.probe@1" in (await cli("workflows", "show", "media")).ends(0).out
    (await cli("workflows", "render", str(workflow), "--step", "a", "--with", '{"params": {"url": "x"}}')).ends(
        0, "runs"
    )
    (await cli("workflows", "render", "media", "--step", "a", "--with", '{"params": {"url": "x"}}')).ends(0, "runs")
    wrong = await cli("workflows", "render", "media", "--step", "a", "--with", '{"params": {"url": 7}}')
    assert "with.url must be a text" in wrong.ends(1).out
    again = tmp_path / "again.yaml"
    again.write_text((await cli("tools", "show", "media.probe", "-o", "yaml")).ends(0).out)
    assert "unchanged" in (await cli("tools", "apply", str(again))).ends(0).out

    assert (await cli("tools", "retire", "media.probe")).ends(0).out == "media.probe is retired\n"
    (await cli("workflows", "validate", str(workflow))).ends(1, "which is retired")
    assert "media.probe" not in (await cli("tools", "list", "-o", "name")).ends(0).out.split()
    (await cli("tools", "show", "media.prob")).ends(3, "there is no tool")


async def test_all_that_is_wrong_with_a_tool_is_said_with_its_line(cli: Cli, tmp_path: Path):
    file = tmp_path / "probe.yaml"
    file.write_text(TOOL.replace("type: number", "type: numbr").replace("service: prober", "servise: prober"))
    said = (await cli("tools", "apply", str(file))).ends(2).err
    assert f'{file}:2: has an unknown field "servise" (did you mean "service"?)' in said
    assert f"{file}:9: output_schema is no schema: properties.seconds.type fits none of" in said


@pytest.mark.parametrize("command", ["check", "apply"])
async def test_a_step_that_uses_a_tool_wrongly_is_named_with_file_and_line(cli: Cli, tmp_path: Path, command: str):
    tool, workflow, pipeline = (tmp_path / name for name in ("probe.yaml", "media.yaml", "pipe.yaml"))
    tool.write_text(TOOL)
    (await cli("tools", "apply", str(tool))).ends(0)
    tool.write_text(TOOL.replace("2m", "3m"))
    (await cli("tools", "apply", str(tool))).ends(0)
    (await cli("tools", "retire", "media.probe@1")).ends(0)
    workflow.write_text(
        """name: media
steps:
  - key: a
    uses: media.prob
  - key: b
    uses: media.probe@1
  - key: c
    uses: media.probe
    with:
      url: 7
  - key: d
    uses: media.probe@9
"""
    )
    pipeline.write_text("name: pipe\npipeline:\n  - id: a\n    uses: media.probe\n    with:\n      colour: red\n")

    told = (await cli("workflows", command, str(workflow), str(pipeline))).ends(1).err

    for sentence in (
        f'{workflow}:4: step "a": uses names the tool media.prob, which is not there (did you mean "media.probe"?)',
        f'{workflow}:6: step "b": uses names media.probe@1, which is retired',
        f'{workflow}:10: step "c": with.url must be a text',
        f'{workflow}:12: step "d": uses names media.probe@9; of media.probe there are the versions 1, 2',
        f'{pipeline}:6: step "a": with has an unknown field "colour"',
    ):
        assert sentence in told, told
    assert "media" not in (await cli("workflows", "list", "-o", "name")).ends(0).out
    workflow.write_text("name: media\nsteps: [{key: a, uses: media.prob}]\n")
    (await cli("workflows", command, str(workflow))).ends(1, 'did you mean "media.probe"?')


# What nodes offer


async def _offered(conn: Connection, node: str, **tool: object) -> None:
    await conn.fetch("SELECT * FROM accs.register_node($1, p_tools => $2)", node, [{"service": "prober", **tool}])


async def test_an_offered_tool_is_one_when_it_is_accepted(cli: Cli, conn: Connection):
    await _offered(conn, "desk", name="media.probe", input_schema={"required": ["url"]})
    (await cli("nodes", "show", "desk")).ends(0, "media.probe (prober)")
    (shown,) = (await cli("nodes", "show", "desk", "-o", "json")).json
    assert shown["offered_tools"] == ["media.probe"]
    (await cli("tools", "list", "--offered")).ends(0, "not accepted")
    assert "media.probe" not in (await cli("tools", "list")).ends(0).out
    (await cli("tools", "accept", "media.probe")).ends(0, "media.probe version 1 written")
    (await cli("tools", "accept", "media.probe")).ends(0, "media.probe version 1 unchanged")
    (await cli("tools", "list", "--offered")).ends(0, "accepted as version 1")
    await _offered(conn, "desk", name="media.probe", description="better")
    (await cli("tools", "list", "--offered")).ends(0, "differs from version 1")
    (await cli("tools", "accept", "media.probe", "--node", "desk")).ends(0, "media.probe version 2 written")


async def test_an_offer_is_checked_when_it_is_accepted(cli: Cli, conn: Connection):
    await _offered(conn, "desk", name="media.probe", input_schema={"type": "nonsense"})
    refused = (await cli("tools", "accept", "media.probe")).ends(2)
    assert "desk offers is wrong" in refused.err
    assert "input_schema" in refused.err
    (await cli("tools", "list", "--offered")).ends(0, "desk offers is wrong")
    request = {"target": "chat", "headers": {"Authorization": "${secret('chat')}"}}
    await _offered(conn, "desk", name="media.probe", service="accs", kind="http", request=request)
    assert "not one of its service" in (await cli("tools", "accept", "media.probe")).ends(2).err
    assert "desk does not offer" in (await cli("tools", "accept", "a.b", "--node", "desk")).ends(3).err


async def test_of_different_offers_one_has_to_be_chosen(cli: Cli, conn: Connection):
    await _offered(conn, "desk", name="media.probe", description="one")
    await _offered(conn, "lamp", name="media.probe", description="two")
    refused = (await cli("tools", "accept", "media.probe")).ends(2)
    assert "desk (prober) and by lamp (prober), and they differ" in refused.err
    (await cli("tools", "accept", "media.probe", "--node", "lamp")).ends(0)
    (await cli("tools", "show", "media.probe")).ends(0, "two")
