"""Command line: thin commands over public functions.

Each command has one file. Heavy modules are imported inside functions, so that `--help` answers at once.

- `app`: all commands; errors as one line and an exit status
- `options`: options that several commands share, and those of the settings of a training
- `diagnose`: also opens a run or a checkpoint, prints its diagnosis and sets the exit status for other commands
- `model_case`: loads PACKAGE.MODULE:NAME; builds a model, its inputs and its loss from options
- `training`: progress bars
- `printing`: tables, JSON
- `silence`: a word where a command has printed nothing for two seconds
"""

from gatdiag.cli.app import main

__all__ = ["main"]
