"""The import contracts in pyproject.toml: each one passes on a clean package and bites on a violation."""

import shutil
import sys
from pathlib import Path

import pytest
from importlinter.cli import use_cases

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
ORDER = "imports point one way, and every room has its place"
NO_TORCH = "what reads a run never needs torch"
NO_DRAWING = "what measures never draws or prints"
FRAMEWORKS = "frameworks and trackers are imported by integrations alone"
METRICS_APART = "metrics know nothing of each other"
FIGURES_APART = "figures know nothing of each other"


@pytest.fixture
def broken_contracts(tmp_path, monkeypatch, capsys):
    """Contracts that a package made of nothing but some files breaks."""

    def broken(files: dict[str, str]) -> set[str]:
        for name, text in {"__init__.py": "", "errors.py": "", **files}.items():
            path = tmp_path / "gatdiag" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            for package in path.parents:
                if package.is_relative_to(tmp_path / "gatdiag"):
                    (package / "__init__.py").touch()
        shutil.copy(PYPROJECT, tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.delitem(sys.modules, "gatdiag", raising=False)  # else the linter looks at the real one
        passed = use_cases.lint_imports(cache_dir=None)
        printed = capsys.readouterr().out
        names = {line.removesuffix(" BROKEN") for line in printed.splitlines() if line.endswith(" BROKEN")}
        assert passed == (not names), printed
        assert passed == (" 0 broken" in printed), printed
        return names

    return broken


def test_a_package_with_few_rooms_keeps_every_contract(broken_contracts):
    files = {"laws/find.py": "import torch\nimport gatdiag.errors", "integrations/wandb.py": "import wandb"}
    files["cli/export.py"] = "import gatdiag.integrations.wandb"
    assert broken_contracts(files) == set()


@pytest.mark.parametrize(
    ("files", "contract"),
    [
        ({"laws/find.py": "from gatdiag.cli import main", "cli.py": "main = 1"}, ORDER),
        ({"laws/find.py": "import gatdiag.metrics.norm", "metrics/norm.py": ""}, ORDER),
        ({"structure.py": "def late():\n    import gatdiag.laws", "laws.py": ""}, ORDER),
        ({"errors.py": "import gatdiag.run", "run.py": ""}, ORDER),
        ({"odds_and_ends.py": ""}, ORDER),
        ({"figures/overview.py": "import gatdiag.diagnosis", "diagnosis.py": ""}, ORDER),
        ({"run.py": "import torch"}, NO_TORCH),
        ({"figures/smoothing.py": "from torch_geometric.data import Data"}, NO_TORCH),
        ({"summary.py": "import gatdiag.metrics.norm", "metrics/norm.py": "import torch"}, NO_TORCH),
        ({"diagnosis/vanishing.py": "import gatdiag.recorder", "recorder.py": "import torch"}, NO_TORCH),
        ({"page/document.py": "from torch.nn import Linear"}, NO_TORCH),
        ({"structure/layers.py": "import rich"}, NO_DRAWING),
        ({"laws/find.py": "from matplotlib.figure import Figure"}, NO_DRAWING),
        ({"metrics/norm.py": "import typer"}, NO_DRAWING),
        ({"recorder.py": "import gatdiag.laws", "laws.py": "import rich.console"}, NO_DRAWING),
        ({"remedies/balance.py": "import matplotlib"}, NO_DRAWING),
        ({"watching.py": "import wandb"}, FRAMEWORKS),
        ({"recorder/scalars.py": "from lightning.pytorch import Callback"}, FRAMEWORKS),
        ({"metrics/norm.py": "import gatdiag.metrics.rank", "metrics/rank.py": ""}, METRICS_APART),
        ({"figures/rank.py": "import gatdiag.figures.norm", "figures/norm.py": ""}, FIGURES_APART),
    ],
)
def test_a_violation_breaks_its_contract(broken_contracts, files, contract):
    assert contract in broken_contracts(files)
