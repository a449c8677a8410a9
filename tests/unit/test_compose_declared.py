"""What labels in a compose file mean, and that one bad service does not hide the others."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from accsd.runners.compose.declared import Declarations, Declared, Mode, read_declarations
from accsd.settings import Limits, ServiceSettings


def read(services: dict[str, dict[str, Any]], **settings: ServiceSettings) -> Declarations:
    return read_declarations({"name": "studio", "services": services}, settings)


def labelled(mode: str | None = "run", **labels: str) -> dict[str, Any]:
    given = {f"accs.{name.replace('__', '.').replace('_', '-')}": text for name, text in labels.items()}
    return {"image": "studio/x", "labels": ({"accs.mode": mode} if mode else {}) | given}


def problem_of(entry: dict[str, Any], name: str = "x") -> str:
    found = read({name: entry, "good": labelled()})
    assert list(found.services) == ["good"]
    (problem,) = found.problems
    return str(problem)


def test_all_labels_are_read() -> None:
    entry = labelled(
        "exec",
        command='["python", "-m", "render"]',
        concurrency="2",
        idle_stop="10m",
        timeout="1h",
        stop_grace="3s",
        requires="gpu=true,zone=eu",
        limits__memory="1g",
        limits__pids="64",
        limits__output="2m",
        tool="media.render",
        tool__schema="render.yaml",
    )
    assert read({"renderer": entry}).services["renderer"] == Declared(
        service="renderer",
        mode=Mode.EXEC,
        image="studio/x",
        command=["python", "-m", "render"],
        concurrency=2,
        idle_stop=timedelta(minutes=10),
        timeout=timedelta(hours=1),
        stop_grace=timedelta(seconds=3),
        limits=Limits(memory=1024**3, pids=64, output=2 * 1024**2),
        requires={"gpu": True, "zone": "eu"},
        tool="media.render",
        tool_schema=Path("render.yaml"),
    )


def test_a_service_without_labels_is_none_of_ours() -> None:
    found = read({"cache": {"image": "redis", "labels": {"traefik.enable": "true"}}})
    assert (found.services, found.problems) == ({}, ())


def test_run_needs_no_command_and_a_built_image_has_the_projects_name() -> None:
    declared = read({"x": {"build": {"context": "."}, "labels": {"accs.mode": "run"}}}).services["x"]
    assert (declared.command, declared.image, declared.is_built) == (None, "studio-x", True)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (labelled("exec"), "needs accs.command"),
        (labelled("http"), "needs accs.port"),
        (labelled("http", port="80a"), "accs.port must be a number"),
        (labelled("http", port="70000"), "accs.port must be a number"),
        (labelled("http", port="9" * 5_000), "accs.port must be a number"),
        (labelled("http", port="80", command='["a"]'), "which nobody would run"),
        (labelled("run", tool="Render"), "accs.tool"),
        (labelled("batch"), 'accs.mode "batch"'),
        (labelled(None, concurrency="2"), "has no accs.mode"),
        (labelled(concurency="2"), 'did you mean "accs.concurrency"'),
        (labelled(command="python x.py"), "accs.command must be a JSON list"),
        (labelled(command='["a", 1]'), "accs.command.1 must be text"),
        (labelled(concurrency="many"), "accs.concurrency must be a whole number"),
        (labelled(idle_stop="soon"), "accs.idle-stop a duration"),
        (labelled(limits__memory="lots"), "accs.limits.memory a size"),
        (labelled(requires="gpu"), "accs.requires must be written as"),
        (labelled(workdir="data"), "accs.workdir must be an absolute path"),
        (labelled(workdir="/data/../etc"), "accs.workdir must be an absolute path"),
        (labelled(workdir="/"), "accs.workdir must be an absolute path"),
    ],
)
def test_a_bad_label_is_a_problem_of_its_service_only(entry: dict[str, Any], said: str) -> None:
    assert said in problem_of(entry)


@pytest.mark.parametrize("name", ["-f", "builder", "x" * 41])
def test_a_name_that_cannot_be_served_is_refused(name: str) -> None:
    assert "cannot be served" in problem_of(labelled(), name)


def test_settings_win_over_labels_where_they_say_something() -> None:
    entry = labelled("exec", command='["a"]', concurrency="2", idle_stop="10m", limits__memory="1g")
    settings = ServiceSettings(concurrency=5, limits=Limits(pids=7))
    declared = read({"x": entry}, x=settings).services["x"]
    assert (declared.command, declared.concurrency, declared.idle_stop) == (["a"], 5, timedelta(minutes=10))
    assert declared.limits == Limits(memory=1024**3, pids=7)


def test_settings_may_name_a_service_that_bears_no_label() -> None:
    found = read({"x": {"image": "i"}, "y": {"image": "i"}}, x=ServiceSettings(command=["a"]), y=ServiceSettings())
    assert (found.services["x"].mode, found.services["y"].mode) == (Mode.EXEC, Mode.RUN)


def test_settings_may_run_a_labelled_service_as_a_process() -> None:
    assert read({"x": labelled()}, x=ServiceSettings(runner="process", command=["a"])).services == {}


def test_a_service_in_the_settings_that_the_file_lacks_is_a_problem() -> None:
    (problem,) = read({}, x=ServiceSettings()).problems
    assert "not in the compose file" in str(problem)


@pytest.mark.parametrize(
    ("volumes", "source"),
    [
        ([{"type": "bind", "source": "/srv/data", "target": "/data"}], Path("/srv/data/jobs")),
        ([{"type": "bind", "source": "/srv/jobs", "target": "/data/jobs/"}], Path("/srv/jobs")),
        ([{"type": "bind", "source": "/srv", "target": "/dat"}], None),
        ([{"type": "bind", "source": "/srv", "target": "/data", "read_only": True}], None),
        ([{"type": "volume", "source": "v", "target": "/data"}], None),
        (
            [{"type": "bind", "source": "/srv", "target": "/data"}, {"type": "tmpfs", "target": "/data/jobs"}],
            None,
        ),
        ([], None),
    ],
)
def test_a_folder_is_shared_where_the_innermost_mount_is_a_bind(
    volumes: list[dict[str, Any]], source: Path | None
) -> None:
    entry = labelled("exec", command='["a"]', workdir="/data/jobs") | {"volumes": volumes}
    assert read({"x": entry}).services["x"].workdir_source == source


def test_a_service_of_mode_http_names_its_port() -> None:
    declared = read({"x": labelled("http", port="8080")}).services["x"]
    assert (declared.mode, declared.port, declared.command) == (Mode.HTTP, 8080, None)


def test_only_what_is_required_is_a_dependency() -> None:
    entry = labelled() | {"depends_on": {"db": {"condition": "service_healthy"}, "log": {"required": False}}}
    assert read({"x": entry}).services["x"].depends_on == {"db": "service_healthy"}
