"""Services of this node's compose file: declared by labels there, run by the docker CLI."""

from accsd.runners.base import Runner
from accsd.runners.compose.declared import Declarations, Declared, Mode, compose_file, declared_services, with_settings
from accsd.runners.compose.docker import Docker
from accsd.runners.compose.exec import ExecRunner
from accsd.runners.compose.http import HttpRunner
from accsd.runners.compose.project import Project
from accsd.runners.compose.run import RunRunner, remove_container

__all__ = [
    "Declarations",
    "Declared",
    "Docker",
    "ExecRunner",
    "HttpRunner",
    "Mode",
    "Project",
    "RunRunner",
    "compose_file",
    "compose_runner",
    "declared_services",
    "remove_container",
    "with_settings",
]


def compose_runner(project: Project, declared: Declared, node: str) -> Runner:
    """The runner of one declared service. All services of a project share one Project: it lets one start at a time."""
    match declared.mode:
        case Mode.EXEC:
            return ExecRunner(project, declared, node)
        case Mode.HTTP:
            return HttpRunner(project, declared, node)
        case Mode.RUN:
            return RunRunner(project, declared, node)
