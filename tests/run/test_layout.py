import os
from pathlib import Path

import pytest

from gatdiag.run import layout


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("meta.json", True),
        (".lock", True),
        ("steps.parquet", True),
        (".steps.parquet.0a1b2c3d.part", True),
        ("steps.parquet.damaged", True),
        ("neurons.12.arrows", True),
        ("best.safetensors", True),
        (".best.safetensors.0a1b2c3d.part", True),
        ("best.safetensors.part", False),
        ("model.safetensors", False),
        ("units.parquet", False),
        ("layers.x.arrows", False),
        (".layers.1.arrows.0a1b2c3d.part", False),
        ("layers.99999999999.arrows", False),
        ("xlayers.1.arrows", False),
        ("meta.json.bak", False),
        ("Meta.json", False),
    ],
)
def test_only_names_that_gatdiag_writes_belong_to_a_run(name, ours):
    assert layout.belongs_to_a_run(name) is ours


def test_streams_are_found_in_the_order_of_their_numbers(tmp_path):
    for name in ("layers.10.arrows", "layers.9.arrows", "layers.0.arrows", "steps.1.arrows", "layers.parquet"):
        (tmp_path / name).touch()
    assert list(layout.streams(tmp_path, "layers")) == [0, 9, 10]


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, durable):
    path = tmp_path / "meta.json"
    for text in ("first", "second"):
        with layout.replacing(path, durable=durable) as part:
            part.write_text(text)
        assert path.read_text() == text

    def fail():
        with layout.replacing(path, durable=durable) as part:
            part.write_text("half of the th")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [found.name for found in tmp_path.iterdir()] == ["meta.json"]
    assert path.read_text() == "second"


def test_what_is_no_regular_file_keeps_its_place(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"), layout.replacing(pipe):
        pass
    assert pipe.is_fifo()


def test_nothing_that_stands_beside_a_file_is_touched_by_replacing_it(tmp_path: Path) -> None:
    target, precious = tmp_path / "model.pt", tmp_path / "precious.txt"
    precious.write_text("mine")
    (tmp_path / "model.pt.part").symlink_to(precious)

    with layout.replacing(target) as part:
        part.write_text("new")
    with pytest.raises(RuntimeError), layout.replacing(target) as part:
        part.write_text("half")
        raise RuntimeError

    assert (target.read_text(), precious.read_text()) == ("new", "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "model.pt.part", "precious.txt"]


def test_a_long_name_can_be_replaced(tmp_path: Path) -> None:
    target = tmp_path / ("ä" * 125 + ".pt")
    with layout.replacing(target) as part:
        part.write_text("new")

    assert target.read_text() == "new"
