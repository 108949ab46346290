"""Loop: a recorder around a training loop, and what it shows meanwhile.

- `watching`: `watch`, the context manager
- `progress`: one line in the terminal
"""

from gatdiag.loop.watching import watch

__all__ = ["watch"]
