"""Pickles read as data are what pickle itself makes of them, as long as they hold only data."""

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatdiag.checkpoint.formats.machine import Rules
from gatdiag.checkpoint.formats.pickled import read_pickle
from gatdiag.errors import InputError

integers = st.integers(-(2**63), 2**63 - 1)
keys = st.text() | integers | st.booleans() | st.none() | st.floats(allow_nan=False)
keys |= st.tuples(integers, st.text())
leaves = keys | st.integers(-(2**2000), 2**2000)
plain = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple), max_leaves=20
)


class Plain(Rules):
    def __init__(self, *protocols):
        self.protocols = protocols

    def allows(self, name):
        return name == "collections.OrderedDict"

    def call(self, function, arguments):
        return {"called": function, "with": arguments}

    def build(self, target, state):
        target["state"] = state

    def persistent(self, identifier):
        return {"persistent": identifier}


@given(plain)
def test_plain_data_in_protocol_2(value):
    data = pickle.dumps(value, 2)
    assert read_pickle(data, Plain(2)) == (pickle.loads(data), len(data))
    assert read_pickle(b"before" + data + b"after", Plain(2), 6) == (value, len(data) + 6)


@given(st.recursive(keys | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20))
def test_plain_data_in_protocol_4(value):
    assert read_pickle(memoryview(pickle.dumps(value, 4)), Plain(4))[0] == value


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    for start in (b"", b"\x80\x02"):
        with contextlib.suppress(InputError):
            read_pickle(start + data, Plain(2))


def test_calls_are_left_to_the_rules():
    from collections import OrderedDict

    value, _ = read_pickle(pickle.dumps(OrderedDict(a=1), 2), Plain(2))
    assert value == {"called": "collections.OrderedDict", "with": (), "a": 1}


def test_what_two_places_share_is_shared():
    shared = []
    value, _ = read_pickle(pickle.dumps([shared, shared], 2), Plain(2))
    assert value[0] is value[1]


def test_a_list_in_itself():
    loop = []
    loop.append(loop)
    value, _ = read_pickle(pickle.dumps(loop, 2), Plain(2))
    assert value[0] is value


@pytest.mark.parametrize("protocol", [0, 3, 4, 5])
def test_another_protocol_is_refused(protocol):
    with pytest.raises(InputError, match=f"protocol {protocol}|refuses"):
        read_pickle(pickle.dumps({"a": (1, 2)}, protocol), Plain(2))
