import pandas as pd
import pytest
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from tests.run.synthetic import synthetic_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return synthetic_run(tmp_path / "gat3", steps=5, layers=3, neurons=2)


def export(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.mark.parametrize(("kind", "read"), [("csv", pd.read_csv), ("parquet", pd.read_parquet)])
def test_the_tables_come_out_as_they_are(folder, tmp_path, kind, read):
    done = export(folder, "--to", kind)
    assert (done.exit_code, done.stdout) == (0, f"gat3-{kind}\n"), done.stderr
    run = gatdiag.load(folder)
    for name in ("steps", "layers", "parameters", "neurons"):
        table = read(tmp_path / f"gat3-{kind}" / f"{name}.{kind}")
        wanted = getattr(run, name)
        assert list(table.columns) == list(wanted.columns)
        numbers = wanted.select_dtypes("float64").columns
        pd.testing.assert_frame_equal(table[numbers].astype(float), wanted[numbers])


def test_files_that_are_there_stay_unless_told_otherwise(folder, tmp_path):
    assert export(folder, "--to", "csv", "--out", "out").exit_code == 0
    again = export(folder, "--to", "CSV", "--out", "out")
    assert "replace them with overwrite=True (--overwrite), or choose" in again.stderr
    assert again.exit_code == 2
    assert again.stderr.count("\n") == 1
    assert export(folder, "--to", "csv", "--out", "out", "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    "arguments", [["no-run", "--to", "csv"], ["{run}", "--to", "xlsx"], ["{run}", "--to", "csv", "--out", "file/sub"]]
)
def test_an_error_is_one_line_and_status_2(folder, tmp_path, arguments):
    (tmp_path / "file").touch()
    done = export(*(argument.format(run=folder) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gatdiag: ")
    assert done.stderr.count("\n") == 1
