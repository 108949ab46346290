"""`python -m gatdiag` is the command `gatdiag`."""

from gatdiag.cli import main

main()
