"""Files, globs and folders become checkpoints in order of the step, which files and names tell."""

import pytest
import torch

from gatdiag.checkpoint import open_all, open_checkpoint
from gatdiag.errors import InputError
from tests.checkpoint.saved import FORMATS, count_opens, save


def write(folder, names, steps=None):
    folder.mkdir(exist_ok=True)
    for name, step in zip(names, steps or [None] * len(names), strict=True):
        torch.save({"model": {"a": torch.ones(1)}, **({} if step is None else {"global_step": step})}, folder / name)


def names(checkpoints):
    return [checkpoint.path.name for checkpoint in checkpoints]


def test_numbers_in_names(tmp_path):
    write(tmp_path, ["gat_10.pt", "gat_9.pt", "gat_100.pt"])
    assert names(open_all(tmp_path)) == ["gat_9.pt", "gat_10.pt", "gat_100.pt"]


def test_epochs_in_names(tmp_path):
    write(tmp_path, ["epoch=10.ckpt", "epoch=9.ckpt"])
    assert names(open_all(str(tmp_path / "*.ckpt"))) == ["epoch=9.ckpt", "epoch=10.ckpt"]


def test_steps_in_the_files_where_names_tell_none(tmp_path):
    write(tmp_path, ["a.pt", "b.pt", "last.pt", "step_15.pt"], [20, 10, None, None])
    assert names(open_all([tmp_path])) == ["b.pt", "step_15.pt", "a.pt", "last.pt"]


def test_each_once_and_only_checkpoints(tmp_path):
    write(tmp_path, ["a_2.pt", "a_1.pt"])
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "logs").mkdir()
    write(tmp_path, [".hidden_3.pt"])
    (tmp_path / "last.pt").symlink_to(tmp_path / "a_2.pt")
    found = open_all([tmp_path, tmp_path / "a_1.pt", tmp_path / "*_1.pt"])
    assert [checkpoint.path.resolve().name for checkpoint in found] == ["a_1.pt", "a_2.pt"]


def test_a_folder_that_is_a_checkpoint(tmp_path):
    shards = save("safetensors (sharded)", {"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "s")
    assert names(open_all(shards)) == ["s"]
    assert names(open_all(tmp_path)) == ["s"]


@pytest.mark.parametrize("name", ["a.pt", "missing.pt"])
def test_a_file_that_is_named_is_not_skipped(tmp_path, name):
    write(tmp_path, ["b.pt"])
    (tmp_path / "a.pt").write_bytes(b"hello")
    assert names(open_all(tmp_path)) == ["b.pt"]
    with pytest.raises(InputError, match=name):
        open_all([tmp_path, tmp_path / name])


@pytest.mark.parametrize("what", ["empty", "*.pt"])
def test_nothing_there(tmp_path, what):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="Expected checkpoints"):
        open_all(tmp_path / what)
    with pytest.raises(InputError, match="got no paths"):
        open_all([])


@pytest.mark.parametrize("kept", [300, -10])
def test_what_is_damaged_is_not_skipped(tmp_path, kept):
    write(tmp_path, ["a.pt", "b.pt"])
    (tmp_path / "b.pt").write_bytes((tmp_path / "b.pt").read_bytes()[:kept])
    with pytest.raises(InputError, match=r"b\.pt.*damaged"):
        open_all(tmp_path)


def test_the_first_by_name(tmp_path):
    write(tmp_path, ["gat.pt", "gat_fresh.pt", "final.pt", "refreshed.pt"], [20, None, None, None])
    assert names(open_all(tmp_path)) == ["gat_fresh.pt", "gat.pt", "final.pt", "refreshed.pt"]


def test_what_holds_no_model_is_skipped_in_a_folder(tmp_path):
    write(tmp_path, ["model.pt"])
    parameter = torch.nn.Parameter(torch.ones(1))
    torch.save(torch.optim.SGD([parameter]).state_dict(), tmp_path / "optimizer.pt")
    torch.save({"arguments": torch.nn.ReLU}, tmp_path / "arguments.bin")
    with pytest.warns(UserWarning, match=r"^gatdiag: skipped: .*(optimizer\.pt|arguments\.bin)") as told:
        assert names(open_all(tmp_path)) == ["model.pt"]
    assert len(told) == 2
    (tmp_path / "model.pt").unlink()
    with pytest.raises(InputError, match=r"arguments\.bin"):
        open_all(tmp_path)


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
    assert names(open_all(tmp_path)) == ["first.pt", "last.pt", "later.pt"]


@pytest.mark.parametrize("kind", FORMATS)
def test_each_file_is_opened_once(tmp_path, kind, monkeypatch):
    for step in (2, 1):
        save(kind, {"weight": torch.ones(3, 3), "bias": torch.ones(3)}, tmp_path / f"step{step}")
    paths = [path for path in tmp_path.rglob("*") if path.suffix in (".pt", ".safetensors")]
    opens = count_opens(monkeypatch)
    assert [one.step for one in open_all([*tmp_path.iterdir(), *tmp_path.iterdir()])] == [1, 2]
    assert opens == dict.fromkeys(map(str, paths), 1)
