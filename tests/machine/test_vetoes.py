"""Files and scripts that keep a machine awake, and the scripts that put it to sleep. With a real logind:
tests/acceptance/test_sleep_under_systemd.py."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from accsd.power.inhibitor import Inhibitor
from accsd.power.sleep import fall_asleep
from accsd.power.vetoes import veto
from accsd.settings import SleepSettings

# of the machine that runs the tests
ALONE = {"veto_users": False, "veto_inhibitors": False, "veto_files": []}


def rules(**values: Any) -> SleepSettings:
    return SleepSettings.model_validate({**ALONE, **values})


def script(folder: Path, text: str, mode: int = 0o755) -> Path:
    path = folder / "may-sleep"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


async def test_nobody_objects_where_nobody_may():
    assert await veto(rules(), "n1") is None


async def test_any_of_the_files_keeps_it_awake(tmp_path: Path):
    its = rules(veto_files=[str(tmp_path / "stay"), str(tmp_path / "locks" / "*")])
    assert await veto(its, "n1") is None
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "training").touch()
    assert await veto(its, "n1") == f"{tmp_path}/locks/training is there"


async def test_a_script_that_says_no_is_quoted(tmp_path: Path):
    its = rules(veto_script=script(tmp_path, 'echo "$1: a render in the other window"; echo more; exit 3'))
    assert await veto(its, "n1") == "may-sleep says no: n1: a render in the other window"
    script(tmp_path, "exit 0")
    assert await veto(its, "n1") is None


@pytest.mark.parametrize("mode", [0o644, 0o777])
async def test_a_script_that_cannot_be_trusted_or_run_is_a_no(tmp_path: Path, mode: int):
    said = await veto(rules(veto_script=script(tmp_path, "exit 0", mode)), "n1")
    assert said is not None
    assert said.startswith("may-sleep says no: ")


async def test_a_script_puts_the_machine_to_sleep_or_says_why_not(tmp_path: Path):
    told = tmp_path / "told"
    its = rules(method="script", script=script(tmp_path, f'echo "$1" >{told}'))
    assert await fall_asleep(its, "n1", {}) is None
    assert told.read_text() == "n1\n"
    script(tmp_path, "echo the fan is on fire; exit 1")
    said = await fall_asleep(its, "n1", {})
    assert said == "it could not be put to sleep: may-sleep ended with exit code 1: the fan is on fire"


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH: the machine that runs the tests is never suspended."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr("accsd.proc.PLAIN_ENVIRON", {"PATH": str(folder)})
    return folder


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


async def test_a_suspend_that_systemd_gives_up_is_known_as_soon_as_it_has(stand_ins: Path):
    stand_in(stand_ins, "systemctl", "exit 0")
    left = stand_ins / "left"
    left.write_text("1\n")
    stand_in(stand_ins, "busctl", f"read n <{left}; echo $((n - 1)) >{left}; [ $n = 0 ] && echo b false || echo b true")
    its = rules(method="suspend", within="60s")
    with anyio.fail_after(10):
        said = await fall_asleep(its, "n1", {})
    assert said == "it could not be put to sleep: systemd gave it up: see journalctl -u systemd-suspend"
    assert left.read_text() == "-1\n", "it was asked for as long as that lasted"

    stand_in(stand_ins, "systemctl", "echo Access denied >&2; exit 1")
    assert await fall_asleep(its, "n1", {}) == "it could not be put to sleep: systemctl suspend: Access denied"


async def test_where_logind_does_not_say_the_machine_is_given_its_time(stand_ins: Path):
    stand_in(stand_ins, "systemctl", "exit 0")
    assert await fall_asleep(rules(method="suspend"), "n1", {}) is None, "there is no busctl"
    stand_in(stand_ins, "busctl", "exit 1")
    assert await fall_asleep(rules(method="suspend"), "n1", {}) is None


async def test_a_provider_must_be_one_of_the_settings():
    said = await fall_asleep(rules(method="provider", provider_ref="studio/gpu-1"), "n1", {})
    assert said is not None
    assert "names a provider that is not in [wake.providers]" in said


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"method": "script"}, "needs a script"),
        ({"method": "provider"}, "needs a provider_ref"),
        ({"method": "script", "script": "sleep.sh"}, "not an absolute path"),
        ({"veto_script": "may-sleep"}, "not an absolute path"),
    ],
)
def test_a_way_to_sleep_that_lacks_something_is_refused(values: dict[str, Any], complaint: str):
    with pytest.raises(ValidationError, match=complaint):
        rules(**values)


async def test_without_a_logind_there_is_one_line_in_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("accsd.power.inhibitor._SYSTEMD_RUNS", tmp_path / "nowhere")
    its = Inhibitor(lingers=timedelta(0))
    async with anyio.create_task_group() as group:
        group.start_soon(its.serve)
        for busy in (True, False, True, False):
            its.want(busy=busy)
            await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert its.pid is None
    said = capsys.readouterr()
    assert (said.out + said.err).count("no_sleep_inhibitor") == 1
