"""A service as its author writes it: a name and a function whose parameters are a type.

`main` speaks the protocol over stdin and stdout; `run` claims tasks by itself, in this process (sdk/pull). A program
that gets tasks in another way calls `perform`.
"""

import argparse
import asyncio
import inspect
import json
import logging
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from accsd.sdk import serving, wire
from accsd.sdk.trial import try_out
from accsd.sdk.wire import Permanent, Task
from accsd.values.names import check_service_name
from accsd.values.validation import problems

if TYPE_CHECKING:
    from accsd.sdk.pull.attempt import Handler
    from accsd.settings import Settings

_Function = TypeVar("_Function", bound=Callable[[Task[Any]], Any])
_LEVELS: Final = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))


class Service:
    def __init__(self, name: str) -> None:
        self.name: Final = check_service_name(name)
        self._function: Callable[[Task[Any]], Any] | None = None
        self._params: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
        self._model: type[BaseModel] = BaseModel
        self._is_plain: bool = True  # parameters are any JSON object

    def task(self, function: _Function) -> _Function:
        """Decorates the function that does the work, `def` or `async def`; it stays callable as it is."""
        if self._function is not None:
            raise TypeError(f"service {self.name} has a function already: {self._function.__qualname__}")
        params = _params_of(function)
        self._params = TypeAdapter(params)
        self._is_plain = params == dict[str, Any]
        if isinstance(params, type) and issubclass(params, BaseModel):
            self._model = params
        self._function = function
        return function

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters."""
        return self._params.json_schema()

    def read_params(self, given: dict[str, Any]) -> Any:
        """Reads parameters in JSON mode, because they came as JSON: there a date is a text, even in a strict model."""
        if self._is_plain:
            return given
        try:
            return self._params.validate_json(json.dumps(given))
        except ValidationError as error:
            found = problems(error, self._model)
            raise Permanent(*(f"params{'.' if each.place else ' '}{each}" for each in found)) from error

    def perform(self, task: Task[Any]) -> int:
        """Performs one attempt; returns its exit code."""
        return wire.perform(self._call, task, self.read_params)

    def main(self, argv: Sequence[str] | None = None) -> NoReturn:
        """Runs one task; call it at the end of the service's file. Unknown arguments are left to the service."""
        options = _arguments(self.name).parse_known_args(argv)[0]
        if options.schema:
            sys.stdout.write(json.dumps(self.schema, indent=2) + "\n")
            sys.exit(0)
        if options.document is not None:
            sys.exit(try_out(self.perform, self.name, options.document, options.input, options.workdir, options.file))
        if options.serve is not None:
            sys.exit(serving.serve(self._take_one, options.serve, drain=options.drain))
        sys.exit(self._take_one())

    def _take_one(self) -> int:
        return wire.serve(self._call_with_log, self.read_params)

    def run(
        self,
        *,
        concurrency: int | None = None,
        node: str | None = None,
        settings: "Settings | Path | str | None" = None,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Claims tasks and does them in this process, until SIGTERM or Ctrl-C; returns when it has drained.

        `settings` may be the path of a configuration; without one the environment counts (ACC_DB_URL …).
        """
        from accsd.sdk.pull import process  # imports the database and uvloop, which `main` does not need

        process.run(self._handler, concurrency=concurrency, node=node, settings=settings, when_ready=when_ready)

    async def serve(
        self,
        *,
        concurrency: int | None = None,
        node: str | None = None,
        settings: "Settings | Path | str | None" = None,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`run` for a program with its own loop and signals: until it is cancelled, and then without a grace."""
        from accsd.sdk.pull import process

        await process.serve_in_loop(
            self._handler, concurrency=concurrency, node=node, settings=settings, when_ready=when_ready
        )

    def _handler(self, settings: "Settings") -> "Handler":
        from accsd.sdk.pull.attempt import Handler

        if self._function is None:
            raise TypeError(f"service {self.name} has no function: decorate one with @service.task")
        known = settings.services.get(self.name)
        return Handler(
            service=self.name,
            function=self._function,
            is_async=inspect.iscoroutinefunction(self._function),
            read_params=self.read_params,
            timeout=known and known.timeout,
            stop_grace=timedelta(seconds=10) if known is None else known.stop_grace,
        )

    def _call_with_log(self, task: Task[Any]) -> Any:
        with _logging_to(task):
            return self._call(task)

    def _call(self, task: Task[Any]) -> Any:
        if self._function is None:
            raise Permanent(f"service {self.name} has no function: decorate one with @service.task")
        is_async = inspect.iscoroutinefunction(self._function)
        results = _run(self._function, task) if is_async else self._function(task)
        return results.model_dump(mode="json") if isinstance(results, BaseModel) else results


def _params_of(function: Callable[..., Any]) -> Any:
    """Params, of `def f(task: Task[Params])`; without an annotation, any JSON object."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    if not parameters:
        raise TypeError(f"{function.__qualname__} takes no argument; a task's function takes the task")
    annotation = parameters[0].annotation
    return get_args(annotation)[0] if get_origin(annotation) is Task else dict[str, Any]


def _run(function: Callable[[Task[Any]], Any], task: Task[Any]) -> Any:
    """Runs an async function in a loop of its own; cancelling the task cancels it, wherever it waits."""

    async def awaited() -> Any:
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        assert current is not None
        task.when_cancelled = lambda: loop.call_soon_threadsafe(current.cancel)
        task.check_cancelled()
        return await function(task)

    try:
        return asyncio.run(awaited())
    except asyncio.CancelledError:
        task.check_cancelled()
        raise
    finally:
        task.when_cancelled = lambda: None


def _arguments(service: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=f"Service {service}. Without options it takes one task from ACC_TASK_FILE or stdin.",
        allow_abbrev=False,
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the parameters")
    parser.add_argument("--serve", metavar="HOST:PORT", help="stay up and take tasks over HTTP (:8080)")
    parser.add_argument(
        "--drain", type=float, default=serving.DRAIN_SECONDS, metavar="SECONDS",
        help="with --serve: how long tasks may go on after SIGTERM (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--try", dest="document", metavar="JSON", help="""run it here: '{"params": {}, "options": {}}'"""
    )
    parser.add_argument(
        "--input", action="append", default=[], metavar="STEP=FILE", help="with --try: a file to give it"
    )
    parser.add_argument(
        "--file", action="append", default=[], metavar="NAME=FILE", help="with --try: a file of the workflow"
    )
    parser.add_argument("--workdir", metavar="DIR", help="with --try: where its files go (default: a temporary folder)")
    return parser


@contextmanager
def _logging_to(task: Task[Any]) -> Generator[None]:
    """Records of `logging` keep their level in the task's log, unless the author has configured logging otherwise."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler, level = _TaskLog(task), root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


class _TaskLog(logging.Handler):
    def __init__(self, task: Task[Any]) -> None:
        super().__init__()
        self._task: Final = task

    def emit(self, record: logging.LogRecord) -> None:
        level = next((name for least, name in _LEVELS if record.levelno >= least), "debug")
        data = cast("dict[str, Any]", {"logger": record.name})
        self._task.log(self.format(record), level, **data)
