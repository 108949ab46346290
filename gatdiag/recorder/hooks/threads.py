"""Which thread trains a model."""

import threading


class TrainingThread:
    """The thread that made the last step; before the first one, the thread that calls the model first.

    Other threads may call the model meanwhile, for instance to evaluate it. If another thread goes on with the
    training, it becomes the training thread with its first step, so that this step has no rows of layers.
    """

    def __init__(self) -> None:
        self._ident: int | None = None

    def become(self) -> None:
        """Called at a step: the current thread trains."""
        self._ident = threading.get_ident()

    @property
    def is_current(self) -> bool:
        """True in the training thread. Ask at calls of the model only, outside of backward passes."""
        if self._ident is None:
            self.become()
        return self._ident == threading.get_ident()
