"""The command line, run inside the test (fast) or as a real process (true), with nothing of ours in the environment."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from accsd.cli import main

ACCSD = [sys.executable, "-m", "accsd"]


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it said where."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def ends(self, code: int, *words: str) -> "Said":
        """With this code; an error is a sentence on stderr, never a traceback."""
        assert self.code == code, self
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.out + self.err, self
        return self


class Cli:
    """`await cli("jobs", "-o", "json")`: a thread of its own, because a command has a loop of its own."""

    def __init__(self, url: str | None, cwd: Path | None = None, **environ: str) -> None:
        self.url: str | None = url
        self.cwd: Path | None = cwd
        self._environ: dict[str, str] = environ

    async def __call__(self, *arguments: str, stdin: str | None = None) -> Said:
        environment = {"ACC_DB_URL": self.url, "NO_COLOR": "1", **self._environ}

        def invoked() -> Said:
            result = CliRunner().invoke(main, list(arguments), input=stdin, env=environment)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            return Said(result.exit_code, result.stdout, result.stderr)

        return await asyncio.to_thread(invoked)

    async def process(self, *arguments: str, stdin: str | None = None) -> Said:
        """The same as a process."""

        def run() -> Said:
            ended = subprocess.run(
                [*ACCSD, *arguments],
                input=stdin,
                env=self.environment(),
                cwd=self.cwd,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            return Said(ended.returncode, ended.stdout, ended.stderr)

        return await asyncio.to_thread(run)

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        """One that goes on until it is told to end."""
        return subprocess.Popen(
            [*ACCSD, *arguments],
            env=self.environment(),
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self) -> dict[str, str]:
        url = {} if self.url is None else {"ACC_DB_URL": self.url}
        return {**os.environ, **url, **self._environ}
