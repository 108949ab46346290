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
    TABLE.N.arrows              while it is recorded: segment N = 0, 1, ... of a table, an Arrow IPC stream
    .lock                       locked (flock) by the process that is recording; empty

Other names a run folder may hold for a moment or after an accident: .NAME.XXXXXXXX.part (not complete yet, of no use
after a kill) and TABLE.parquet.damaged (a table that could not be read when the run was sealed again).

Meta data
---------
meta.json is one JSON object in UTF-8, replaced as a whole, without NaN or infinity (null stands for them).

    schema              2. Readers refuse any other number; keys may be added without changing it
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
    notes               [text]: what could not be recorded, and why
    resumed_at          [step]: where it was resumed; rows of this and later steps in earlier segments count no more
    segment_starts      for each entry of resumed_at, {table: number of the first segment written afterwards}

Streams and Parquet files
-------------------------
A stream is only ever appended to, by whole record batches, at most a second apart. A batch that was cut off by a kill
is ignored. A new segment begins when a table gets a new column, when the run is resumed, and after a failed write. A
reader takes the segments in order and leaves superseded rows out. Streams hold positions in place of names: `layer` and
`parameter` (int32) count the layers, and the parameters of all layers, of `structure`; `law` counts the laws of
`laws.found`.

Sealing writes each table to Parquet, with names as dictionary columns in place of positions, and then deletes the
streams. The Parquet file's metadata says which segments it takes the place of (`gatdiag.segments`: those below this
number), so that a kill at any instant of sealing neither loses nor doubles a row.

Tables
------
Measured values are float64: null where nothing was measured, NaN where the result is undefined. (pandas shows both as
NaN; `Run.arrow` and the Parquet files keep them apart.) A row of step t, counted from 0, belongs to the parameters
before the t-th optimizer step and to the gradients that step used. Changes are against the initial weights, relative to
the present weight, of which only those of at least 1e-4 in size count; for attention vectors, what counts as changed is
absolute, and all entries count. X is the output of a layer, one row a node, W a parameter, L the loss; units in
brackets say which of them a value scales like.

"""

from gatdiag.run.exports import export
from gatdiag.run.laws import RecordedLaws
from gatdiag.run.run import Run, load
from gatdiag.run.schema import SCHEMA_VERSION, describe
from gatdiag.run.sealing import seal
from gatdiag.run.store import Store

__all__ = ["SCHEMA_VERSION", "RecordedLaws", "Run", "Store", "export", "load", "seal"]

__doc__ = f"{__doc__ or ''}{describe()}"  # the columns stand in schema.py alone
