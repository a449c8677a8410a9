"""`make chaos`: prints how it goes, a table of figures and the verdict; exit code 1 if a rule was broken."""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Order, run


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--minutes", type=float, default=5, help="of faults; quiet, clean deaths and verdict come after")
    asked.add_argument("--postgres", choices=["18", "15"], default="18")
    asked.add_argument("--without-containers", action="store_true")
    asked.add_argument("--keep", action="store_true", help="the folder with logs, effects and state folders")
    given = asked.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    root = Path(tempfile.mkdtemp(prefix="accsd-chaos-"))
    order = Order(
        seed=given.seed,
        seconds=given.minutes * 60,
        postgres=f"pg{given.postgres}",
        containers=not given.without_containers,
    )
    try:
        outcome = asyncio.run(run(order, root, lambda text: print(text, flush=True)))
    finally:
        if given.keep:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    print(f"\n{outcome}\n")
    if not outcome.is_sound:
        print(
            f"seed {order.seed} again: make chaos SEED={order.seed} MINUTES={given.minutes:g} POSTGRES={given.postgres}"
        )
    return 0 if outcome.is_sound else 1


sys.exit(main())
