"""Where a service of mode http is asked, and what its answers mean."""

from typing import Any

import pytest

from accsd.errors import DockerUnavailable
from accsd.runners.base import Stream
from accsd.runners.compose.docker import Container
from accsd.runners.compose.http_client import ServiceAddress, State, address_of


def container(**settings: Any) -> Container:
    """As `docker inspect` shows one, as far as it matters here."""
    state = {"Status": "running", "Pid": 1, "ExitCode": 0, "OOMKilled": False, "Error": "", "StartedAt": "0001-01-01"}
    config = {"Labels": {}, "Env": settings.get("env")}
    network = {"Ports": settings.get("ports"), "Networks": settings.get("networks")}
    host = {"NetworkMode": settings.get("mode", "bridge")}
    return Container.read(
        {"Id": "c", "Name": "/c", "State": state, "Config": config, "NetworkSettings": network, "HostConfig": host}
    )


def published(host: str) -> dict[str, Any]:
    return {
        "8080/udp": [{"HostIp": "", "HostPort": "1"}],
        "8080/tcp": [{"HostIp": host, "HostPort": "49153"}],
        "9/tcp": None,
    }


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (container(ports=published("127.0.0.1")), ServiceAddress("127.0.0.1", 49153)),
        (container(ports=published("0.0.0.0")), ServiceAddress("127.0.0.1", 49153)),
        (container(ports=published("::")), ServiceAddress("127.0.0.1", 49153)),
        (container(ports=published("10.0.0.7")), ServiceAddress("10.0.0.7", 49153)),
        (container(networks={"studio": {"IPAddress": "172.18.0.2"}}), ServiceAddress("172.18.0.2", 8080)),
        (container(mode="host", networks={"host": {"IPAddress": ""}}), ServiceAddress("127.0.0.1", 8080)),
        (container(mode="host", env=["A=1", "ACC_SERVE_TOKEN=a=b"]), ServiceAddress("127.0.0.1", 8080, "a=b")),
    ],
)
def test_it_is_asked_at_the_published_port_or_else_at_its_own_address(
    found: Container, address: ServiceAddress
) -> None:
    assert address_of(found, 8080) == address


def test_without_a_network_nobody_can_ask_it() -> None:
    with pytest.raises(DockerUnavailable, match="no address"):
        address_of(container(mode="none", networks={"none": {"IPAddress": ""}}), 8080)


@pytest.mark.parametrize(
    ("document", "state"),
    [
        ({"state": "running", "stdout": 5}, State(False, sizes={Stream.STDOUT: 5})),
        ({"state": "ended", "exit_code": 0, "lost": None}, State(True, 0)),
        ({"state": "ended", "exit_code": 143, "lost": "stopped"}, State(True, 143, "stopped")),
        ({"state": "ended"}, State(True, None, "the service does not say how it ended")),
        ({"state": "ended", "exit_code": "0"}, State(True, None, "the service does not say how it ended")),
        ({}, State(False)),
    ],
)
def test_an_end_without_an_exit_code_is_a_loss(document: dict[str, Any], state: State) -> None:
    assert State.read(document) == state
