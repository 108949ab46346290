"""Runs on disk: their format, writing and reading. None of it needs torch.

    run = gatdiag.load("runs/gat10")        finished, killed, or still being recorded
    run.steps, run.layers, run.parameters, run.neurons          pandas DataFrames
    run.laws                                                    the terms of each law, and c of any weights

A run is a folder. Its format is a public interface, described here (schema 2):

    meta.json                   what was recorded, of which model, how, and how it ended
    steps.parquet               the four tables once the run is sealed; pandas, Polars and DuckDB can read them
    layers.parquet
    parameters.parquet
    neurons.parquet
    initial.safetensors         the parameters by name at the start, after the best step, and at the end
    best.safetensors
    final.safetensors
    steps.jsonl                 while it is recorded: the table `steps`, one JSON object per line
    TABLE.arrows                while it is recorded: each other table, an Arrow IPC stream
    .lock                       locked (by `filelock`) by the process that is recording; empty

A run folder may also hold .gatdiag.XXXXXXXX.part (being written, or of no use after a kill).

Metadata
--------
meta.json is one JSON object in UTF-8 that is replaced atomically. It has null for NaN and infinity.

    schema              2. Readers refuse any other number; keys may be added without changing it
    sealed              true: the tables are the Parquet files; false: the streams. Files of the other kind are ignored
    status              "recording" (also if the process was killed), "finished", "failed" (by an exception) or
                        "interrupted" (by Ctrl-C; or sealed after a kill)
    error               null, or type and message of the exception on one line
    created, ended      ISO 8601 in UTC, or null
    name                name of the run
    model               class of the model
    device, dtype       of its parameters
    structure           {"order": "execution" or "module", "layers": [...]}, the recorded layers; each
                        {"index" (from 1), "name", "kind", "executed", "parameters": [...]}, each parameter
                        {"name", "names", "role", "shape", "trainable", "module"}
    laws                {"found": [{"name", "kind", "layer", "neuron", "count", "exact", "residual", "terms"}],
                        "excluded": [{"what", "reason"}], "error",
                        "violated": [{"law", "step"}]}; each entry of `found` stands for `count` consecutive laws, as
                        `gatdiag.run.laws` describes; gradients violate the law at a position from a step on
    quantities          [{"name", "table", "label", "unit", "equation", "paper", "high", "low"}] of the columns
    cadence             {"every", "budget", "metrics", "groups"}: which steps were recorded, and what at which of them
    optimizers          [{"class", "groups": [{"lr", ..., "parameters": [names]}], "from_step"}], in the order of their
                        first steps; those of the same step that differ in their parameters only are one entry
    versions            of gatdiag, python, torch, torch_geometric, numpy, and the platform
    first_non_finite    null, or {"step", "layer", "where", "parameter", "kind"} of the first NaN or infinity
    best                null, or {"name", "mode", "value", "step"} of best.safetensors
    signals             null, missing, or what was observed once or a few times: {"inputs": [{"name", "rows",
                        "columns", "non_finite", ...}], "arguments" and "keywords" (names of what the model is called
                        with), "output": {"criterion", "labels", ...}, "zero_inputs",
                        "given" (sizes of the data that the first weights get), "embedded" (ids that layers embed),
                        "edges", "unreached", "after_sigmoid", "foreign_leaves", "evaluation_from" (the step since which
                        the model is trained in evaluation mode, or null), "batch_norms" {module: batches of its
                        running statistics at the start}, "copied_statistics" (those that are of none),
                        "dropout" {attribute: rate}, "has_scaled_loss" (by a gradient
                        scaler), "is_linear_chain" (no activation between layers), "edge_weights", "messages" (labeled
                        nodes, and those of them that an edge reaches),
                        "loss_graph" and "broken_loss" (operations from the loss to the output, at the first records and
                        at the first NaN), "slope_end", "plain_tensors", "loop", "input_sizes" (and rows, by step),
                        "graphs" (nodes of a batch of graphs, and how many its edges need), "batch_labels",
                        "class_weights", "normalization" (rows of batch norms, and how far running statistics are from
                        those of batches), "evaluation" (calls without gradients), "hops", "rows" and
                        "has_several_kinds" (of layers), "propagations" (sums over neighbors that the model makes
                        without a layer for it), "attention_peaks" {module: share of rows}, "repeats" {layer: how its
                        output grows where it runs many times in a pass},
                        "compares_outputs" (with each other, by the loss), "has_other_outputs" (the loss depends on what
                        the model returns beside its output, if it has as many columns), "loss_weights" (matrices of
                        another network between output and loss), "is_critic" (it is given data, and what another
                        network computes with weights), "relations" (kinds of edges that a layer has
                        weights for, and those that there are), "recurrence" (gradient of the first over that of the
                        last of many runs of a layer in a pass), "batch_axes" (of layers over sequences), "latents"
                        (size of what the model returns beside its output), "input_orders" (rows that came again, and
                        those in another order), "repeated_examples" (pairs of targets of the same inputs, and how far
                        they agree), "cached_edges" (of layers that keep those of their first call),
                        "dropped" {module: rate of dropout}, "softmax_along_rows" {module: shape}, "attention_ahead"
                        {module: length of sequences in which it reads what comes later}, "data_hops" (products of
                        the data with a matrix of edges, and effective ranks before and behind)}, of which any may be
                        missing
    notes               [text]: what could not be recorded, and why
    resumed_at          [step]: the steps at which it was resumed

Streams and Parquet files
-------------------------
Both have the same columns; names are dictionary columns, so that each row is complete in itself. A stream is only
appended to: one batch with the rows of some steps (in `steps.jsonl` one line per step) at a time. Readers stop at an
incomplete one, as a kill leaves it at the end. `steps.jsonl` omits null, and holds NaN, Infinity and -Infinity as such.

To seal a run, each table is written to Parquet, `sealed` is set in meta.json, and the streams are deleted. To resume
it, the rows before the step at which it continues are written to new streams, `sealed` is reset in meta.json, and the
Parquet files are deleted. meta.json is replaced atomically, so a kill at any instant neither loses nor duplicates rows.

Tables
------
Measured values are float64: null where nothing was measured, NaN where the result is undefined. (pandas shows both as
NaN; `Run.arrow` and the Parquet files distinguish them.) A row of step t, counted from 0, is about the parameters
before optimizer step t and the gradients that this step used. Changes are those since the initial weights, relative to
the current weights, of weights of at least 1e-4; for attention vectors, absolute changes of all entries. X is the
output of a layer with one row per node, W a parameter, L the loss; a value scales with the unit in brackets. In a run
made of saved checkpoints, a row of step t is about the checkpoint of that step; dead_rows, dead_columns and
second_moment are null in all other runs.

"""

from gatdiag.run.laws import RecordedLaws
from gatdiag.run.reader import Run, export, load
from gatdiag.run.tables import SCHEMA_VERSION, describe_tables
from gatdiag.run.writer import Store, fill_parameters, seal

__all__ = ["SCHEMA_VERSION", "RecordedLaws", "Run", "Store", "export", "fill_parameters", "load", "seal"]

__doc__ = f"{__doc__ or ''}{describe_tables()}"  # the columns are defined in gatdiag.quantities
