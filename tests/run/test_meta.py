import json
import os

import pytest

from gatdiag.errors import InputError
from gatdiag.run import Store, load
from tests.run.recorded import META


@pytest.fixture
def folder(tmp_path):
    Store.create(tmp_path / "run", META).seal("finished")
    return tmp_path / "run"


def replaced(folder, path, value):
    """Replace the value at this path of keys in meta.json; `...` deletes it."""
    contents = json.loads((folder / "meta.json").read_text())
    *outer, last = path
    place = contents
    for key in outer:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    (folder / "meta.json").write_text(json.dumps(contents))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["structure", "layers"], "convs", "\"structure.layers\" should be a list, got 'convs'"),
        (["structure", "layers"], {"0": 1}, '"structure.layers" should be a list, got an object of length 1'),
        (["structure", "layers", 0], 3, '"structure.layers.0" should be an object, got 3'),
        (["structure", "layers", 0, "name"], None, '"structure.layers.0.name" should be text, got None'),
        (["structure", "layers", 0, "parameters"], ..., '"structure.layers.0.parameters" is missing'),
        (["structure", "layers", 0, "parameters", 0, "shape"], ..., 'parameters.0.shape" is missing'),
        (
            ["structure", "layers", 0, "parameters", 0, "shape", 0],
            "2",
            "should be an integer from 0 to .*, got '2'",
        ),
        (["structure", "layers", 1, "name"], "second", "the layer 'second' is in the structure 2 times"),
        (
            ["structure", "layers", 1, "parameters", 0, "name"],
            "second.w",
            "the parameter 'second.w' is in the structure",
        ),
        (["structure", "layers", 1, "name"], "\ud800", r"the layer name '\\ud800' is not valid Unicode"),
        (["structure"], [], '"structure" should be an object, got a list of length 0'),
        (["laws", "found", 0, "neuron"], 10**30, "from 0 to 2147483647 or null, got a number of more than 20 digits"),
        (["laws", "found", 0, "neuron"], -1, "from 0 to 2147483647 or null, got -1"),
        (["laws", "found", 0, "neuron"], 1.0, "should be an integer from 0 to 2147483647 or null, got 1.0"),
        (["laws", "found", 0, "neuron"], True, "should be an integer .* or null, got True"),
        (["laws"], ..., '"laws" is missing'),
        (["status"], "done", "\"status\" should be recording or finished or failed or interrupted, got 'done'"),
        (["laws", "found", 0, "count"], 0, "should be an integer from 1 to 16777216, got 0"),
        (["laws", "found", 0, "count"], 10**9, "from 1 to 16777216, got 1000000000"),
        (["laws", "found", 0, "count"], "3", '"laws.found.0.count" should be an integer'),
        (["schema"], "2", 'expected an object with "schema": 2'),
        (["schema"], True, 'expected an object with "schema": 2'),
        (["schema"], 1, "has schema 1, but this gatdiag reads schema 2.*by an earlier gatdiag: record it again"),
        (["schema"], 3, "has schema 3, but this gatdiag reads schema 2.*upgrade"),
        (["schema"], 10**40, "has schema a number of more than 20 digits, but this gatdiag reads schema 2"),
        (["resumed_at"], [-3], '"resumed_at.0" should be an integer from 0 to .*, got -3'),
        (["laws", "found"], [{"layer": None, "neuron": None, "count": 2**23 + 1}] * 2, "at most 16777216 laws"),
        (["laws", "found"], [{"layer": None, "neuron": 2**31 - 1, "count": 2}], "from 0 to 2147483647"),
        (["laws", "found", 0, "residual"], 3, '"laws.found.0.residual" should be a list or null, got 3'),
        (["laws", "excluded"], [{"what": "an operation"}], '"laws.excluded.0.reason" is missing'),
        (["optimizers"], [{"class": "SGD"}], '"optimizers.0.groups" is missing'),
        (["optimizers"], [{"class": "SGD", "groups": [3]}], '"optimizers.0.groups.0" should be an object, got 3'),
        (["optimizers"], [{"class": "SGD", "groups": [{"weight_decay": "x"}]}], "should be a number or true or false"),
        (["cadence", "groups"], {"ranks": "often"}, '"cadence.groups.ranks" should be an integer or null'),
        (["cadence", "budget"], "5 %", '"cadence.budget" should be a number or null'),
        (["best"], {"name": "loss", "mode": "least", "step": 3}, '"best.mode" should be min or max, got'),
        (["first_non_finite"], {"step": 3}, '"first_non_finite.layer" is missing'),
        (["sealed"], 1, '"sealed" should be true or false, got 1'),
        (["notes"], [1], '"notes.0" should be text, got 1'),
        (["structure", "layers", 0, "index"], {}, '"structure.layers.0.index" should be an integer'),
        (["signals"], {"inputs": "x"}, "\"signals.inputs\" should be a list, got 'x'"),
        (["signals"], {"zero_inputs": {"a": {"first": 0.0, "since": None}}}, '"signals.zero_inputs.a.last" is missing'),
        (["signals"], {"output": {"labels": ["cat"]}}, '"signals.output.labels.0" should be an integer'),
        (["quantities"], [{}], '"quantities.0.name" is missing'),
        (["name"], "x" * 10**6 and 5, '"name" should be text, got 5'),
    ],
)
def test_meta_data_of_a_wrong_shape_are_refused_with_the_place(folder, path, value, message):
    replaced(folder, path, value)
    with pytest.raises(InputError, match=message):
        load(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"schema": 1',
        "nonsense",
        "[" * 10**6,
        '{"a":' * 10**5,
        '{"schema": NaN}',
        '{"schema": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_json_is_refused_with_what_it_means(folder, text):
    (folder / "meta.json").write_text(text)
    with pytest.raises(InputError, match=r"meta.json is damaged.*restore it from a copy"):
        load(folder)


def test_bytes_that_are_no_text_are_refused(folder):
    (folder / "meta.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="is damaged"):
        load(folder)


def test_a_huge_file_is_not_read(folder):
    os.truncate(folder / "meta.json", 2**30)
    with pytest.raises(InputError, match="larger than"):
        load(folder)


def test_what_is_no_run_is_said_in_words(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"is a file; pass the folder that holds meta.json"):
        load(tmp_path / "file")
    with pytest.raises(InputError, match=r"it has no meta.json. Pass one that gatdiag recorded"):
        load(tmp_path)
    (tmp_path / "meta.json").mkdir()
    with pytest.raises(InputError, match=r"it has no meta.json"):
        load(tmp_path)


def test_runs_inside_a_folder_that_is_none_are_named(folder):
    with pytest.raises(InputError) as raised:
        load(folder.parent)
    assert str(raised.value).endswith(f"Did you mean a folder inside it: {folder}?")
