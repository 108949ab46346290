"""The errors gatdiag raises, and nothing else raises them.

Each message says what was expected, what was got and what to do. Catch `GatdiagError` to catch them all.
"""


class GatdiagError(Exception):
    """Base of every error that gatdiag raises on purpose."""


class ModelError(GatdiagError):
    """The model cannot be analyzed as it is: it is lazy, cannot be copied, or its forward pass fails on the inputs."""


class InputError(GatdiagError):
    """An argument, a file or a name given to gatdiag does not fit what it is used for."""


class TimeLimitError(GatdiagError):
    """An analysis took longer than it was allowed to."""


class OptimizerError(GatdiagError):
    """The optimizer is not one whose update gatdiag can predict, or whose state it can rescale."""
