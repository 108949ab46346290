"""Command line: thin commands over public functions.

- `app`: the commands and their options; imports nothing heavy, so that `--help` answers at once
- `target`: PACKAGE.MODULE:NAME -> the object
- `subject`: the options -> a model and its inputs
- `overview`: laws -> one row a layer
- `laws`: the command `gatdiag laws`, as a table or as JSON
- `demo`: the command `gatdiag demo`: one network trained twice, recorded and compared
- `finding`: recorded trainings -> what they say about each other, in numbers and in words
- `report`: the command `gatdiag report`: the page, and its figures as files
- `export`: the command `gatdiag export`
"""

from gatdiag.cli.app import main

__all__ = ["main"]
