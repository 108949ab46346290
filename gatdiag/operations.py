"""What the operations at the end of a model can return, whatever its weights are."""

import math
from collections.abc import Mapping
from typing import Final

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(("Relu", "Softplus", "Exp"), (0.0, math.inf)),
    **dict.fromkeys(("Sigmoid", "Softmax"), (0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Hardtanh"), (-1.0, 1.0)),
}
"""Operation, by the name of its autograd node without "Backward0" -> the lowest and the highest value."""
