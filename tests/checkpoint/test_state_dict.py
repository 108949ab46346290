"""What wrappers put into the names of parameters is taken out, and nothing else."""

import pytest
import torch
from torch.nn.parallel import DataParallel

from gatdiag.checkpoint.state_dict import clean_names
from tests.checkpoint.saved import GAT

KEYS = list(GAT().state_dict())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda key: f"module.{key}",
        lambda key: f"_orig_mod.{key}",
        lambda key: f"module._orig_mod.{key}",
        lambda key: f"_orig_mod.module.{key}",
        lambda key: f"module.module.{key}",
        lambda key: key.replace("convs.0.", "convs.0._checkpoint_wrapped_module."),
        lambda key: f"_fsdp_wrapped_module.{key}".replace("convs.1.", "convs.1._fsdp_wrapped_module._orig_mod."),
    ],
)
def test_prefixes_of_wrappers(wrap):
    names, taken = clean_names(map(wrap, KEYS))
    assert names == {key: wrap(key) for key in KEYS}
    assert taken


def test_prefixes_of_real_wrappers():
    model = GAT()
    compiled = torch.compile(model, backend="eager")
    for wrapped in (DataParallel(model), compiled, DataParallel(compiled)):
        assert list(clean_names(wrapped.state_dict())[0]) == KEYS


def test_a_prefix_that_some_lack_stays():
    assert clean_names(["module.a", "b"])[0] == {"module.a": "module.a", "b": "b"}
    assert clean_names(["model.a", "loss"], modules=("model",))[1] == ()


def test_a_models_own_module_stays():
    assert clean_names(["model.a", "model.b"])[0] == {"model.a": "model.a", "model.b": "model.b"}
    assert clean_names(["module", "module.a"])[0] == {"module": "module", "module.a": "module.a"}


def test_names_that_would_collide_stay():
    keys = ["lin._orig_mod.weight", "lin.weight"]
    assert clean_names(keys) == ({key: key for key in keys}, ())


def test_lone_surrogates_are_escaped():
    keys = ["module.lin\udc80.weight", "module.lin.weight"]
    names = {"lin\\udc80.weight": keys[0], "lin.weight": keys[1]}
    assert clean_names(keys) == (names, ("module.",))
