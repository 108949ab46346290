"""Checkpoints as people save them: what is read is what was saved."""

import os
import shlex
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gatdiag.checkpoint import open_checkpoint
from gatdiag.checkpoint.state_dict import is_plain
from gatdiag.errors import InputError
from tests.checkpoint.saved import FORMATS, GAT, kinds_of_tensors, lightning, save, trained

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of torch, where it saves


def plain(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def reopened(folder, data, name="a.pt", **options):
    torch.save(data, folder / name, **options)
    return open_checkpoint(str(folder / name))


def assert_same(tensors, expected):
    assert list(tensors) == list(expected)
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_tensors(tmp_path, kind):
    model, _ = trained()
    checkpoint = open_checkpoint(save(kind, plain(model), tmp_path))
    assert checkpoint.format == kind
    assert checkpoint.optimizer is None
    assert set(checkpoint.tensors) == set(plain(model))
    assert_same({name: checkpoint.tensors[name] for name in plain(model)}, plain(model))


@pytest.mark.parametrize("kind", ["torch", "torch (legacy)"])
def test_the_order_is_that_of_the_file(tmp_path, kind):
    model, _ = trained()
    assert list(open_checkpoint(save(kind, plain(model), tmp_path)).tensors) == list(plain(model))


@pytest.mark.parametrize("kind", FORMATS[:3])
def test_the_suffix_does_not_matter(tmp_path, kind):
    path = save(kind, {"a": torch.ones(2)}, tmp_path)
    for suffix in (".safetensors", ".pt", ".ckpt", ""):
        path = path.rename(tmp_path / f"model{suffix}")
        assert open_checkpoint(path).format == kind


@pytest.mark.parametrize("key", ["state_dict", "model", "gnn"])
def test_usual_keys_and_the_only_one(tmp_path, key):
    model, optimizer = trained()
    data = {"epoch": 3, key: model.state_dict(), "optimizer": optimizer.state_dict(), "loss": 0.5}
    checkpoint = reopened(tmp_path, data)
    assert_same(checkpoint.tensors, plain(model))
    assert (checkpoint.within, checkpoint.epoch, checkpoint.step, checkpoint.notes) == ((key,), 3, 2, ())
    assert set(checkpoint.optimizer.moments) == {name for name, _ in model.named_parameters()}


def test_lightning(tmp_path):
    model, optimizer = trained()
    checkpoint = reopened(tmp_path, lightning(model, optimizer), "last.ckpt")
    assert_same(checkpoint.tensors, plain(model))
    assert checkpoint.keys["convs.0.att"] == "model.convs.0.att"
    assert (checkpoint.step, checkpoint.epoch) == (250, 4)
    assert torch.equal(
        checkpoint.optimizer.moments["norm.bias"]["exp_avg"], optimizer.state[model.norm.bias]["exp_avg"]
    )
    assert checkpoint.notes == ("Prefixes removed from the names: model.",)


def test_a_distributed_checkpoint_is_read_once_it_is_converted(tmp_path):
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 3}
    dcp.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    with pytest.raises(InputError, match="format_utils dcp_to_torch") as caught:
        open_checkpoint(tmp_path / "a")
    *_, module, mode, folder, _ = shlex.split(str(caught.value))
    runpy_arguments = [mode, folder, str(tmp_path / "a.pt")]
    done = subprocess.run([sys.executable, "-m", module, *runpy_arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert_same(checkpoint.tensors, plain(model))
    assert (checkpoint.step, checkpoint.epoch) == (2, 3)
    for name, parameter in model.named_parameters():
        assert torch.equal(checkpoint.optimizer.moments[name]["exp_avg_sq"], optimizer.state[parameter]["exp_avg_sq"])


def test_trained_weights_come_before_their_average(tmp_path):
    nested = {"train": {"model": {"a": torch.ones(1)}}, "args": {"a": torch.ones(1)}}
    assert reopened(tmp_path, nested).within == ("train", "model")
    checkpoint = reopened(tmp_path, {"ema_state_dict": {"a": torch.zeros(1)}, "model": {"a": torch.ones(1)}})
    assert checkpoint.tensors["a"] == 1
    assert checkpoint.notes == ("Read the weights under 'model', not those under 'ema_state_dict'",)
    assert reopened(tmp_path, {"ema_state_dict": {"a": torch.zeros(1)}, "epoch": 3}).notes == (
        "The file has only averaged weights, under 'ema_state_dict'",
    )


def test_an_averaged_model(tmp_path):
    model, _ = trained()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    checkpoint = reopened(tmp_path, averaged.state_dict())
    assert_same(checkpoint.tensors, plain(model))
    assert "average" in checkpoint.notes[0]


def test_several_models_are_not_guessed_between(tmp_path):
    with pytest.raises(InputError, match="several state dicts \\('generator' and 'critic'\\)"):
        reopened(tmp_path, {"generator": {"a": torch.ones(1)}, "critic": {"a": torch.ones(1)}})


def test_entries_that_are_no_tensors_are_told_of(tmp_path):
    data = {"a": torch.ones(1), "conv._extra_state": {"x": 1}, "m": torch.ones(3, device="meta")}
    checkpoint = reopened(tmp_path, data)
    assert list(checkpoint.tensors) == ["a"]
    assert "without data): 'm'" in checkpoint.notes[0]
    assert "'conv._extra_state'" in checkpoint.notes[1]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "got no keys"),
        ({"epoch": 3}, "got 'epoch'"),
        ([torch.ones(1)], "type list"),
        (torch.ones(1), "a single tensor"),
        (3, "type int"),
        (None, "type NoneType"),
        ({"optimizer": {"state": {0: {"exp_avg": torch.ones(1)}}}}, "no state dict"),
        ({"state": {0: {"exp_avg": torch.ones(1)}}, "param_groups": []}, "got 'state' and 'param_groups'"),
        ({0: torch.ones(1)}, "no state dict"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, data, reason):
    with pytest.raises(InputError, match=reason):
        reopened(tmp_path, data)


def test_a_whole_model_is_refused_by_what_it_asks_for(tmp_path):
    with pytest.raises(InputError, match=r"GLOBAL tests\.checkpoint\.saved\.GAT .*torch\.save\(model\.state_dict"):
        reopened(tmp_path, GAT())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        (b"", "not a checkpoint"),
        (b"PK\3\4", "damaged"),
        (b"hello", "not a checkpoint"),
        (b"\x80\x02K\1.", "pickle"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path, content, reason):
    path = tmp_path / "a\x1b.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        open_checkpoint(path)
    assert "a\\x1b.pt" in str(caught.value)


@pytest.mark.parametrize(
    ("pipe", "opened", "reason"),
    [("a.pt", "a.pt", "not a regular one"), ("model.safetensors.index.json", "", "expected a folder with")],
)
def test_a_pipe_is_not_waited_for(tmp_path, pipe, opened, reason):
    os.mkfifo(tmp_path / pipe)
    with pytest.raises(InputError, match=reason):
        open_checkpoint(tmp_path / opened)


@pytest.mark.parametrize("new", [True, False])
def test_all_kinds_of_tensors(tmp_path, new):
    tensors = kinds_of_tensors()
    if not new:  # torch does not read these back itself
        tensors = {name: tensor for name, tensor in tensors.items() if name != "uint16" and "float8" not in name}
    checkpoint = reopened(tmp_path, tensors, _use_new_zipfile_serialization=new)
    read = checkpoint.tensors
    plain = {name: tensor for name, tensor in tensors.items() if is_plain(tensor)}
    assert read.keys() == plain.keys()
    for name, tensor in plain.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert read[name].stride() == tensor.stride()
        assert str(read[name]) == str(tensor.detach())
    (note,) = checkpoint.notes
    assert f"Left out {len(tensors) - len(plain)} tensors" in note


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_torchscript_is_refused(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    with pytest.raises(InputError, match="TorchScript"):
        open_checkpoint(tmp_path / "script.pt")


def test_two_gigabytes_are_not_read(tmp_path):
    """A file with a hole of 2 GB in it, opened by a process that may not have half as much memory of its own."""
    program = f"""
import torch, resource, sys
path = {str(tmp_path / "big.pt")!r}
big = torch.UntypedStorage.from_file(path + ".0", True, 2 << 30)
with torch.serialization.skip_data():
    torch.save({{"weight": torch.empty(0).set_(big).reshape(1 << 14, 1 << 15)}}, path)
from gatdiag.checkpoint import open_checkpoint
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weight = open_checkpoint(path).tensors["weight"]
assert weight.shape == (1 << 14, 1 << 15) and weight[5, 5] == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100_000  # kilobytes
    assert (tmp_path / "big.pt").stat().st_size > 2 << 30


def test_nothing_in_the_file_changes(tmp_path):
    path = save("torch", {"a": torch.ones(3)}, tmp_path)
    before = path.read_bytes()
    open_checkpoint(path).tensors["a"].zero_()
    assert path.read_bytes() == before
