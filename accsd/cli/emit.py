"""`accsd emit`: one event, for the schedules that listen to its topic."""

import sys
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import click
import orjson

from accsd.cli import completion
from accsd.cli.output import output_option, say, say_json
from accsd.cli.session import operator, with_database
from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.db.topics import KEY_WINDOW, Emitted, emit_event
from accsd.errors import InvalidValue
from accsd.explain.identifiers import job_named
from accsd.values.units import parse_duration


@click.command()
@click.argument("topic")
@click.option("--payload", metavar="JSON", help="A JSON object; - reads it from stdin.")
@click.option("--key", help="The same topic and key again is the same event.")
@click.option("--window", metavar="TIME", help="For how long the key counts.  [default: 24h]")
@click.option("--job", metavar="JOB", shell_complete=completion.jobs, help="The job in which it happens.")
@output_option()
@click.pass_context
def emit(
    ctx: click.Context,
    topic: str,
    payload: str | None,
    key: str | None,
    window: str | None,
    job: str | None,
    output: str,
) -> None:
    """Emit an event of TOPIC and print its id. Every schedule of kind event that listens to the topic gets it.

    \b
    Examples:
      accsd emit shop.order --payload '{"n": 3}'
      accsd emit shop.order --payload - --key order-4711 < order.json
    """
    document = _object(sys.stdin.read() if payload == "-" else payload) if payload is not None else {}
    kept = KEY_WINDOW if window is None else _window(window)

    async def work(db: Database) -> Emitted:
        job_id: UUID | None = None if job is None else await job_named(db, job)
        return await emit_event(db, topic, document, key=key, source=operator(), job_id=job_id, window=kept)

    emitted = with_database(ctx, work)
    if output in ("json", "jsonl"):
        say_json({"event_id": emitted.event_id, "answer": emitted.verdict, "matched": emitted.matched})
        return
    say(str(emitted.event_id))
    if output == "table":
        if emitted.verdict is Verdict.REPEATED:
            say("this key was emitted before: it is the same event", err=True)
        say(_met(emitted.matched), err=True)


def _met(matched: int) -> str:
    if matched == 0:
        return "no schedule listens to its topic"
    return "1 schedule listens to its topic" if matched == 1 else f"{matched} schedules listen to its topic"


def _window(written: str) -> timedelta:
    try:
        return parse_duration(written)
    except InvalidValue as error:
        raise InvalidValue(f"--window: {error.message}") from None


def _object(text: str) -> dict[str, Any]:
    hint = """write --payload '{"n": 3}'"""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidValue(f"--payload is not JSON: {error}", hint=hint) from None
    if not isinstance(found, dict):
        raise InvalidValue("--payload must be a JSON object", hint=hint)
    return cast("dict[str, Any]", found)
