"""Why does this graph neural network not train? gatdiag answers with measurements and the laws of gradient descent.

The packages and modules, from high to low level. Each may import those below it, but not its neighbors on one level:

    cli            the commands, one per file, on top of public functions
    experiments    built-in models, data sets and trainings
    integrations   callbacks of frameworks, and trackers, each of which imports its package
    testing        assert_trains(): a test that a model trains, which says why if it does not
    treatment      treat(): a training before and after the remedy that its diagnosis names
    script         any training script, unedited: finds what it trains, and records it
    rehearsal      preflight(): diagnoses the first steps of a copy of the model
    watching       watch(): a recorder around a training loop, with or without a progress line
    page           runs -> one self-contained HTML page
    checkpoint     saved checkpoints -> a run, without executing anything in a file
    leakage        whether a model sees the tokens that it is to predict, asked of a copy
    remedies       changes to a model that make it train, and undo: initialization, rebalancing, normalizations
    recorder       a training loop -> a run, without changing the training
    diagnosis      runs -> findings with evidence; one failure mode per file; no torch
    figures        runs -> the papers' figures, as images and as data
    summary        runs -> tables and facts for figures and reports
    laws           model -> its conservation laws, found by tracing; their values; c under real optimizers
    metrics        tensors -> numbers at one step; pure functions, one concept per file
    run            the run folder: its documented format, writing and reading it; no torch
    structure      model, or names of a state dict -> ordered layers, with the role of each parameter
    weight_change  how far weights have moved, on NumPy arrays; no torch
    quantities     the catalog: every recorded column, described once; no torch
    roles          the roles of parameters, the same for all architectures; no torch
    card           objects as short HTML for notebooks
    operations     what the operations at the end of a model can return; no torch
    law            one conservation law and its terms, as a run stores them; no torch
    names          names from outside: escaped, shortened, joined
    errors         the exceptions that gatdiag raises

Laws and metrics do not import each other, no metric imports another, and code that measures does not draw. Code that
reads a run does not import torch. The import contracts in pyproject.toml enforce all of this.

The public functions below, and the subpackages, are imported on first use, so that `import gatdiag` is cheap.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from gatdiag.diagnosis import diagnose
    from gatdiag.laws import find_laws
    from gatdiag.page import report
    from gatdiag.rehearsal import preflight
    from gatdiag.run import load
    from gatdiag.structure import discover
    from gatdiag.treatment import treat
    from gatdiag.watching import watch

__all__ = ["diagnose", "discover", "find_laws", "load", "preflight", "report", "treat", "watch"]

_HOME = {
    "diagnose": "gatdiag.diagnosis",
    "discover": "gatdiag.structure",
    "find_laws": "gatdiag.laws",
    "load": "gatdiag.run",
    "preflight": "gatdiag.rehearsal",
    "treat": "gatdiag.treatment",
    "watch": "gatdiag.watching",
    "report": "gatdiag.page",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("gatdiag")
        except metadata.PackageNotFoundError:  # a source tree that was never installed
            return "unknown"
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if not name.startswith("_") and find_spec(f"gatdiag.{name}"):
        return import_module(f"gatdiag.{name}")
    raise AttributeError(f"module 'gatdiag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *(module.name for module in iter_modules(__path__))} - {"__main__"})
