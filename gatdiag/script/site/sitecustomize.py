"""Python imports this before the script of `gatdiag run`, and in the processes that the script starts."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would be loaded for each process
sys.path[:] = [path for path in sys.path if path != _here]

_replaced = PathFinder.find_spec("sitecustomize")  # of the system or of a virtual environment
if _replaced is not None and _replaced.loader is not None:
    sys.modules["sitecustomize"] = _module = module_from_spec(_replaced)
    _replaced.loader.exec_module(_module)

if "GATDIAG_RUN" in os.environ:
    sys.path.insert(0, _here.rsplit(os.sep, 3)[0])
    import gatdiag  # noqa: F401 - the one that started the script, wherever it is installed

    del sys.path[0]
    from gatdiag.script.process import begin

    begin()
