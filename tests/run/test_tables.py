import re
from pathlib import Path

import pyarrow as pa
import pytest

import gatdiag.run
from gatdiag.quantities import QUANTITIES, STORED
from gatdiag.run import meta, tables

# As agreed with everyone who records or reads a run; written out here a second time on purpose: none of these may go or
# change its place. Further ones may come.
AGREED = {
    "steps": "time gradient_norm gradient_norm_before_clipping learning_rate overshoot stale_gradient",
    "layers": "output_norm mu relative_mu dead_fraction non_finite output_gradient_norm gradient_mu "
    "relative_gradient_mu gradient_dead_fraction gradient_non_finite attention_entropy relative_attention_entropy "
    "attention_peak dirichlet_energy rayleigh_quotient gradient_dirichlet_energy gradient_rayleigh_quotient mad "
    "gradient_mad effective_rank numerical_rank gradient_effective_rank gradient_numerical_rank",
    "parameters": "norm gradient_norm relative_gradient_norm update_ratio unchanged_fraction changed_fraction_005 "
    "changed_fraction_050 significant_fraction non_finite gradient_non_finite "
    "relative_change_q0 relative_change_q5 relative_change_q25 "
    "relative_change_q50 relative_change_q75 relative_change_q95 relative_change_q100 absolute_change_q0 "
    "absolute_change_q5 absolute_change_q25 absolute_change_q50 absolute_change_q75 absolute_change_q95 "
    "absolute_change_q100 spectral_norm",
    "neurons": "delta c predicted_c",
}
KEYS = {"steps": "", "layers": "layer", "parameters": "layer parameter role", "neurons": "layer neuron law"}


@pytest.mark.parametrize("name", AGREED)
def test_the_columns_are_those_agreed(name):
    schema = tables.schema(name)
    keys, agreed = ["step", *KEYS[name].split()], AGREED[name].split()
    assert schema.names[: len(keys)] == keys
    assert [column for column in schema.names[len(keys) :] if column in agreed] == agreed
    assert schema.field("step").type == pa.int64()
    assert {schema.field(column).type for column in schema.names[len(keys) :]} == {pa.float64()}


@pytest.mark.parametrize(
    ("column", "logged"),
    [("loss", True), ("learning_rate", False), ("learning_rate_12", False), ("learning_rate_x", True), ("step", False)],
)
def test_what_the_user_logged_is_told_apart(column, logged):
    assert tables.is_logged(column) is logged


def test_the_documentation_has_every_column_key_and_file():
    text = gatdiag.run.__doc__
    for column in (*QUANTITIES, *STORED):
        unit = re.escape(f" [{column.unit}]") if column.unit else ""
        assert re.search(rf"^    {column.name}{unit}: \w", text, re.MULTILINE), column.name
    for name in [*" ".join(KEYS.values()).split(), *meta.new(Path(), {})]:
        assert re.search(rf"^    .*\b{name}\b", text, re.MULTILINE), name
    for name in ("meta.json", "steps.parquet", "best.safetensors", ".lock", "TABLE.arrows", "steps.jsonl"):
        assert name in text
