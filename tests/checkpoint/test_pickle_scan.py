"""A scan goes through any pickle as pickle itself does, and stops where hashing would not end."""

import contextlib
import io
import pickle
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatdiag.checkpoint.torch_file import refusal, scan
from gatdiag.errors import InputError

keys = st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none() | st.floats(allow_nan=False)
keys |= st.tuples(st.integers(), st.text())
plain = st.recursive(
    keys | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)


def scanned(data):
    return scan(io.BytesIO(data), len(data))


@given(plain, st.integers(0, 5))
def test_plain_data_of_every_protocol(value, protocol):
    data = pickle.dumps(value, protocol)
    file = io.BytesIO(data + b"after")
    assert set(scan(file, len(data))) <= {"_codecs.encode", "__builtin__.bytes"}  # protocols before 3 write bytes with
    assert file.read() == b"after"


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    for start in (b"", b"\x80\x02"):
        with contextlib.suppress(InputError):
            scanned(start + data)


def test_names_are_listed_once_and_in_order():
    value = [OrderedDict(a=1), print, OrderedDict(), {1, 2}]
    assert scanned(pickle.dumps(value, 2)) == ["collections.OrderedDict", "__builtin__.print", "__builtin__.set"]


def test_a_refusal_lists_five():
    assert "'a', 'b', 'c', 'd', 'e' and 1 more" in str(refusal("abcdef"))
    assert "and" not in str(refusal(["os.system"])).split(",")[0]


def nested(depth, protocol):
    value = ()
    for _ in range(depth):
        value = (value, value)
    return pickle.dumps({value: 1} if depth < 15 else [value], protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tuples_of_the_same_tuples(protocol):
    scanned(nested(10, protocol))
    with pytest.raises(InputError, match="over and over"):
        scanned(nested(60, protocol))


@pytest.mark.parametrize("protocol", [2, 4])
def test_numbers_that_collide_as_keys(protocol):
    scanned(pickle.dumps([2**100 + i for i in range(900)], protocol))  # the states of random generators have a few
    with pytest.raises(InputError, match="collide"):
        scanned(pickle.dumps({(2**61 - 1) * (2**50 + i): i for i in range(1500)}, protocol))
