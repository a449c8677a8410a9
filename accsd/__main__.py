"""`python -m accsd` is `accsd`."""

from accsd.cli import main

main(prog_name="accsd")
