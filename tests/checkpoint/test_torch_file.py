"""Files made to run something, to fill the memory or to take for ever are refused, and nothing of it happens."""

import contextlib
import io
import pickle
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.checkpoint import open_checkpoint, torch_file
from gatdiag.checkpoint.torch_file import scan_pickle
from gatdiag.errors import InputError
from tests.checkpoint.assembly import archive, call, legacy, mapping, name, program, storage, tensor, value
from tests.checkpoint.mutating import started

TRILLION = 10**12
TENSOR, REBUILD = "torch._tensor.", "torch._utils._rebuild"


def refusal(path, content=None):
    """The error of opening a file, or a folder for whose model.pt there are bytes."""
    if content is not None:
        path /= "model.pt"
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    assert str(caught.value).isprintable()
    assert str(path) in str(caught.value)
    assert "weights_only=False" not in str(caught.value)
    assert "safe_globals" not in str(caught.value)
    return str(caught.value)


def payloads(marker):
    touch = f"touch {marker}"
    python = f"open({str(marker)!r}, 'w').close()"
    return {
        "os.system": call("os.system", touch),
        "subprocess.getoutput": call("subprocess.getoutput", touch),
        "builtins.eval": call("builtins.eval", python),
        "__builtin__.eval": call("__builtin__.eval", python),
        "importlib.import_module": call("importlib.import_module", "antigravity"),
        "builtins.getattr": call("builtins.getattr", name("os"), "system"),
        "torch.load": call("torch.load", str(marker)),
        "builtins.open": call("builtins.open", str(marker), "w"),
        "torch.nn.modules.linear.Linear": call("torch.nn.modules.linear.Linear", 3, 3),
    }


KINDS = list(payloads(""))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [archive, legacy], ids=["zip", "legacy"])
def test_code_is_named_and_never_run(tmp_path, kind, write):
    marker = tmp_path / "ran"
    assert f"imports '{kind}'" in refusal(tmp_path, write(mapping({"weight": payloads(marker)[kind]})))
    assert not marker.exists()


def test_the_payloads_run_where_nothing_guards(tmp_path):
    marker = tmp_path / "ran"
    for kind in ("os.system", "builtins.eval", "builtins.open", "subprocess.getoutput"):
        made = pickle.loads(program(payloads(marker)[kind]))
        getattr(made, "close", int)()
        assert marker.exists()
        marker.unlink()


def test_metadata_of_a_distributed_checkpoint_is_never_run(tmp_path):
    marker = tmp_path / "ran"
    for kind, body in payloads(marker).items():
        (tmp_path / ".metadata").write_bytes(program(body))
        assert f"imports '{kind}'" in refusal(tmp_path)
    modern = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t for t in (b"os", b"system")) + b"\x93."
    (tmp_path / ".metadata").write_bytes(modern)
    assert "imports 'os.system'" in refusal(tmp_path)
    assert not marker.exists()


def test_all_that_is_asked_for_is_named(tmp_path):
    text = refusal(tmp_path, archive(mapping({f"{i}": name(f"mine.Class{i}") for i in range(7)})))
    assert "'mine.Class0', 'mine.Class1', 'mine.Class2', 'mine.Class3', 'mine.Class4' and 2 more" in text


MATRIX = tensor(storage(4), (2, 2), (2, 1))
GOOD = mapping({"weight": MATRIX})


def deep(levels, instruction):
    return b")" + instruction * levels


ENDLESS = "a number of instructions without end"
CLAIMS = {
    "a terabyte of bytes": (call("builtins.bytearray", TRILLION), "imports 'builtins.bytearray'"),
    "a tensor class": (call("torch.FloatTensor", TRILLION), "imports 'torch.FloatTensor'"),
    "a class of storages": (call("torch.FloatStorage", TRILLION), ""),
    "a storage": (tensor(storage(TRILLION), (2, 2), (2, 1)), ""),
    "a storage that is not there": (tensor(storage(4, "1"), (2, 2), (2, 1)), ""),
    "a shape": (tensor(storage(4), (TRILLION, 2), (2, 1)), ""),
    "an offset": (tensor(storage(4), (2, 2), (2, 1), TRILLION), ""),
    "a negative stride": (tensor(storage(4), (2, 2), (-2, 1)), ""),
    "no stride at all": (tensor(storage(4), (TRILLION,), (0,)), ""),
    "an overflowing shape": (tensor(storage(4), (2**62, 2**62), (0, 0)), ""),
    "too many axes": (tensor(storage(4), (1,) * 70, (1,) * 70), ""),
    "fewer strides than axes": (tensor(storage(4), (2, 2), (1,)), ""),
    "a call hidden in a tensor's class": (
        call(f"{TENSOR}_rebuild_from_type_v2", name("builtins.bytearray"), name("torch.Tensor"), (TRILLION,), None),
        "imports 'builtins.bytearray'",
    ),
    "an attribute that is a method": (
        call("torch._utils._rebuild_parameter_with_state", MATRIX, True, call("collections.OrderedDict"), {"numel": 1}),
        "",
    ),
    "hooks": (
        call("torch._utils._rebuild_parameter", MATRIX, True, mapping({"0": name("builtins.bytearray")})),
        "imports 'builtins.bytearray'",
    ),
    "a key whose hash never ends": (b"}" + deep(60, b"q\0h\0\x86") + b"Ns", "over and over"),
    "a key whose hash overflows the stack": (b"}" + deep(100_000, b"\x85") + b"Ns", "over and over"),
    "elements that never end": (call("builtins.set", b"](" + deep(60, b"q\0h\0\x86") + b"e"), "over and over"),
    "keys that all collide": (b"}" + value((2**61 - 1) * 9) + b"Ns", ""),
    "copies of copies": (
        b"](" + b"NN\x86" * 2000 + b"eq\0" + (name("collections.OrderedDict") + b"h\0\x85R") * 99,
        "",
    ),
    "views of views": (
        storage(4) + b"q\0" + b"".join(tensor(b"h\0", (2**18,), (0,)) for _ in range(9)),
        "",
    ),
    "a text longer than the file": (b"X" + (2**31).to_bytes(4, "little") + b"a", ""),
    ENDLESS: (b"N" * 5_000_001, "longer than 5,000,000 instructions"),
    "a long number": (b"\x8b" + (2**31 - 1).to_bytes(4, "little"), ""),
    "a distant place of the memo": (b"Nr\xff\xff\xff\xff" + b"a", ""),
    "a quantized tensor": (
        call(f"{REBUILD}_qtensor", storage(TRILLION, kind="torch.QInt8Storage"), 0, (1,), (1,), (), False, None),
        "",
    ),
    "another class of tensors": (call(f"{REBUILD}_wrapper_subclass", 1), f"imports '{REBUILD}_wrapper_subclass'"),
}


def test_what_a_file_claims_never_fills_memory_or_hangs(tmp_path):
    """Each claim under `weight`, opened and computed with where memory is limited: refused, or harmless."""
    for number, (claim, (body, _)) in enumerate(CLAIMS.items()):
        for write in (archive, legacy) if claim != ENDLESS else ():  # which takes seconds
            (tmp_path / f"{number:02} {write.__name__}").write_bytes(write(mapping({"weight": body})))
    files = sorted(path.name for path in tmp_path.iterdir())
    read = {name for name, outcome in zip(files, started(tmp_path), strict=True) if outcome == "read"}
    harmless = {"a storage", "too many axes", "an attribute that is a method"}
    assert {list(CLAIMS)[int(name.partition(" ")[0])] for name in read} <= harmless


@pytest.mark.parametrize("claim", [name for name, (_, reason) in CLAIMS.items() if reason])
@pytest.mark.parametrize("write", [archive, legacy], ids=["zip", "legacy"])
def test_what_would_never_end_is_refused_before_it_is_loaded(tmp_path, claim, write, monkeypatch):
    body, reason = CLAIMS[claim]
    if claim == ENDLESS:
        monkeypatch.setattr(torch_file, "_MAX_INSTRUCTIONS", 5_000)
        body, reason = body[:5_001], "longer than 5,000 instructions"
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("loaded"))
    assert reason in refusal(tmp_path, write(body))


def test_the_assembler_writes_what_torch_reads(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(archive(GOOD, {"0": torch.arange(4.0).numpy().tobytes()}))
    assert torch.equal(open_checkpoint(path).tensors["weight"], torch.arange(4.0).reshape(2, 2))
    assert torch.equal(torch.load(path, weights_only=True)["weight"], torch.arange(4.0).reshape(2, 2))


def test_names_with_escapes_are_kept_in_the_data_and_shown_escaped(tmp_path):
    path = tmp_path / "model.pt"
    nasty = "lin\x1b[2J\n<script>alert(1)</script>\u202e.weight"
    torch.save({nasty: torch.ones(1)}, path)
    assert list(open_checkpoint(path).tensors) == [nasty]
    torch.save({nasty: 1}, path)
    assert "\\x1b[2J\\n<script>" in refusal(path)


# --- archives that torch.save did not write ------------------------------------------------------------


def test_a_zip_bomb_is_refused(tmp_path):
    body = mapping({"a": tensor(storage(2**24), (2**24,), (1,))})
    bomb = archive(body, {"0": bytes(2**26)}, compression=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 2**20
    assert "compressed" in refusal(tmp_path, bomb)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_record_that_is_there_twice_and_a_comment(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(archive(GOOD))
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"PK"
    assert "without a comment" in refusal(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/data/0", bytes(16))
    assert "two records of the same name" in refusal(path)


@pytest.mark.parametrize(
    ("place", "new", "reason"),
    [
        (8, b"\1", "damaged"),
        (10, b"\x08", "compressed"),
        (24, b"\xff\xff", "compressed"),
        (20, b"\xff\xff\0\0\xff\xff", "beyond the file"),
        (42, b"\xff\xff", "damaged"),
        (42, b"\0\0", "differ"),
    ],
)
def test_a_directory_with_other_places(tmp_path, place, new, reason):
    assert reason in refusal(tmp_path, directory_changed(archive(GOOD), "archive/data/0", place, new))


def test_records_over_one_another(tmp_path):
    data = bytearray(archive(GOOD, {"0": bytes(200), "1": bytes(16)}))
    second = data.index(b"archive/data/1") - 30
    header = data[second : data.index(b"archive/data/1") + 14]
    inside = data.index(b"archive/data/0") + 14 + 8
    data[inside : inside + len(header)] = header
    data = directory_changed(bytes(data), "archive/data/1", 42, inside.to_bytes(4, "little"))
    assert "'archive/data/0' overlaps another" in refusal(tmp_path, data)


def directory_changed(data, record, place, new):
    """Other bytes at a place of a record's entry in the directory, which begins 46 bytes before its name."""
    entry = data.index(record.encode(), data.index(b"PK\1\2")) - 46
    return data[: entry + place] + new + data[entry + place + len(new) :]


# --- the scan of a pickle ------------------------------------------------------------

keys = st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none() | st.floats(allow_nan=False)
keys |= st.tuples(st.integers(), st.text())
plain = st.recursive(
    keys | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)


def scanned(data):
    return scan_pickle(io.BytesIO(data), len(data))


@settings(deadline=None)
@given(plain, st.integers(0, 5))
def test_plain_data_of_every_protocol(value, protocol):
    data = pickle.dumps(value, protocol)
    file = io.BytesIO(data + b"after")
    assert set(scan_pickle(file, len(data))) <= {
        "_codecs.encode",
        "__builtin__.bytes",
    }  # protocols before 3 write bytes with
    assert file.read() == b"after"


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    for start in (b"", b"\x80\x02"):
        with contextlib.suppress(InputError):
            scanned(start + data)


def nested(depth, protocol):
    value = ()
    for _ in range(depth):
        value = (value, value)
    return pickle.dumps({value: 1} if depth < 15 else [value], protocol)


@pytest.mark.parametrize("protocol", [2, 4])
def test_tuples_of_the_same_tuples(protocol):
    scanned(nested(10, protocol))
    with pytest.raises(InputError, match="over and over"):
        scanned(nested(60, protocol))


@pytest.mark.parametrize("protocol", [2, 4])
def test_numbers_that_collide_as_keys(protocol):
    scanned(pickle.dumps([2**100 + i for i in range(900)], protocol))  # the states of random generators have a few
    with pytest.raises(InputError, match="collide"):
        scanned(pickle.dumps({(2**61 - 1) * (2**50 + i): i for i in range(1500)}, protocol))
