"""The exceptions that gatdiag raises.

Each message says what was expected, what was got and what to do. `GatdiagError` is the base class of all.
"""


class GatdiagError(Exception):
    """Base class of all errors that gatdiag raises deliberately."""


class ModelError(GatdiagError):
    """The model cannot be analyzed: it is lazy, cannot be copied, or its forward pass fails on the inputs."""


class InputError(GatdiagError):
    """An argument, a file or a name is invalid for its purpose."""


class TakenError(InputError):
    """The folder for a new run holds a run, or one is being recorded to it."""


class TimeLimitError(GatdiagError):
    """An analysis exceeded its time limit."""


class OptimizerError(GatdiagError):
    """gatdiag cannot predict the update of this optimizer, or cannot rescale its state."""
