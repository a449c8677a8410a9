"""What is wrong with the compose file, the CLI, its plugin or the engine is said as what it is, with the next step."""

import os
from pathlib import Path

import pytest

from accsd.errors import ConfigError, DockerUnavailable
from accsd.runners.compose import Docker, Project, declared_services
from accsd.runners.compose.docker import cli_environment
from accsd.settings import ComposeSettings

pytestmark = [pytest.mark.needs_docker, pytest.mark.usefixtures("compose_engine"), pytest.mark.xdist_group("compose")]

GOOD = """
services:
  worker:
    image: accsd-test-busybox
    profiles: [accs]
    labels: {accs.mode: run, accs.command: '["echo", "$$5"]'}
  broken:
    image: accsd-test-busybox
    labels: {accs.mode: exec}
  cache:
    image: accsd-test-busybox
"""


def compose(tmp_path: Path, text: str) -> ComposeSettings:
    (tmp_path / "My Studio").mkdir()
    file = tmp_path / "My Studio" / "compose.yaml"
    file.write_text(text)
    return ComposeSettings(file=file)


async def test_good_services_are_served_beside_a_bad_one(tmp_path: Path) -> None:
    """Also one whose profile is not active: a service that runs per task is not to be started by `up`."""
    found = await declared_services(Docker(os.environ), compose(tmp_path, GOOD), {})
    assert found.project == "mystudio"
    assert list(found.services) == ["worker"]
    assert found.services["worker"].command == ["echo", "$5"]
    assert [problem.message for problem in found.problems] == [
        'service "broken" has accs.mode exec and therefore needs accs.command'
    ]


async def test_the_files_own_name_is_the_project(tmp_path: Path) -> None:
    found = await declared_services(Docker(os.environ), compose(tmp_path, "name: other\n" + GOOD), {})
    assert found.project == "other"


async def test_a_missing_file_is_a_setting_to_correct(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        await declared_services(Docker(os.environ), ComposeSettings(file=tmp_path / "none.yaml"), {})
    with pytest.raises(ConfigError, match="no compose file is configured"):
        await declared_services(Docker(os.environ), ComposeSettings(), {})


@pytest.mark.parametrize("text", ["services: [", "services: {x: {imagine: y}}"])
async def test_an_invalid_file_is_said_to_be_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is not valid") as failure:
        await declared_services(Docker(os.environ), compose(tmp_path, text), {})
    assert "config" in (failure.value.hint or "")


async def test_without_docker_it_is_to_be_installed(tmp_path: Path) -> None:
    docker = Docker(os.environ, program=str(tmp_path / "docker"))
    with pytest.raises(DockerUnavailable, match="cannot be executed") as failure:
        await declared_services(docker, compose(tmp_path, GOOD), {})
    assert "install docker" in (failure.value.hint or "")


async def test_without_the_plugin_it_is_to_be_installed(tmp_path: Path) -> None:
    docker = Docker({**os.environ, "HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)})
    if (await docker.call("compose", "version")).code == 0:
        pytest.skip("the plugin is installed for all users")
    with pytest.raises(DockerUnavailable, match="no compose plugin"):
        await declared_services(docker, compose(tmp_path, GOOD), {})


async def test_without_an_engine_declarations_are_read_and_work_is_not_taken(tmp_path: Path) -> None:
    docker = Docker({**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert (await declared_services(docker, compose(tmp_path, GOOD), {})).services
    with pytest.raises(DockerUnavailable, match="does not answer"):
        await docker.answers()


def test_a_projects_name_cannot_be_an_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Project(Docker(os.environ), tmp_path / "c.yaml", "--file=x")


def test_the_cli_gets_no_secret_of_accsd_and_nothing_that_names_another_project() -> None:
    given = {"PATH": "/bin", "ACC_DB_URL": "secret", "COMPOSE_FILE": "x", "COMPOSE_REMOVE_ORPHANS": "1"}
    environ = cli_environment(given)
    assert environ["PATH"] == "/bin"
    assert environ["COMPOSE_REMOVE_ORPHANS"] == "0"
    assert not {"ACC_DB_URL", "COMPOSE_FILE"} & environ.keys()
