from gatdiag.recorder.groups import GROUPS
from gatdiag.recorder.quantities import described
from gatdiag.run.schema import TABLES


def test_relative_changes_say_which_weights_count():
    entries = {entry["name"]: entry for entry in described({column for g in GROUPS.values() for column in g.columns})}
    columns = {column.name: column for column in TABLES["parameters"].columns}
    names = [name for name in columns if name.startswith(("relative_change_q", "changed_fraction_"))]
    assert len(names) == 9
    for name in names:
        assert "1e-4" in entries[name]["label"]
        assert "10^{-4}" in entries[name]["equation"]
        assert "1e-4" in columns[name].meaning
