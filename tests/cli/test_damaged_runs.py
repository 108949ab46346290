"""Runs that a disk, a copy or a hand has damaged: each command answers, or says in one line which file it is."""

import json
import os
import random
import shutil
import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import gatdiag
from gatdiag.cli.app import app
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.models import gat
from tests.page.builder import rewrite_meta
from tests.run.synthetic import synthetic_run

SEALED = ("meta.json", "steps.parquet", "layers.parquet", "best.safetensors")
FILES = (*SEALED, "steps.jsonl", "layers.arrows")
ODD = (..., None, True, -1, 10**9, 1e300, 0.5, "x", "\udc80", [], {}, [None], [[]], [{}], {"x": 1})


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A recorded run with laws, signals and all snapshots, and one that a kill left open."""
    place = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    graph = load_graph("sbm")
    model = gat(graph.num_features, 4, hidden_channels=3, layers=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gatdiag.watch(model, place / "sealed", every=1, best="val_accuracy") as recorder:
        for step in range(4):
            loss = F.cross_entropy(model(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.log(loss=loss, val_accuracy=step / 4)
    synthetic_run(place / "open", steps=5, layers=3, neurons=2, seal=False)
    return place


@pytest.fixture
def damaged(sound, tmp_path):
    def copied(name):
        return shutil.copytree(sound / name, tmp_path / name, dirs_exist_ok=True)

    return copied


@pytest.fixture(autouse=True)
def deadline(few_figures):
    """End a command that waits for a FIFO."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it does not end"))
    signal.alarm(60)
    yield
    signal.alarm(0)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def garble(path):
    path.write_bytes(random.Random(0).randbytes(300))


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def put_folder(path):
    path.unlink()
    path.mkdir()


def put_fifo(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = (truncate, empty, garble, zero, put_folder, put_fifo)


def run_command(command, folder, sound, tmp_path):
    out = ["--out", str(tmp_path / "out.html" if command == "report" else tmp_path / "out"), "--overwrite"]
    more = {"report": out, "compare": [str(sound / "sealed")], "export": ["--to", "csv", *out]}
    return CliRunner(env={"COLUMNS": "500"}).invoke(app, [command, str(folder), *more.get(command, [])])


def check(done, file, *, must_fail=False):
    """The command has answered, or failed with one line that names the file."""
    assert done.exit_code in ((2,) if must_fail else (0, 1, 2, 3)), done.output
    if done.exit_code == 2:
        (line,) = done.stderr.splitlines()
        assert str(file) in line
        assert "internal error" not in line


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["diagnose", "report", "compare", "export", "inspect"])
def test_a_damaged_file_is_named_in_one_line(damaged, sound, tmp_path, command, damage):
    for name in FILES:
        file = damaged("sealed" if name in SEALED else "open") / name
        damage(file)
        is_read = name in SEALED and name != "best.safetensors" and command != "inspect"
        check(run_command(command, file.parent, sound, tmp_path), file, must_fail=is_read)
        shutil.rmtree(file.parent)


def places(node, at=()):
    """Each place in meta.json, in lists that of the first item only."""
    inside = node.items() if isinstance(node, dict) else enumerate(node[:1]) if isinstance(node, list) else ()
    for key, inner in inside:
        yield (*at, key)
        yield from places(inner, (*at, key))


def put(meta, place, value):
    """Change meta.json at a place; ... removes what is there."""
    *outer, last = place
    for key in outer:
        meta = meta[key]
    if value is ...:
        del meta[last]
    else:
        meta[last] = value


@pytest.mark.parametrize("seed", range(4))
def test_whatever_stands_in_meta_json_ends_in_an_answer_or_in_one_line(damaged, sound, tmp_path, seed):
    folder = damaged("sealed")
    meta = (folder / "meta.json").read_text()
    chance = random.Random(seed)
    for place in chance.sample([*places(json.loads(meta))], 25):
        (folder / "meta.json").write_text(meta)
        rewrite_meta(folder, lambda meta, place=place: put(meta, place, chance.choice(ODD)))
        check(run_command(chance.choice(["diagnose", "compare"]), folder, sound, tmp_path), folder / "meta.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("structure", "layers", 0, "parameters", 0, "shape"), ["2"]),
        (("structure", "layers", 1, "name"), "\udc80"),
        (("signals", "output", "labels"), ["cat"]),
        (("signals", "zero_inputs", "convs.1", "last"), ...),
        (("optimizers", 0, "groups", 0, "parameters"), "all"),
        (("cadence", "budget"), "5%"),
        (("first_non_finite",), {"step": 3}),
        (("resumed_at",), [-1]),
    ],
)
def test_the_place_in_meta_json_is_named(damaged, sound, tmp_path, place, value):
    folder = damaged("sealed")
    rewrite_meta(folder, lambda meta: put(meta, place, value))
    done = run_command("diagnose", folder, sound, tmp_path)
    check(done, folder / "meta.json", must_fail=True)
    assert f'"{".".join(map(str, place))}' in done.stderr


def test_laws_that_contradict_their_parameters_are_refused_by_the_page(damaged, sound, tmp_path):
    folder = damaged("sealed")
    rewrite_meta(folder, lambda meta: put(meta, ("laws", "found", 0, "terms", 0, "at"), [10**6]))
    check(run_command("report", folder, sound, tmp_path), folder / "meta.json", must_fail=True)


def test_tables_without_meta_json_are_no_checkpoints(damaged, sound, tmp_path):
    folder = damaged("sealed")
    (folder / "meta.json").unlink()
    done = run_command("diagnose", folder, sound, tmp_path)
    check(done, folder / "meta.json", must_fail=True)
    assert "is missing, and the tables beside it cannot be read without it" in done.stderr


def test_a_module_with_a_lone_surrogate_in_its_name_leaves_a_run_that_can_be_opened(tmp_path):
    model = nn.Sequential()
    model.add_module("conv\udc80", nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "run", every=1):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    run = gatdiag.load(tmp_path / "run")
    assert run.layer_names == (r"conv\udc80",)
    assert {*run.snapshot("final")} == {*run.parameters["parameter"]} == {r"conv\udc80.weight", r"conv\udc80.bias"}
