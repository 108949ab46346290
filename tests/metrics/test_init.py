import ast
from pathlib import Path

from gatdiag import metrics

FOLDER = Path(metrics.__file__).parent
FILES = [path for path in FOLDER.glob("*.py") if path.name != "__init__.py"]


def public_names(path):
    nodes = ast.parse(path.read_text()).body
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")}


def test_all_is_what_the_files_offer():
    offered = set().union(*(public_names(path) for path in FILES))
    assert set(metrics.__all__) == offered
    assert len(metrics.__all__) == len(set(metrics.__all__))
