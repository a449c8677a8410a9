"""`accsd run -- CMD`: a one-off on this machine, with the history, the log and the exit code of a job.

This process is its own worker in pull mode. The job's one step is tied to the node that this process is while it lives,
and the command stands in its memory only: nobody else can carry it out, and it dies with this process.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import UUID

import click

from accsd import proc
from accsd.cli.options import merged
from accsd.cli.output import say
from accsd.cli.session import operator, settings_of
from accsd.db import Database, Submission, apply_workflow, cancel_jobs, dismiss, require_schema, submit_job
from accsd.db.views import jobs as job_views
from accsd.db.workflows import find_workflow
from accsd.errors import AccsdError
from accsd.explain.words import short
from accsd.log import configure_logging, register_secret
from accsd.model import WorkflowDef
from accsd.runners.base import Stream
from accsd.sdk.pull import process
from accsd.sdk.pull.attempt import Handler
from accsd.sdk.pull.stop import StopRequest
from accsd.sdk.wire import Permanent, Task
from accsd.settings import Settings, environment
from accsd.values.names import KIND_LABEL, ONE_OFF_SERVICE
from accsd.work.protocol.framing import LineSplitter, OutputLine

_STEP: Final = "run"
_STOP_GRACE: Final = timedelta(seconds=10)
_CANCELLED_WITHIN: Final = 5.0  # seconds, for the database to answer
_OUTPUT_ENDS_WITHIN: Final = 2.0  # seconds after the command
_SHOWN_OF_LINE: Final = 300
_LEVELS: Final = {Stream.STDOUT: "info", Stream.STDERR: "warn"}  # as in every other task's log
_INTERRUPTED: Final = 130
_BY_SIGNAL: Final = 128  # as shells say it
_BROKEN_PIPE: Final = _BY_SIGNAL + signal.SIGPIPE
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", help="What the job is called, in its options.  [default: the command's name]")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Goes into the job's options. Repeatable.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD…")
@click.pass_context
def run(ctx: click.Context, name: str | None, labels: Sequence[str], command: Sequence[str]) -> None:
    """Run a command here and now, as a job of its own: with history, log and exit code.

    It runs in this folder with this environment. Its output is shown as it comes, and the first 1000 lines are kept in
    the job's log; the command itself is written nowhere. Ctrl-C cancels the job, and the command ends with this one.

    \b
    Examples:
      accsd run -- ffmpeg -i take.mov take.mp4
      accsd run --name backup --label disk=nas -- rsync -a /data /mnt/nas
    """
    environ = dict(environment())  # before the settings put a database into it
    options = merged(None, labels, option="--label") | {"name": name or Path(command[0]).name}
    one_off = _OneOff(command, environ, options, _as_one_off(settings_of(ctx)))
    try:
        code = asyncio.run(one_off.run())
    except BaseExceptionGroup as group:
        if (known := process.known_error(group)) is None:
            raise
        raise known from None
    raise SystemExit(code)


def _as_one_off(settings: Settings) -> Settings:
    return settings.model_copy(update={"node": settings.node.model_copy(update={"labels": {KIND_LABEL: "run"}})})


class _OneOff:
    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], options: Mapping[str, Any], settings: Settings
    ) -> None:
        self._command = command
        self._environ = environ
        self._options = options
        self._settings = settings
        self._asked: StopRequest = StopRequest()
        self._submitted: asyncio.Event = asyncio.Event()
        self._unread: asyncio.Event = asyncio.Event()
        self._ended: asyncio.Event = asyncio.Event()
        self._job: UUID | None = None
        self._has_begun: bool = False
        self._code: int | None = None
        self._interrupts: int = 0
        self._last_words: dict[Stream, str] = {}

    async def run(self) -> int:
        configure_logging("error")
        for secret in self._settings.secret_texts():
            register_secret(secret)
        db = await Database.open(self._settings.database, application="accsd run")
        try:
            await require_schema(db)
            await self._work(db)
            return await self._exit_code(db)
        finally:
            await db.close()

    async def _work(self, db: Database) -> None:
        handler = Handler(ONE_OFF_SERVICE, self._perform, True, lambda params: params, None, _STOP_GRACE)
        async with asyncio.TaskGroup() as group:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, lambda: self._interrupt(group, db))

            def submit(node: str) -> None:
                group.create_task(self._submit(db, node))

            await process.serve(
                handler,
                self._settings,
                concurrency=1,
                node=None,
                asked=self._asked,
                when_ready=submit,
            )

    # Its job

    async def _submit(self, db: Database, node: str) -> None:
        """Submits the job. Its workflow is made when it is first needed, one for each node: its step can run nowhere
        else."""
        found = await find_workflow(db, node)
        step = {"key": _STEP, "service": ONE_OFF_SERVICE, "node": node, "max_attempts": 1}
        workflow = WorkflowDef(name=node, steps=[step])  # pyright: ignore[reportArgumentType]
        known = (
            found.id
            if found is not None and found.is_active
            else await apply_workflow(db, workflow, created_by=operator())
        )
        self._job = await submit_job(db, Submission(known, self._options), created_by=operator())
        say(f"accsd: job {short(self._job)}", err=True)
        self._submitted.set()

    def _interrupt(self, group: asyncio.TaskGroup, db: Database) -> None:
        self._interrupts += 1
        if self._interrupts > 2:
            os._exit(_INTERRUPTED)
        if self._interrupts == 1 and self._job is not None:
            group.create_task(self._cancel(db, self._job))
        else:
            self._give_up()

    async def _cancel(self, db: Database, job: UUID) -> None:
        try:
            async with asyncio.timeout(_CANCELLED_WITHIN):
                await cancel_jobs(db, [job], reason="interrupted", by=operator())
        except (AccsdError, TimeoutError) as error:
            say(f"accsd: job {short(job)} could not be cancelled: {error or 'no answer'}", err=True)
        else:
            if self._has_begun:  # the worker hears of it, and the command is stopped
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _STOP_GRACE.total_seconds() + _CANCELLED_WITHIN)
        self._give_up()

    def _give_up(self) -> None:
        """Stops what runs without waiting for it."""
        self._asked.again()
        self._asked.again()

    async def _exit_code(self, db: Database) -> int:
        if self._code:
            await self._settle(db)
        if self._interrupts:
            return _INTERRUPTED
        if self._code is not None:
            return self._code
        assert self._job is not None
        job = await job_views.job(db, self._job)
        said = "was cancelled" if job.status == "cancelled" else "has lost its lease"
        say(f"accsd: job {short(job.id)} {said}, and the command was stopped", err=True)
        return 1

    async def _settle(self, db: Database) -> None:
        """Dismisses the dead letter of a failed command: the person who typed it has seen how it ended."""
        letters = await job_views.dead_letters(db, service=ONE_OFF_SERVICE, limit=1000)
        ours = [letter.id for letter in letters if letter.job_id == self._job]
        await dismiss(db, ours, by=operator(), reason="the command was seen to fail")

    # Its command

    async def _perform(self, task: Task[Any]) -> dict[str, Any]:
        await self._submitted.wait()
        if task.envelope["job_id"] != str(self._job):
            raise Permanent("its command was in the memory of an `accsd run` that is gone")
        self._has_begun = True
        try:
            self._code = await self._carried_out(task)
        finally:
            self._ended.set()
            self._asked.again()
        if self._code == 0:
            return {"exit_code": 0}
        last = self._last_words.get(Stream.STDERR) or self._last_words.get(Stream.STDOUT)
        raise Permanent(f"it ended with exit code {self._code}" + (f": {last}" if last else ""))

    async def _carried_out(self, task: Task[Any]) -> int:
        stdin = None if sys.stdin.isatty() else sys.stdin.fileno()
        passing: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            try:
                async with proc.streaming(
                    self._command, env=self._environ, grace=_STOP_GRACE, stdin_from=stdin
                ) as child:
                    passing += [
                        group.create_task(self._pass_on(child.stdout, sys.stdout.buffer, task, Stream.STDOUT)),
                        group.create_task(self._pass_on(child.stderr, sys.stderr.buffer, task, Stream.STDERR)),
                    ]
                    return await self._ending(child, passing)
            except OSError as error:
                return self._not_started(error)
            finally:
                await _until_done(passing)  # whoever held the pipes is killed by now
                for each in passing:
                    each.cancel()

    async def _ending(self, child: proc.Streaming, passing: Sequence["asyncio.Task[None]"]) -> int:
        async with asyncio.TaskGroup() as group:
            ending, unread = group.create_task(child.wait()), group.create_task(self._unread.wait())
            await asyncio.wait([ending, unread], return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            unread.cancel()
        if self._unread.is_set():
            self._last_words[Stream.STDERR] = "nobody reads its output any more"
            return _BROKEN_PIPE
        await _until_done(passing)
        return code if (code := ending.result()) >= 0 else _BY_SIGNAL - code

    def _not_started(self, error: OSError) -> int:
        said = self._last_words[Stream.STDERR] = f"{self._command[0]}: {error.strerror}"
        say(f"accsd: {said}", err=True)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE

    async def _pass_on(self, pipe: asyncio.StreamReader, terminal: BinaryIO, task: Task[Any], stream: Stream) -> None:
        """Shows the output, and adds it to the log line by line. A thread writes: a slow reader must not hold up
        heartbeats."""
        lines = LineSplitter()
        while data := await pipe.read(65536):
            for line in lines.feed(data):
                self._keep(line, task, stream)
            if not self._unread.is_set():
                try:
                    await asyncio.to_thread(_show, terminal, data)
                except BrokenPipeError:
                    self._unread.set()
        if (last := lines.close()) is not None:
            self._keep(last, task, stream)

    def _keep(self, line: OutputLine, task: Task[Any], stream: Stream) -> None:
        said = line.data.decode(errors="replace")
        if said.strip():
            self._last_words[stream] = said.strip()[:_SHOWN_OF_LINE]
        task.log(said, _LEVELS[stream])


async def _until_done(passing: Sequence["asyncio.Task[None]"]) -> None:
    """Waits for the output only for a while: a process that the command left behind may hold its pipes open."""
    if passing:
        await asyncio.wait(passing, timeout=_OUTPUT_ENDS_WITHIN)


def _show(terminal: BinaryIO, data: bytes) -> None:
    terminal.write(data)
    terminal.flush()
