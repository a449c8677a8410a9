"""How commands that change something are told why, and say what came of it."""

from collections.abc import Iterable
from typing import Final

import click

from accsd.cli.output import say, show
from accsd.explain.changes import ChangeOutcome

_REFUSED: Final = 1

reason_option: Final = click.option("--reason", help="Why, for those who wonder: it goes into the audit.")


def tell(outcomes: Iterable[ChangeOutcome], output: str) -> None:
    """Says all of them, then ends with exit code 1 if one was refused."""
    told = list(outcomes)
    if output == "table":
        for outcome in told:
            say(outcome.sentence, err=outcome.is_refused)
            if outcome.next:
                say(f"  → {outcome.next}", err=True)
    else:
        show([outcome.document() for outcome in told], {}, output)
    if any(outcome.is_refused for outcome in told):
        raise SystemExit(_REFUSED)
