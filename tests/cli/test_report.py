import pytest
from typer.testing import CliRunner

from gatdiag.cli.app import app
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthetic_run(tmp_path_factory.mktemp("runs") / "gat3", steps=20, layers=3, neurons=2)


@pytest.fixture
def report(tmp_path, monkeypatch, few_figures):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_a_page_is_written_into_the_current_folder(report, folder, tmp_path):
    done = report(folder)
    assert (done.exit_code, done.stdout) == (0, "gat3.html\n")
    assert "gat3" in (tmp_path / "gat3.html").read_text()


def test_a_page_about_several_runs_is_named_after_them(report, folder, tmp_path):
    others = [synthetic_run(tmp_path / name, steps=20, layers=3, neurons=2) for name in ("gat20", "gcn")]
    assert report(folder, others[0]).stdout == "gat3-vs-gat20.html\n"
    assert report(folder, *others).stdout == "gat3-and-2-more.html\n"
    (tmp_path / "pages").mkdir()
    assert report(folder, "--out", "pages").stdout == "pages/gat3.html\n"


def test_pictures_stand_beside_the_page(report, folder, tmp_path):
    done = report(folder, "--out", "page.html", "--format", "html,PNG", "--title", "<both>")
    assert done.exit_code == 0, done.stderr
    assert "<title>&lt;both&gt;</title>" in (tmp_path / "page.html").read_text()
    pictures = {path.name for path in (tmp_path / "page-figures").iterdir()}
    assert "unchanged_fraction.png" in pictures
    assert all((tmp_path / "page-figures" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert f"{len(pictures)} files in page-figures" in done.stdout


def test_pictures_alone_go_into_a_folder(report, folder, tmp_path):
    assert report(folder, "--out", "pictures", "--format", "svg").exit_code == 0
    assert {path.suffix for path in (tmp_path / "pictures").iterdir()} == {".svg"}
    again = report(folder, "--out", "pictures", "--format", "svg")
    assert (again.exit_code, again.stdout) == (2, "")
    assert "exists" in again.stderr
    assert report(folder, "--out", "pictures", "--format", "svg", "--overwrite").exit_code == 0


def test_all_figures_are_written_into_one_file(report, folder, tmp_path):
    name = "new/x.pdf"
    done = report(folder, "--out", name)
    assert (done.exit_code, done.stdout) == (0, f"{name}\n"), done.stderr
    assert (tmp_path / name).read_bytes().startswith(b"%PDF")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.pdf"]
    again = report(folder, "--out", name)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    assert report(folder, "--out", name, "--overwrite", "--format", "pdf").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", ""], "got an empty argument"),
        (["--out", "x.pdf", "--format", "html,png"], "'x.pdf' is a single PDF file"),
        (["--out", "x.docx"], "expected a folder, or a name ending in .html or .pdf, got 'x.docx'"),
        (["--out", "x.png", "--format", "png"], "expected a folder, or a name ending in .html or .pdf, got 'x.png'"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(report, folder, tmp_path, arguments, message):
    done = report(folder, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.glob("x*"))


def test_a_file_of_the_users_is_not_replaced_unasked(report, folder, tmp_path):
    (tmp_path / "gat3.html").write_text("mine")
    refused = report(folder)
    assert refused.exit_code == 2
    assert "choose another name, or replace it with overwrite=True (--overwrite)" in refused.stderr
    assert (tmp_path / "gat3.html").read_text() == "mine"
    assert report(folder, "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-run"],
        ["."],
        ["meta"],
        ["{run}", "--format", "gif"],
        ["{run}", "--format", ","],
        ["{run}", "no-such-run"],
        ["{run}", "--out", "file/report.html"],
        ["{run}", "--out", "file", "--format", "png"],
        ["{run}", "--out", "file.py"],
    ],
    ids=["missing", "no run", "broken", "format", "no format", "second missing", "no folder", "file", "other file"],
)
def test_an_error_is_one_line_and_status_2(report, folder, tmp_path, arguments):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "meta.json").write_text('{"schema": 1, ')
    (tmp_path / "file").touch()
    (tmp_path / "file.py").touch()
    done = report(*(argument.format(run=folder) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gatdiag: ")
    assert done.stderr.count("\n") == 1
    assert not [*tmp_path.glob("*.html")]


def test_a_warning_is_one_line_without_its_source(report, folder):
    done = report(folder, folder)
    assert done.exit_code == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("gatdiag: ")
    assert "shown once" in line
    assert "UserWarning" not in done.stderr


def test_a_place_that_cannot_be_written_is_named_with_what_to_do(report, folder):
    done = report(str(folder), "--out", "/proc/page.html")
    assert done.exit_code == 2
    assert done.stderr.startswith("gatdiag: cannot read or write '/proc' (")
    assert done.stderr.endswith("); name a place that exists and can be written to\n")
