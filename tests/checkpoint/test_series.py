"""Files, globs and folders become checkpoints in order of the step, which files and names tell."""

from pathlib import Path

import pytest
import torch

from gatdiag.checkpoint import list_checkpoints
from gatdiag.checkpoint.opening import open_checkpoint, parse_epoch, parse_step, read_epoch, read_step
from gatdiag.errors import InputError
from tests.checkpoint.saved import save


def write(folder, names, steps=None):
    folder.mkdir(exist_ok=True)
    for name, step in zip(names, steps or [None] * len(names), strict=True):
        torch.save({"model": {"a": torch.ones(1)}, **({} if step is None else {"global_step": step})}, folder / name)


def names(paths):
    return [path.name for path in paths]


def test_numbers_in_names(tmp_path):
    write(tmp_path, ["gat_10.pt", "gat_9.pt", "gat_100.pt"])
    assert names(list_checkpoints(tmp_path)) == ["gat_9.pt", "gat_10.pt", "gat_100.pt"]


def test_epochs_in_names(tmp_path):
    write(tmp_path, ["epoch=10.ckpt", "epoch=9.ckpt"])
    assert names(list_checkpoints(str(tmp_path / "*.ckpt"))) == ["epoch=9.ckpt", "epoch=10.ckpt"]


def test_steps_in_the_files_where_names_tell_none(tmp_path):
    write(tmp_path, ["a.pt", "b.pt", "last.pt", "step_15.pt"], [20, 10, None, None])
    assert names(list_checkpoints([tmp_path])) == ["b.pt", "step_15.pt", "a.pt", "last.pt"]


def test_each_once_and_only_checkpoints(tmp_path):
    write(tmp_path, ["a_2.pt", "a_1.pt"])
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "logs").mkdir()
    write(tmp_path, [".hidden_3.pt"])
    (tmp_path / "last.pt").symlink_to(tmp_path / "a_2.pt")
    found = list_checkpoints([tmp_path, tmp_path / "a_1.pt", tmp_path / "*_1.pt"])
    assert [path.resolve().name for path in found] == ["a_1.pt", "a_2.pt"]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_folders_that_are_checkpoints(tmp_path):
    for step in (10, 9):
        save("distributed", {"a": torch.ones(1)}, tmp_path / "all").rename(tmp_path / "all" / f"step_{step}")
    assert names(list_checkpoints(tmp_path / "all")) == ["step_9", "step_10"]
    assert names(list_checkpoints(tmp_path / "all" / "step_10")) == ["step_10"]
    assert (
        len(list_checkpoints(save("safetensors (sharded)", {"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "s")))
        == 1
    )


def test_a_named_file_is_not_skipped(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"hello")
    assert list_checkpoints(tmp_path / "a.pt") == [tmp_path / "a.pt"]
    assert list_checkpoints(tmp_path / "missing.pt") == [tmp_path / "missing.pt"]


@pytest.mark.parametrize("what", ["empty", "*.pt"])
def test_nothing_there(tmp_path, what):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="Expected checkpoints"):
        list_checkpoints(tmp_path / what)
    with pytest.raises(InputError, match="got no paths"):
        list_checkpoints([])


@pytest.mark.parametrize("kept", [300, -10])
def test_what_is_damaged_is_not_skipped(tmp_path, kept):
    write(tmp_path, ["a.pt", "b.pt"])
    (tmp_path / "b.pt").write_bytes((tmp_path / "b.pt").read_bytes()[:kept])
    with pytest.raises(InputError, match=r"b\.pt.*truncated"):
        list_checkpoints(tmp_path)


def test_the_first_by_name(tmp_path):
    write(tmp_path, ["gat.pt", "gat_fresh.pt", "final.pt", "refreshed.pt"], [20, None, None, None])
    assert names(list_checkpoints(tmp_path)) == ["gat_fresh.pt", "gat.pt", "final.pt", "refreshed.pt"]


def test_what_holds_no_model_is_skipped_in_a_folder(tmp_path):
    write(tmp_path, ["model.pt"])
    parameter = torch.nn.Parameter(torch.ones(1))
    torch.save(torch.optim.SGD([parameter]).state_dict(), tmp_path / "optimizer.pt")
    torch.save({"arguments": torch.nn.ReLU}, tmp_path / "arguments.bin")
    with pytest.warns(UserWarning, match=r"Skipped.*(optimizer\.pt|arguments\.bin)") as told:
        assert names(list_checkpoints(tmp_path)) == ["model.pt"]
    assert len(told) == 2
    (tmp_path / "model.pt").unlink()
    with pytest.raises(InputError, match=r"arguments\.bin"):
        list_checkpoints(tmp_path)


@pytest.mark.parametrize(
    ("name", "step", "epoch"),
    [
        ("epoch=12-step=3400.ckpt", 3400, 12),
        ("gat-epoch=12-val_loss=0.31.ckpt", None, 12),
        ("model_00500.pt", 500, None),
        ("ckpt-1000.safetensors", 1000, None),
        ("model.step_20.pth", 20, None),
        ("iter_7.pt", 7, None),
        ("gat_v2_step100.pt", 100, None),
        ("epoch3.pt", None, 3),
        ("best.pt", None, None),
        ("gat_v2.pt", None, None),
        ("gat_v2_30.pt", 30, None),
        ("run-2/final.pt", None, None),
        ("checkpoint-500/model.safetensors", 500, None),
        ("global_step40/model.pt", 40, None),
        ("99999999999999999999999.pt", None, None),
        ("loss-0.25.pt", None, None),
        ("model.fp16.safetensors", None, None),
        ("gat_bfloat16.pt", None, None),
        ("gat_int8_70.pt", 70, None),
    ],
)
def test_names(name, step, epoch):
    assert (parse_step(Path(name)), parse_epoch(Path(name))) == (step, epoch)


@pytest.mark.parametrize(
    ("data", "step", "epoch"),
    [
        ({"global_step": 7, "epoch": 2}, 7, 2),
        ({"step": torch.tensor(7), "epoch": torch.tensor([2.0])}, 7, 2),
        ({"iteration": 7.0}, 7, 99),
        ({"meta": {"iter": 7, "epoch": 2}}, 7, 2),
        ({"step": True, "epoch": -1}, 3, 99),
        ({"step": float("nan"), "epoch": 0.5}, 3, 99),
        ({"step": 10**400, "epoch": "two"}, 3, 99),
        ({"step": torch.ones(3), "epoch": torch.ones(1, dtype=torch.complex64)}, 3, 99),
        ([], 3, 99),
    ],
)
def test_what_the_file_says_comes_first(data, step, epoch):
    path = Path("epoch=99-step=3.pt")
    assert (read_step(data, None, path), read_epoch(data, path)) == (step, epoch)


@pytest.mark.parametrize(("kind", "step"), [(torch.optim.AdamW, 0), (torch.optim.SGD, None)])
def test_before_the_first_step_of_adam_it_is_step_0(tmp_path, kind, step):
    """SGD without momentum keeps no state, however many steps it takes."""
    model = torch.nn.Linear(1, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    for name in ("first.pt", "last.pt", "later.pt"):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / name)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    assert open_checkpoint(tmp_path / "first.pt").step == step
    assert names(list_checkpoints(tmp_path)) == ["first.pt", "last.pt", "later.pt"]
