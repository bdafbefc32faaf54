"""`python -m gateway`."""

from gateway.cli import main

main(prog_name="pairgate")
