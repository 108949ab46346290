"""Command line: thin commands over public functions.

One file a command, its options and its work together. They import what is heavy where they use it, so that `--help`
answers at once.

- `app`: the commands put together; what goes wrong in any of them, as one line and an exit status
- `options`: the options that several commands have
- `diagnose`: a run or a checkpoint opened, its diagnosis printed, and the exit status, for all that diagnose
- `model_case`: PACKAGE.MODULE:NAME -> the object; the options of a command -> a model, its inputs and its loss
- `printing`: tables, JSON documents, arguments as the command line has them
"""

from gatdiag.cli.app import main

__all__ = ["main"]
