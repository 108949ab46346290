"""A checkpoint written again holds the new tensors and everything else as it was."""

import os
import resource
import signal

import pytest
import torch
from safetensors import safe_open
from torch import nn

from gatdiag.checkpoint import open_checkpoint, round_to_file, write_checkpoint
from gatdiag.errors import InputError
from tests.checkpoint.saved import FORMATS, GAT, lightning, save, trained

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of torch, where it saves
WRITTEN = FORMATS[:3]


def rewritten(folder, data, new, **options):
    """A file of torch.save that is written again with other tensors: what torch reads of that."""
    torch.save(data, folder / "in.pt")
    write_checkpoint(open_checkpoint(folder / "in.pt"), new, folder / "out.pt", **options)
    return torch.load(folder / "out.pt", weights_only=True)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and type(a) is type(b) and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("kind", WRITTEN)
def test_new_tensors_in_every_format(tmp_path, kind):
    source = save(kind, trained()[0].state_dict(), tmp_path)
    before, checkpoint = source.read_bytes(), open_checkpoint(source)
    new = {name: tensor * 2 for name, tensor in checkpoint.tensors.items() if tensor.is_floating_point()}
    out = write_checkpoint(checkpoint, new, tmp_path / "out.pt")
    written = open_checkpoint(out)
    assert written.format == kind
    assert list(written.tensors) == list(checkpoint.tensors)
    for name, tensor in written.tensors.items():
        assert torch.equal(tensor, new.get(name, checkpoint.tensors[name]))
    assert source.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, "out.pt"])


@pytest.mark.parametrize("new", [True, False])
def test_everything_else_is_carried_over(tmp_path, new):
    model, optimizer = trained()
    data = lightning(model, optimizer) | {
        "rng": torch.get_rng_state(),
        "parameter": nn.Parameter(torch.ones(2)),
        "ema": {"w": torch.ones(2)},
        "odd": [1, (2.5, None), {"x": {3: "y"}}, b"bytes", 1 + 2j, torch.float16, torch.Size([2])],
    }
    torch.save(data, tmp_path / "in.ckpt", _use_new_zipfile_serialization=new)
    checkpoint = open_checkpoint(tmp_path / "in.ckpt")
    write_checkpoint(checkpoint, {"convs.0.att": torch.zeros(1, 1, 4)}, tmp_path / "out.ckpt")
    before, after = (torch.load(tmp_path / name, weights_only=True) for name in ("in.ckpt", "out.ckpt"))
    assert not after["state_dict"]["model.convs.0.att"].any()
    after["state_dict"]["model.convs.0.att"] = before["state_dict"]["model.convs.0.att"]
    assert same(before, after)


def test_the_versions_of_a_state_dict_stay(tmp_path):
    state = rewritten(tmp_path, trained()[0].state_dict(), {"convs.0.att": torch.zeros(1, 1, 4)})
    assert state._metadata["norm"] == {"version": 2}
    GAT().load_state_dict(state)


def test_metadata_and_all_other_bytes_of_safetensors_stay(tmp_path):
    tensors = {"a": torch.ones(2, 2), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.arange(3)}
    source = save("safetensors", tensors, tmp_path)
    checkpoint = open_checkpoint(source)
    out = write_checkpoint(checkpoint, {"b": torch.full((3,), 2.0)}, tmp_path / "out.safetensors")
    with safe_open(out, "pt") as file:
        assert file.metadata() == {"format": "pt", "who": "me"}
        assert torch.equal(file.get_tensor("b"), torch.full((3,), 2.0, dtype=torch.bfloat16))
    assert write_checkpoint(checkpoint, {}, tmp_path / "same").read_bytes() == source.read_bytes()


def test_dtype_and_layout_stay(tmp_path):
    half, strided = torch.ones(4, dtype=torch.float16), torch.arange(6.0).reshape(2, 3).t()
    new = {"half": torch.full((4,), 0.1, dtype=torch.float64), "strided": torch.zeros(3, 2), "parameter": torch.ones(2)}
    read = rewritten(tmp_path, {"half": half, "strided": strided, "parameter": nn.Parameter(torch.ones(2))}, new)
    assert torch.equal(read["half"], torch.full((4,), 0.1, dtype=torch.float16))
    assert read["strided"].stride() == (1, 3)
    assert isinstance(read["parameter"], nn.Parameter)


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_written_is_known_before(tmp_path, kind, dtype):
    source = save(kind, {"a.weight": torch.ones(5, 3, dtype=dtype), "b.weight": torch.ones(4, dtype=dtype)}, tmp_path)
    checkpoint, generator = open_checkpoint(source), torch.Generator().manual_seed(0)
    new = {"a.weight": torch.randn(5, 3, dtype=torch.float64, generator=generator)}
    rounded = round_to_file(checkpoint, new)
    written = open_checkpoint(write_checkpoint(checkpoint, new, tmp_path / "out.pt")).tensors
    assert rounded.keys() == new.keys()
    assert rounded["a.weight"].dtype == dtype
    assert torch.equal(written["a.weight"], rounded["a.weight"])
    assert not torch.equal(written["a.weight"].double(), new["a.weight"])


def test_tied_weights_stay_tied(tmp_path):
    tied = torch.ones(3)
    read = rewritten(tmp_path, {"a": tied, "b": tied}, {"a": torch.zeros(3)})
    assert read["a"].data_ptr() == read["b"].data_ptr()
    with pytest.raises(InputError, match="shares its memory"):
        rewritten(tmp_path, {"a": tied, "b": tied}, {"a": torch.zeros(3), "b": torch.ones(3)})


def test_moments_are_replaced(tmp_path):
    model, optimizer = trained()
    data = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    new = {"norm.bias": {"exp_avg": torch.full((4,), 7.0)}}
    read = rewritten(tmp_path, data, {}, moments=new)
    before = open_checkpoint(tmp_path / "in.pt").optimizer.moments
    optimizer.load_state_dict(read["optimizer"])
    for name, parameter in model.named_parameters():
        assert torch.equal(optimizer.state[parameter]["exp_avg"], new.get(name, before[name])["exp_avg"])
        assert torch.equal(optimizer.state[parameter]["exp_avg_sq"], before[name]["exp_avg_sq"])
    with pytest.raises(InputError, match="'exp_avg of nobody'"):
        rewritten(tmp_path, data, {}, moments={"nobody": {"exp_avg": torch.ones(4)}})


def test_a_dropped_optimizer_starts_anew(tmp_path):
    model, optimizer = trained()
    new = {"convs.0.att": torch.zeros(1, 1, 4)}
    (state,) = rewritten(tmp_path, lightning(model, optimizer), new, drop_optimizer=True)["optimizer_states"]
    assert state["param_groups"] == optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(state)
    assert not optimizer.state
    model.convs[0].att.sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", WRITTEN)
def test_the_file_itself_only_when_asked(tmp_path, kind):
    source = save(kind, {"a": torch.ones(2)}, tmp_path)
    other = tmp_path / "other"
    other.hardlink_to(source)
    checkpoint, before = open_checkpoint(source), source.read_bytes()
    for path in (source, other):
        with pytest.raises(InputError, match="is the checkpoint itself"):
            write_checkpoint(checkpoint, {"a": torch.zeros(2)}, path)
    assert source.read_bytes() == before
    write_checkpoint(checkpoint, {"a": torch.zeros(2)}, source, in_place=True)
    assert not open_checkpoint(source).tensors["a"].any()


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize(
    ("tensors", "reason"),
    [({"b": torch.ones(2)}, "no tensor 'b'"), ({"a": torch.ones(3)}, r"shape \(2,\), got \(3,\)")],
)
def test_what_does_not_fit_is_refused(tmp_path, kind, tensors, reason):
    source = save(kind, {"a": torch.ones(2)}, tmp_path)
    with pytest.raises(InputError, match=reason):
        write_checkpoint(open_checkpoint(source), tensors, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError):
        rewritten(tmp_path, {"a": torch.ones(1).expand(3)}, {"a": torch.zeros(3)})
    for out in (tmp_path, tmp_path / "missing" / "out.pt"):
        with pytest.raises(InputError, match="name of a file"):
            write_checkpoint(open_checkpoint(tmp_path / "in.pt"), {}, out)


@pytest.mark.parametrize("kind", FORMATS[3:])
def test_several_files_are_not_written(tmp_path, kind):
    checkpoint = open_checkpoint(save(kind, {"a": torch.ones(2), "b": torch.ones(2)}, tmp_path))
    with pytest.raises(InputError, match="read but not written"):
        write_checkpoint(checkpoint, {}, tmp_path / "out.pt")


def test_only_a_file_is_replaced(tmp_path):
    checkpoint = open_checkpoint(save("torch", {"a": torch.ones(2)}, tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="name of a file"):
        write_checkpoint(checkpoint, {"a": torch.zeros(2)}, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_stays_one(tmp_path):
    source = save("torch", {"a": torch.ones(2)}, tmp_path)
    link = tmp_path / "last"
    link.symlink_to(source)
    write_checkpoint(open_checkpoint(link), {"a": torch.zeros(2)}, link, in_place=True)
    assert link.is_symlink()
    assert not open_checkpoint(source).tensors["a"].any()


def test_a_value_too_large_for_its_number_type_is_refused(tmp_path):
    source = save("torch", {"a": torch.ones(2).half()}, tmp_path)
    with pytest.raises(InputError, match="too large"):
        write_checkpoint(open_checkpoint(source), {"a": torch.tensor([1.0, 1e6])}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_refuses_torch_is_no_runtime_error(tmp_path):
    checkpoint = open_checkpoint(save("torch", {"a": torch.ones(100_000)}, tmp_path))
    (tmp_path / "out.pt").write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, limits[1]))
    try:
        with pytest.raises(OSError, match="disk is full"):
            write_checkpoint(checkpoint, {"a": torch.zeros(100_000)}, tmp_path / "out.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / "out.pt").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "out.pt"]
