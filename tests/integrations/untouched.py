"""What a training leaves behind, to compare one that is recorded with the same one that is not."""

import random

import numpy as np
import torch


def seed():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)


def remains(model, *more):
    """Weights, buffers, random states, and whatever else is given."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return state, torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate(), more  # noqa: NPY002


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(value, other[0][name]) for name, value in one[0].items())
    assert one[1:] == other[1:]
