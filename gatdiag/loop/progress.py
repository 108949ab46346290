"""One line in the terminal: step, loss, and each layer's gradient at a glance."""

import math
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gatdiag.recorder import Status

_BARS = "▁▂▃▄▅▆▇█"
_DECADES = 7.0  # relative gradient norms from 10^-7, which float32 can no longer add, to 1
_MOST_LAYERS = 40
_SECONDS = 0.1


class ProgressLine:
    """Shows the last status, ten times a second at most; on a terminal only."""

    def __init__(self, console: Console | None = None) -> None:
        """Nothing is shown before the first status."""
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._shown = 0.0

    def __call__(self, status: Status | None) -> None:
        """Show it; None: the recording has ended."""
        if status is None:
            self._stop()
            return
        if not self._console.is_terminal or time.monotonic() - self._shown < _SECONDS:
            return
        self._shown = time.monotonic()
        text = Text(line(status), overflow="ellipsis", no_wrap=True)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        self._live.update(text, refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def line(status: Status) -> str:
    """The status in words: a bar for each layer, from ▁ for a relative gradient norm of 1e-7 to █ for 1.

    "·" is a gradient of zero, "-" none; from the first NaN or infinity of the training on, "!" is one.

    Example:
        >>> line(Status(7, {"loss": 1.386}, ("0", "1"), (1e-7, 0.5), None))
        'step 7  loss 1.386  gradient/weight by layer ▁█'
    """
    parts = [f"step {status.step}"]
    parts += [f"{name} {value:.4g}" for name, value in _scalars(status)]
    if status.relative_gradient_norms:
        broken = status.first_non_finite is not None
        bars = "".join(_bar(value, broken) for value in _thinned(status.relative_gradient_norms))
        parts.append(f"gradient/weight by layer {bars}")
    if (bad := status.first_non_finite) is not None:
        parts.append(f"{bad.kind} since step {bad.step} in the {bad.where} of {bad.layer}")
    return "  ".join(parts)


def _scalars(status: Status) -> list[tuple[str, float]]:
    own = ("time", "gradient_norm", "gradient_norm_before_clipping")
    logged = [
        (name, value)
        for name, value in status.scalars.items()
        if name not in own and not name.startswith("learning_rate")
    ]
    return sorted(logged, key=lambda item: item[0] != "loss")[:4]


def _thinned(values: Sequence[float]) -> list[float]:
    """The smallest of each group, if there are too many for a line: it is the stuck layers that matter."""
    size = math.ceil(len(values) / _MOST_LAYERS)
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return [min((value for value in group if not math.isnan(value)), default=math.nan) for group in groups]


def _bar(value: float, broken: bool) -> str:
    """Relative to weights of zero, a gradient is infinite though nothing is broken."""
    if not math.isfinite(value) and broken:
        return "!"
    if math.isnan(value):
        return "-"
    if value == 0:
        return "·"
    height = (math.log10(min(value, 1.0)) + _DECADES) / _DECADES
    return _BARS[min(len(_BARS) - 1, max(0, int(height * len(_BARS))))]
