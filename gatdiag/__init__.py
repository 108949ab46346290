"""Why does this graph neural network not train? gatdiag answers with measurements and the laws of gradient descent.

The rooms of the package, in the order in which data flows through them. A room may import the rooms below its line, its
neighbors never:

    cli            one command a file, over public functions
    experiments    built-in models, data sets and trainings; what recording one costs
    treatment      treat(): a training before and after the remedy that its diagnosis names
    rehearsal      preflight(): a copy of the model makes its first steps, and these are diagnosed
    watching       watch(): a recorder around a training loop, with or without a progress line
    report         runs -> one HTML page that a stranger understands
    figures        runs -> the papers' figures, as pictures and as data; one figure a file
    checkpoint     saved checkpoints -> a run, without ever executing what is in a file
    remedies       change a model so that it trains: initialization, rebalancing, normalizations; and take it back
    recorder       a training loop -> a run; nothing about the training changes
    diagnosis      runs -> findings: what is wrong, each with its evidence; one failure mode a file; never torch
    summary        runs -> tables and facts that figures and report need
    laws           model -> its conservation laws, found by tracing it; their values; c under real optimizers
    metrics        tensors -> numbers at one step; pure functions, one concept a file
    run            the store: the run folder, its documented format, writing and reading it; never torch
    structure      model, or names of a state dict -> ordered layers, with each parameter's role
    weight_change  how far weights moved, on arrays: the one definition; never torch
    quantities     the catalogue: every recorded column, described once; never torch
    roles          of parameters, by which layers of all architectures are spoken of alike; never torch
    law            one conservation law and its terms, as a run keeps them; never torch
    names          names that come from outside: escaped, shortened, listed
    errors         what gatdiag raises on purpose

Laws and metrics are independent of each other, as each metric is of the others, and what measures never draws.
What reads a run never imports torch. The import contracts in pyproject.toml hold all of this, and have a place for each
room to come (integrations).

The public verbs below, and the rooms, are imported when they are first used, so that `import gatdiag` costs nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from gatdiag.diagnosis import diagnose
    from gatdiag.laws import find_laws
    from gatdiag.rehearsal import preflight
    from gatdiag.report import write_report
    from gatdiag.run import load
    from gatdiag.structure import discover
    from gatdiag.treatment import treat
    from gatdiag.watching import watch

__all__ = ["diagnose", "discover", "find_laws", "load", "preflight", "treat", "watch", "write_report"]

_HOME = {
    "diagnose": "gatdiag.diagnosis",
    "discover": "gatdiag.structure",
    "find_laws": "gatdiag.laws",
    "load": "gatdiag.run",
    "preflight": "gatdiag.rehearsal",
    "treat": "gatdiag.treatment",
    "watch": "gatdiag.watching",
    "write_report": "gatdiag.report",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("gatdiag")
        except metadata.PackageNotFoundError:  # a source tree on the path, never installed
            return "unknown"
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if not name.startswith("_") and find_spec(f"gatdiag.{name}"):
        return import_module(f"gatdiag.{name}")
    raise AttributeError(f"module 'gatdiag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *(module.name for module in iter_modules(__path__))} - {"__main__"})
