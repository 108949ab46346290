"""Training on several processes: rank 0 is recorded, and nothing waits or differs that does not without us."""

import json
import multiprocessing
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn

import gatdiag
from gatdiag.recorder.ranks import Claim, is_first_process
from tests.recorder import distributed_training as script
from tests.recorder.loops import Gat, graph, sgd, train_step

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "WORLD_SIZE")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed"),
]


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)


def launch(case, folder, *, succeeds=True):
    """Run a case on two processes; returns what each has written."""
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        script.__file__,
        case,
        str(folder),
    ]
    return start(command, folder, succeeds=succeeds)


def start(command, folder, *, succeeds=True):
    folder.mkdir()
    root = str(Path(gatdiag.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (found.returncode == 0) is succeeds, found.stderr
    results = [folder / f"{rank}.json" for rank in (0, 1)]
    return [json.loads(result.read_text()) if result.exists() else None for result in results]


def run_alone(folder):
    """The training of rank 0 by itself; the first step is that of all."""
    model = script.make_model()
    with gatdiag.watch(model, folder, every=1, metrics="full"):
        script.train(model, script.sgd(model), script.batches(0))
    return gatdiag.load(folder)


def train_alone(folder, **options):
    """The same training on one process, with the batches of both."""
    model, both = script.make_model(), [script.batches(rank) for rank in (0, 1)]
    joined = [tuple(map(torch.cat, zip(*pair, strict=True))) for pair in zip(*both, strict=True)]
    with gatdiag.watch(model, folder, every=1, metrics="full"):
        script.train(model, script.sgd(model), joined, **options)
    return gatdiag.load(folder)


@pytest.fixture(scope="module")
def data_parallel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data parallel") / "runs"
    return folder, launch("data_parallel", folder)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded") / "runs"
    return folder, launch("sharded", folder)


@pytest.mark.parametrize("name", ["ddp", "inner", "clipped", "views", "static"])
def test_data_parallel_training_is_the_same_and_recorded_as_that_of_one_process(tmp_path, data_parallel, name):
    folder, results = data_parallel
    for result in results:
        bare, watched = result[name]
        assert watched == bare
    assert {path.name for path in folder.iterdir()} == {*results[0], "0.json", "1.json"}
    run = gatdiag.load(folder / name)
    alone = train_alone(tmp_path / "alone", clip=0.1 if name not in ("ddp", "inner") else None)
    assert run.steps.step.tolist() == alone.steps.step.tolist() == [0, 1, 2, 3]
    for table, columns in (
        ("steps", ("gradient_norm", "gradient_norm_before_clipping")),
        ("parameters", ("norm", "gradient_norm", "relative_gradient_norm", "update_ratio")),
    ):
        for column in columns:
            np.testing.assert_allclose(getattr(run, table)[column], getattr(alone, table)[column], rtol=1e-5)
    assert run.parameters.layer.tolist() == alone.parameters.layer.tolist()
    assert len(run.layers) == len(alone.layers)
    assert run.status == "finished"
    if name in ("clipped", "views", "static"):
        assert (run.steps.gradient_norm_before_clipping > 0.2).all()
        assert (run.steps.gradient_norm < 0.11).all()


@pytest.mark.parametrize("name", ["fsdp", "fsdp clipped", "tensor parallel"])
def test_sharded_training_is_the_same_and_what_is_sharded_is_left_out_with_one_note(tmp_path, sharded, name):
    folder, results = sharded
    for result in results:
        bare, watched = result[name]
        assert watched == bare
    run = gatdiag.load(folder / name)
    assert run.steps.step.tolist() == [0, 1, 2, 3]
    assert sum("shard" in note for note in run.meta["notes"]) == len(run.meta["notes"]) == 1
    assert len(run.parameters) == len(run.neurons) == 0
    assert len(run.layers) == (0 if name == "tensor parallel" else 8)
    if name != "tensor parallel":  # outputs are those of the batch of this process
        alone = run_alone(tmp_path / "alone")
        np.testing.assert_allclose(run.layers.output_norm[:2], alone.layers.output_norm[:2], rtol=1e-5)
    assert "gradient_norm" not in run.steps or run.steps.gradient_norm.isna().all()
    assert gatdiag.diagnose(folder / name).findings == ()
    assert run.status == "finished"


def test_who_records_is_decided_when_the_process_group_exists(tmp_path):
    results = launch("watched_before", tmp_path / "runs")
    assert not any(result["exists"] for result in results)
    assert len(gatdiag.load(tmp_path / "runs" / "run").steps) == script.STEPS
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"run", "0.json", "1.json"}


@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed")
def test_lightning_starts_the_other_processes_itself(tmp_path):
    """They have LOCAL_RANK and no process group yet when they call `watch`."""
    script = str(Path(__file__).with_name("lightning_training.py"))
    for watched, bare in start([script, str(tmp_path / "runs")], tmp_path / "runs"):
        assert watched == bare
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"run", "0.json", "1.json"}
    run = gatdiag.load(tmp_path / "runs" / "run")
    assert run.steps.step.tolist() == [0, 1, 2, 3]
    assert run.steps.loss.notna().all()
    assert len(run.layers) == 8


@pytest.mark.parametrize("way", ["raised", "killed"])
def test_a_process_that_fails_leaves_the_others_as_without_us(tmp_path, way):
    results = launch(f"failing {way}", tmp_path / "runs", succeeds=way == "raised")
    assert [result and result["ended"] for result in results] == [
        "RuntimeError",
        None if way == "killed" else "ValueError",
    ]
    run = gatdiag.load(tmp_path / "runs" / "run")
    assert len(run.steps) >= 2


# --- which process it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "is_first"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),  # the second node
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0", "SLURM_PROCID": "1"}, True),
        ({"SLURM_PROCID": "3"}, False),
        ({"SLURM_PROCID": "0"}, True),
        ({"RANK": ""}, True),
        ({"RANK": "first"}, True),
    ],
)
def test_the_environment_says_which_process_this_is(monkeypatch, variables, is_first):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() is is_first
    assert Claim().take() is is_first


def test_the_process_group_knows_better(monkeypatch, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        monkeypatch.setenv("RANK", "1")
        assert is_first_process()
    finally:
        dist.destroy_process_group()
    assert not is_first_process()


def test_a_claim_is_taken_once():
    claim = Claim()
    assert [claim.is_taken, claim.take(), claim.is_taken, claim.take()] == [False, True, True, False]


def test_another_process_than_the_first_leaves_no_trace_and_trains(tmp_path, monkeypatch):
    """Also if the folder, or a run to resume, is what the first process is about to write."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "half.part").touch()
    for options in ({}, {"overwrite": True}, {"resume": True}):
        model, data = Gat(layers=2), graph()
        optimizer = sgd(model)
        with gatdiag.watch(model, tmp_path / "run", **options) as recorder:
            recorder.log(loss=train_step(model, data, optimizer))
            train_step(model, data, optimizer)
            assert not recorder.diagnosis().findings
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["half.part"]
    assert not (tmp_path / "run-2").exists()


# --- when the folder is opened ----------------------------------------------------------------------------------------


def test_the_folder_is_made_at_the_first_step_and_holds_what_was_logged_before(tmp_path):
    model, data = Gat(layers=2), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run") as recorder:
        recorder.log(first=1.0)
        model(data.x, data.edge_index)
        assert not (tmp_path / "run").exists()
        train_step(model, data, optimizer)
        assert (tmp_path / "run").exists()
        initial = gatdiag.load(tmp_path / "run").snapshot("initial")
    run = gatdiag.load(tmp_path / "run")
    assert run.steps["first"].tolist() == [1.0]
    assert initial is not None
    assert not np.array_equal(initial["convs.0.att"], run.snapshot("final")["convs.0.att"])


def test_a_process_that_makes_no_step_is_warned_at_the_end(tmp_path):
    with pytest.warns(gatdiag.recorder.RecordingWarning, match="no step of an optimizer"):
        with gatdiag.watch(Gat(layers=2), tmp_path / "run"):
            assert not (tmp_path / "run").exists()
    assert gatdiag.load(tmp_path / "run").status == "finished"


def test_a_folder_that_is_taken_before_the_first_step_is_left_alone(tmp_path):
    model, data = Gat(layers=2), graph()
    optimizer = sgd(model)
    with pytest.warns(gatdiag.recorder.RecordingWarning, match="holds other files"):
        with gatdiag.watch(model, tmp_path / "run"):
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "mine").touch()
            train_step(model, data, optimizer)
            train_step(model, data, optimizer)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


# --- processes that are started by this one ---------------------------------------------------------------------------


def _child(rank, folder, model, ends):
    """A process of a distributed training; `model` is watched by the parent, or by nobody."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    parallel = nn.parallel.DistributedDataParallel(model)
    script.train(parallel, script.sgd(parallel), script.batches(rank))
    dist.barrier()
    dist.destroy_process_group()


def _child_that_watches(rank, folder, model):
    with gatdiag.watch(model, Path(folder) / "run", every=1):
        _child(rank, folder, model, False)


def run_children(method, function, folder, *given):
    processes = [
        multiprocessing.get_context(method).Process(target=function, args=(rank, str(folder), *given))
        for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]


@needs_fork
def test_forked_processes_of_a_training_that_the_parent_watches_are_recorded_once(tmp_path, recwarn):
    model = script.make_model()
    with gatdiag.watch(model, tmp_path / "run", every=1):
        run_children("fork", _child, tmp_path, model, True)
        assert (tmp_path / "run").exists()
    assert not [str(item.message) for item in recwarn if "no step" in str(item.message)]
    run = gatdiag.load(tmp_path / "run")
    assert len(run.steps) == script.STEPS
    assert run.status == "finished"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["run"]


@needs_fork
def test_a_forked_process_that_trains_on_its_own_writes_nothing_and_the_parent_is_recorded(tmp_path):
    model, data = Gat(layers=2), graph()
    optimizer = sgd(model)

    def child():
        train_step(model, data, optimizer)

    with gatdiag.watch(model, tmp_path / "run"):
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert not (tmp_path / "run").exists()
        train_step(model, data, optimizer)
    assert len(gatdiag.load(tmp_path / "run").steps) == 1


@pytest.mark.slow
def test_spawned_processes_that_watch_are_recorded_once(tmp_path):
    """As ddp_spawn: no variable says which process it is when `watch` is called."""
    run_children("spawn", _child_that_watches, tmp_path, script.make_model())
    run = gatdiag.load(tmp_path / "run")
    assert len(run.steps) == script.STEPS
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["run"]
