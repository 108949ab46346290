"""The store: a run on disk, its format, writing and reading it. No torch is needed for any of it.

    run = gatdiag.load("runs/gat10")        finished, killed, or still being recorded
    run.steps, run.layers, run.parameters, run.neurons          pandas DataFrames
    run.laws                                                    what each law is made of, and c of any weights

A run is a folder. Its format is a public interface, and this is its description (schema 2):

    meta.json                   what was recorded, of which model, how, and how it ended
    steps.parquet               the four tables once the run is sealed; pandas, Polars and DuckDB read them as they are
    layers.parquet
    parameters.parquet
    neurons.parquet
    initial.safetensors         the parameters by name at the start, right after the best step, and at the end
    best.safetensors
    final.safetensors
    steps.jsonl                 while it is recorded: the table `steps`, one JSON object a line
    TABLE.arrows                while it is recorded: each other table, an Arrow IPC stream
    .lock                       locked (by `filelock`) by the process that is recording; empty

Other names a run folder may hold for a moment or after an accident: .NAME.XXXXXXXX.part (not complete yet, of no use
after a kill) and NAME.damaged (a file that could not be read whole when the run was sealed or resumed).

Meta data
---------
meta.json is one JSON object in UTF-8, replaced as a whole, without NaN or infinity (null stands for them).

    schema              2. Readers refuse any other number; keys may be added without changing it
    sealed              true: the tables are the Parquet files; false: the streams. Files of the other kind do not count
    status              "recording" (also if the process was killed), "finished", "failed" (by an exception) or
                        "interrupted" (by Ctrl-C; or sealed after a kill)
    error               null, or type and message of the exception on one line
    created, ended      ISO 8601 in UTC, or null
    name                what the run is called
    model               class of the model
    device, dtype       of its parameters
    structure           {"order": "execution" or "module", "layers": [...]}, the recorded layers; each
                        {"index" (from 1), "name", "kind", "executed", "parameters": [...]}, each parameter
                        {"name", "names", "role", "shape", "trainable", "module"}
    laws                {"found": [{"name", "kind", "layer", "neuron", "count", "exact", "residual", "terms"}],
                        "excluded": [{"what", "reason"}], "error"}; each of `found` stands for `count` laws in a row,
                        as `gatdiag.run.laws` describes
    quantities          [{"name", "table", "label", "unit", "equation" (LaTeX), "paper", "high", "low"}] of the columns
    cadence             {"every", "budget", "metrics", "groups"}: which steps were sampled, and what at which of them
    optimizers          [{"class", "groups": [{"lr", ..., "parameters": [names]}], "from_step"}], in the order in which
                        they made their first step; those of one step that differ in their parameters alone are one
    versions            of gatdiag, python, torch, torch_geometric, numpy, and the platform
    first_non_finite    null, or {"step", "layer", "where", "parameter", "kind"} of the first NaN or infinity
    best                null, or {"name", "mode", "value", "step"} of best.safetensors
    signals             null, missing, or what was seen once or a few times: {"inputs": [{"name", "rows", "columns",
                        "non_finite", ...}], "output": {"criterion", "labels", ...}, "zero_inputs", "unreached",
                        "after_sigmoid", "foreign_leaves"}, each where it was seen
    notes               [text]: what could not be recorded, and why
    resumed_at          [step]: where it was resumed

Streams and Parquet files
-------------------------
The columns are the same in both, and names are dictionary columns, so that each row says what it is about. A stream is
only ever appended to, a batch with the rows of some steps (or a line a step) at a time; one that a kill cut off at its
end is ignored. In `steps.jsonl` null is left out, and NaN, Infinity and -Infinity are written so.

To seal a run is to write each table to Parquet, then `sealed` into meta.json, and then to delete the streams. To resume
one is the same backwards: the rows before the step at which it goes on are written into new streams. Since meta.json is
replaced as a whole, a kill at any instant of either neither loses nor doubles a row.

Tables
------
Measured values are float64: null where nothing was measured, NaN where the result is undefined. (pandas shows both as
NaN; `Run.arrow` and the Parquet files keep them apart.) A row of step t, counted from 0, belongs to the parameters
before the t-th optimizer step and to the gradients that step used. Changes are against the initial weights, relative to
the present weight, of which only those of at least 1e-4 in size count; for attention vectors, what counts as changed is
absolute, and all entries count. X is the output of a layer, one row a node, W a parameter, L the loss; units in
brackets say which of them a value scales like.

"""

from gatdiag.run.laws import RecordedLaws
from gatdiag.run.reader import Run, export, load
from gatdiag.run.tables import SCHEMA_VERSION, describe
from gatdiag.run.writer import Store, seal

__all__ = ["SCHEMA_VERSION", "RecordedLaws", "Run", "Store", "export", "load", "seal"]

__doc__ = f"{__doc__ or ''}{describe()}"  # the columns stand in gatdiag.quantities alone
