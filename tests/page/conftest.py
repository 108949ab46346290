import pytest

import gatdiag
from gatdiag.page.document import render_page
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="session")
def stuck(tmp_path_factory):
    """A run of twelve layers that does not train, and has a name that nobody should obey."""
    folder = tmp_path_factory.mktemp("runs") / "stuck"
    return gatdiag.load(
        synthetic_run(folder, steps=60, layers=12, neurons=2, collapse=True, name="<img src=x onerror=1>")
    )


@pytest.fixture(scope="session")
def page(stuck):
    """Its page with all figures."""
    return render_page([stuck])
