from functools import partial

import pytest
import torch
from torch import nn

from gatdiag.cli.model_case import load_case, load_target
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments import data
from gatdiag.experiments.data import load_graph


class Sized(nn.Module):
    def __init__(self, in_channels=1, out_channels=2, depth=3):
        super().__init__()
        self.sizes = (in_channels, out_channels, depth)
        self.weight = nn.Parameter(torch.randn(2))

    def forward(self, x, edge_index):
        return x


class OnData(nn.Module):
    def forward(self, data):
        return data.x


def sizeless(*, depth=3):
    return Sized(depth=depth)


def demanding(in_channels, width):
    return Sized()


def failing():
    raise RuntimeError("no more\nwidth")


def exiting():
    raise SystemExit(1)


PAIR = (torch.ones(2), torch.zeros(3))
SHELF = {
    "Sized": Sized,
    "instance": Sized(5, 6, 7),
    "OnData": OnData,
    "sizeless": sizeless,
    "half": partial(Sized, depth=9),
    "demanding": demanding,
    "failing": failing,
    "exiting": exiting,
    "number": 3,
    "makes_number": lambda: 3,
    "swallows": lambda **options: Sized(depth=len(options)),
    "as_tuple": lambda: PAIR,
    "as_list": lambda: list(PAIR),
    "as_dict": lambda: {"x": PAIR[0], "edge_index": PAIR[1]},
    "as_both": lambda: ((PAIR[0],), {"edge_index": PAIR[1]}),
}


@pytest.fixture(autouse=True)
def _filled(shelf):
    vars(shelf).update(SHELF)


def load(factory, data=None, inputs=None):
    return load_case(f"shelf:{factory}", data, inputs and f"shelf:{inputs}", root="data")


@pytest.mark.parametrize(
    ("factory", "sizes"),
    [
        ("Sized", (64, 4, 3)),
        ("half", (64, 4, 9)),
        ("sizeless", (1, 2, 3)),
        ("swallows", (1, 2, 0)),
        ("instance", (5, 6, 7)),
    ],
)
def test_a_factory_gets_the_sizes_of_the_graph_that_it_has_arguments_for(factory, sizes):
    assert load(factory).model.sizes == sizes


def test_without_a_graph_a_factory_keeps_its_defaults():
    assert load("Sized", inputs="as_tuple").model.sizes == (1, 2, 3)


def test_a_model_is_made_from_seed_zero():
    torch.manual_seed(5)
    first = load("Sized").model.weight
    assert torch.equal(first, load("Sized").model.weight)


def test_the_graph_is_given_as_features_and_edges_or_whole():
    graph = load_graph("sbm")
    x, edge_index = load("Sized", data="sbm").args
    assert torch.equal(x, graph.x)
    assert torch.equal(edge_index, graph.edge_index)
    (whole,) = load("OnData").args
    assert torch.equal(whole.y, graph.y)
    assert load("OnData").source == "sbm"


@pytest.fixture
def counts(monkeypatch):
    """A graph with counts of words, under any name."""
    graph = load_graph("sbm")
    graph.x = torch.arange(graph.num_nodes * 3).reshape(-1, 3) % 7.0
    monkeypatch.setattr(data, "load_graph", lambda name, root: graph.clone())
    return graph


@pytest.mark.parametrize(
    ("name", "transform", "divided", "source"),
    [
        ("Cora", None, True, "Cora, transform normalize-features"),
        ("PubMed", "none", False, "PubMed, transform none"),
        ("Texas", None, False, "Texas, transform none"),
        ("sbm", "normalize-features", True, "sbm, transform normalize-features"),
        ("sbm", "none", False, "sbm"),
    ],
)
def test_features_are_transformed_as_is_usual_for_a_graph_or_as_asked_for(counts, name, transform, divided, source):
    case = load_case("shelf:sizeless", name, None, root="data", transform=transform)
    expected = counts.x / counts.x.sum(1, keepdim=True) if divided else counts.x
    torch.testing.assert_close(case.args[0], expected)
    assert case.source == source


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "sbm", "transform": "rows"}, "--transform: expected normalize-features or none, got 'rows'"),
        ({"data": None, "transform": "none"}, "give --data, too"),
    ],
)
def test_a_transform_that_does_not_fit_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        load_case("shelf:sizeless", inputs=None, root="data", **options)


@pytest.mark.parametrize(
    ("function", "count", "names"),
    [
        ("as_tuple", 2, set()),
        ("as_list", 2, set()),
        ("as_dict", 0, {"x", "edge_index"}),
        ("as_both", 1, {"edge_index"}),
    ],
)
def test_inputs_may_have_three_forms(function, count, names):
    case = load("Sized", inputs=function)
    assert len(case.args) == count
    assert set(case.kwargs) == names
    assert [*case.args, *case.kwargs.values()][-1] is PAIR[-1]
    assert case.source == f"shelf:{function}"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("demanding", "shelf:demanding needs width"),
        ("failing", "shelf:failing raised RuntimeError: no more"),
        ("exiting", "shelf:exiting raised SystemExit: 1"),
        ("number", "to be an nn.Module or a function that returns one, got int"),
        ("makes_number", "expected shelf:makes_number to return an nn.Module, got int"),
    ],
)
def test_a_factory_that_fails_is_refused(factory, message):
    with pytest.raises(ModelError, match=message):
        load(factory)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("number", "expected shelf:number to be a function"),
        ("failing", "shelf:failing raised RuntimeError"),
        ("makes_number", "to return a tuple or list .*, got int"),
    ],
)
def test_inputs_that_fail_are_refused(function, message):
    with pytest.raises(InputError, match=message):
        load("Sized", inputs=function)


# --- targets ----------------------------------------------------------------------------------------------------------


def test_the_current_directory_is_importable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cupboard").mkdir()
    (tmp_path / "cupboard" / "box.py").write_text("class Lid:\n    color = 'red'")
    assert load_target("cupboard.box:Lid.color") == "red"


@pytest.mark.parametrize("target", ["", "math", ":pi", "math:", "math.pi"])
def test_another_form_is_refused(target):
    with pytest.raises(InputError, match=r"expected PACKAGE\.MODULE:NAME"):
        load_target(target)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", r"SystemExit: 3; what a script does .* belongs under if __name__"),
    ],
)
def test_a_module_that_fails_is_named_with_its_reason(tmp_path, monkeypatch, text, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing_module.py").write_text(text)
    with pytest.raises(InputError, match=reason) as raised:
        load_target("failing_module:anything")
    assert "'failing_module'" in str(raised.value)


@pytest.mark.parametrize(("target", "module"), [("box.py:Lid", "box:Lid"), ("shelf/box.py:Lid", "shelf.box:Lid")])
def test_a_file_is_answered_with_its_module(target, module):
    with pytest.raises(InputError, match=rf"names a file: give its module, {module}$"):
        load_target(target)
