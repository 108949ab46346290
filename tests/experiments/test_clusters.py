"""Sweeps on a real Dask cluster and a real Ray, each of two processes on this machine."""

import os
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.experiments import pool
from gatdiag.experiments.pool import Pool
from gatdiag.experiments.sweep import cell_key, read_grid, sweep

ROOT = Path(__file__).parents[2]
GRID = """
data = "csbm:nodes=200,features=16"
model = "gatv2"
layers = [2, 3]
width = 8
dropout = 0.5
learning_rate = 1
epochs = 40
seed = [0, 1, 2]
"""
START = {
    "dask": """
import dask, sys
dask.config.set({
    "distributed.scheduler.allowed-failures": 0,
    "distributed.worker.multiprocessing-method": "forkserver",  # all workers together import torch once
})
from distributed import LocalCluster
from distributed.utils import get_mp_context
get_mp_context().set_forkserver_preload(["distributed", "gatdiag.experiments.sweep"])
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None)
    print("address", cluster.scheduler_address, flush=True)
    sys.stdin.read()
""",
    "ray": """
import ray, sys
context = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8)
print("address", context.address_info["gcs_address"], flush=True)
sys.stdin.read()
""",
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    file = tmp_path_factory.mktemp("grid") / "grid.toml"
    file.write_text(GRID)
    return read_grid(file)


def contents(folder):
    return {path.name: path.read_bytes() for path in (folder / "cells").glob("*.json")}


@pytest.fixture(scope="module")
def expected(cells, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected")
    assert sweep(cells, out, pool=Pool(1)) == {}
    return contents(out)


@pytest.fixture(scope="module", params=[*START])
def cluster(request, tmp_path_factory):
    script = tmp_path_factory.mktemp("cluster") / "start.py"
    script.write_text(START[request.param])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else a busy machine leaves its workers nothing
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("PYTHONPATH", str(ROOT))
        pytest.importorskip({"dask": "distributed", "ray": "ray"}[request.param])
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with process:
            address = next(line.split()[1] for line in process.stdout if line.startswith("address"))
            yield request.param, address, process
            process.kill()


def test_work_is_done_there_on_one_thread(cluster):
    backend, address, _ = cluster
    questions = ["__import__('torch').get_num_threads()", "-__import__('os').getpid()"] * 2
    with Pool(None, backend, address).map(eval, questions) as done:
        answers = sorted(answer for _, answer in done)
    assert answers[2:] == [1, 1]
    assert -os.getpid() not in answers


def test_its_numbers_are_those_of_processes_and_what_is_done_is_kept(cluster, cells, expected, tmp_path):
    backend, address, _ = cluster
    sweep(cells[:2], tmp_path)
    heard = []
    pool = Pool(None, backend, address)
    assert sweep(cells, tmp_path, pool=pool, on_cell=lambda _, outcome: heard.append(outcome)) == {}
    assert contents(tmp_path) == expected
    assert (heard.count("kept"), len(heard)) == (2, len(cells))


def test_runs_are_written_by_the_workers(cluster, cells, expected, tmp_path):
    backend, address, _ = cluster
    assert sweep(cells[:2], tmp_path, pool=Pool(None, backend, address), watched=cells[:2]) == {}
    assert contents(tmp_path) == {name: expected[name] for name in contents(tmp_path)}
    assert len(gatdiag.load(tmp_path / "runs" / cell_key(cells[0])).steps) == 40


def test_a_worker_that_dies_is_one_line(cluster):
    backend, address, _ = cluster
    with pytest.raises(InputError, match=f"The {backend} cluster lost a worker.*what is done is kept"):
        with Pool(None, backend, address).map(os._exit, [1]) as done:  # a second death might come in the next test
            list(done)


def test_a_cluster_that_dies_is_one_line_and_what_is_done_is_kept(cluster, cells, expected, tmp_path, monkeypatch):
    """Last of all: the cluster is gone after this."""
    backend, address, process = cluster
    long = [cells[0], *(replace(cell, epochs=1000) for cell in cells[1:])]
    with pytest.raises(InputError, match=f"{backend} cluster lost"):
        sweep(long, tmp_path, pool=Pool(None, backend, address), on_cell=lambda *_: process.kill())
    before = contents(tmp_path)
    assert 1 <= len(before) < len(long)
    monkeypatch.setattr(pool, "_TIMEOUT", 1)
    with pytest.raises(InputError, match=f"No {backend.title()} cluster answers at {address}: start .* `{backend}"):
        sweep(cells, tmp_path, pool=Pool(None, backend, address))
    assert sweep(cells, tmp_path) == {}
    assert contents(tmp_path) == before | expected
