"""The rows that are held out. New ones go to the end of their cause, to keep the numbers."""

from collections.abc import Mapping
from typing import Final

from gatdiag.diagnosis import HEALTHY
from tests.bank.rows import DEEP, OVER_NODES, RESIDUAL, SLOW, SORTED, Row, by, control, init, row

HELD_OUT: Final[Mapping[str, tuple[Row, ...]]] = {
    "init-unbalanced": (
        row(init("xavier", 1), layer="gatv2", depth=11, graph="grid", lr=0.05, **DEEP),
        row(init("alternating", 25), layer="graph", depth=3, graph="small world", **by("SGD", 0.01)),
        row(init("xavier", 1), layer="gat", depth=12, graph="small world", lr=0.03, **DEEP),
        row(init("neurons", 30), layer="sage", depth=3, graph="grid", **SLOW),
        row(init("alternating", 50), layer="cheb", depth=5, graph="power law", **SLOW),
    ),
    "init-too-small": (
        row(init("scaled", 0.01), layer="graph", depth=3, graph="grid", **by("SGD", 0.02)),
        row(init("normal", 1e-4), layer="mlp", depth=4, task="regression", **by("momentum", 0.05)),
        row(init("scaled", 0.005), layer="cheb", depth=3, graph="tree", **by("Nesterov", 0.05)),
        row(init("scaled", 0.01), layer="gat-4", depth=4, graph="preferential", **SLOW),
    ),
    "init-too-large": (
        row(init("normal", 5), layer="tag", depth=3, graph="grid", lr=0.003),
        row(init("scaled", 30), layer="gat-4", depth=3, graph="tree"),
        row(init("last", 300), layer="gcn", depth=3, graph="small world", **SLOW),
        row(init("normal", 4), layer="graph", depth=2, graph="other classes", task="regression"),
    ),
    "depth-oversmoothing": (
        row({"depth": 24}, layer="gat-4", depth=2, graph="preferential"),
        row({"depth": 48}, layer="gcn", depth=3, graph="small world", **init("he", 1), **SLOW),
        row({"layer": "sgc-32", "depth": 2}, layer="gcn", depth=2, graph="preferential", task="regression"),
        row({"depth": 20}, layer="gatv2", depth=2, graph="other classes", **by("RMSprop", 0.003)),
        row({"graph": "all linked"}, layer="gcn", depth=2),
        row({"layer": "gat"}, layer="graph", depth=2, graph="all linked", width=16),
        row({"layer": "64 products"}, layer="2 products", depth=2, graph="preferential", **by("RMSprop", 0.003)),
    ),
    "depth-vanishing-gradient": (
        row({"depth": 30}, layer="mlp", depth=3, activation="gelu", task="regression", **by("Nesterov", 0.05)),
        row({"depth": 10, "activation": "sigmoid"}, layer="sage", depth=3, graph="tree"),
        row({"depth": 8, "activation": "sigmoid"}, layer="cheb", depth=2, graph="grid", **SLOW),
        row({"depth": 40}, layer="mlp", depth=3, activation="leaky", features="words", **by("RMSprop", 0.003)),
    ),
    "depth-exploding-gradient": (
        row({"norm": ""}, layer="graph", depth=16, **RESIDUAL, graph="preferential", **by("SGD", 0.02)),
        row(
            {"norm": ""}, layer="sage-sum", depth=14, residual=True, norm="graph", graph="power law", **by("SGD", 0.02)
        ),
        row({"norm": ""}, layer="cheb", depth=24, **RESIDUAL, graph="grid", **SLOW),
        row({"norm": ""}, layer="tag", depth=24, residual=True, norm="graph", **by("momentum", 0.05)),
    ),
    "rank-collapse": (
        row(init("constant", 1), layer="mlp", depth=3, **by("Nesterov", 0.1)),
        row({"width": 1}, layer="gcn", depth=3, graph="tree"),
        row({"depth": 56}, layer="mlp", depth=3, **init("he", 1), activation="leaky", **by("SGD", 0.05)),
        row(init("constant", 1), layer="cheb", depth=3, graph="other classes", **SLOW),
    ),
    "network-linear": (
        row(
            {"activation": "none"},
            layer="graph",
            depth=2,
            graph="tree",
            inputs=("signs flipped", 4),
            columns=8,
            nodes=400,
        ),
        row(
            {"activation": "none"},
            layer="mlp",
            depth=4,
            inputs=("signs flipped", 5),
            columns=16,
            nodes=400,
            **by("momentum", 0.05),
            steps=300,
        ),
    ),
    "dead-units": (
        row(init("biases", -20), layer="graph", depth=3, graph="grid", task="regression"),
        row(init("biases", -6), layer="cheb", depth=3, norm="layer", graph="tree", **SLOW),
        row({"init": (("negative", 1), ("biases", -1))}, layer="tag", features="words", graph="power law"),
        row(init("biases", -9), layer="gat-4", depth=4, graph="preferential", **by("RMSprop", 0.003)),
    ),
    "lr-too-large": (
        row({"lr": 3.0}, layer="tag", depth=3, graph="grid"),
        row({"lr": 2.0}, layer="gat-4", depth=3, graph="preferential", **by("RMSprop", 0.003)),
        row({"lr": 20.0}, layer="cheb", depth=3, graph="tree", **by("Nesterov", 0.05)),
        row({"lr": 10.0}, layer="gin", depth=3, task="graphs", nodes=300, norm="batch", **SLOW),
        row({"lr": 1e8}, layer="cheb", depth=3, graph="grid", **SLOW),
        row({"lr": 500.0}, layer="cheb", depth=3, graph="tree", task="regression", optimizer="AdamW"),
        row({"optimizer": "heavy momentum"}, layer="gat-4", depth=3, graph="small world", **by("momentum", 0.1)),
        row({"loss": "summed"}, layer="tag", depth=3, graph="preferential", **SLOW),
    ),
    "lr-too-small": (
        row({"lr": 1e-4}, layer="tag", depth=3, graph="power law", **SLOW),
        row({"lr": 2e-6}, layer="gat-4", depth=3, graph="grid"),
        row({"lr": 1e-6}, layer="graph", depth=2, graph="tree", task="regression", **by("Nesterov", 0.002)),
        row({"lr": 1e-7}, layer="cheb", depth=3, graph="small world", **by("RMSprop", 0.003)),
        row({"eps": 1.0}, layer="tag", depth=3, graph="grid", optimizer="AdamW"),
    ),
    "parameters-not-in-optimizer": (
        row({"optimizes": "of a copy"}, layer="cheb", depth=3, graph="grid", **by("RMSprop", 0.003)),
        row({"optimizes": "last"}, layer="gat-4", depth=4, width=4, graph="preferential", lr=0.02),
        row({"optimizes": "before rebuilding"}, layer="sage", depth=4, width=4, graph="small world", lr=0.03),
        row({"optimizes": "layers in a list"}, layer="tag", depth=4, width=3, graph="tree", **SLOW),
    ),
    "parameters-without-gradient": (
        row({"activation": "detached"}, layer="cheb", depth=4, width=4, graph="grid", lr=0.02),
        row({"frozen": "*weight"}, layer="tag", depth=3, width=8, graph="small world", **SLOW),
        row({"frozen": "encoder.*"}, layer="sage-sum", depth=4, width=6, task="graphs", nodes=300, steps=150),
        row({"activation": "detached"}, layer="gat-4", depth=4, width=4, graph="tree", lr=0.02, steps=150),
    ),
    "gradients-not-cleared": (
        row({"clears": False}, layer="gat-4", depth=4, graph="tree", **by("SGD", 0.3)),
        row({"clears": False}, layer="cheb", depth=4, graph="grid", **by("Nesterov", 0.1)),
        row({"clears": False}, layer="sage", depth=4, task="regression", graph="tree", **by("momentum", 0.05)),
        row({"clears": False}, layer="tag", depth=4, graph="power law", **by("RMSprop", 0.01)),
    ),
    "clipping-too-tight": (
        row({"clip": 1e-4}, layer="tag", depth=3, graph="tree", **SLOW),
        row({"clip": 1e-4}, layer="gat-4", depth=3, graph="small world", **by("Nesterov", 0.05)),
        row({"disturb": "values clipped at 1e-5"}, layer="graph", depth=3, task="graphs", nodes=300, **SLOW),
        row({"clip": 1e-10}, layer="cheb", depth=3, graph="preferential", batch=50),
    ),
    "weight-decay-too-strong": (
        row({"decay": 0.5}, layer="tag", depth=3, graph="tree", **SLOW),
        row({"decay": 0.5}, layer="cheb", depth=3, graph="grid", task="regression"),
        row({"decay": 30.0}, layer="gat-4", depth=3, graph="preferential", optimizer="AdamW"),
        row({"decay": 0.3}, layer="sage", depth=3, task="links", graph="small world", **by("Nesterov", 0.05)),
    ),
    "input-nonfinite": (
        row({"inputs": ("NaN in rows", 1)}, layer="tag", depth=3, graph="grid", **SLOW),
        row({"inputs": ("infinity in rows", 3)}, layer="graph", depth=2, graph="tree", task="regression"),
        row({"inputs": ("log", 1)}, layer="cheb", depth=2, graph="power law", features="words", norm="layer"),
    ),
    "input-scale": (
        row({"inputs": ("scaled", 5e3)}, layer="cheb", depth=3, graph="grid", **SLOW),
        row({"inputs": ("row numbers", 1e3)}, layer="tag", depth=3, graph="tree", **by("Nesterov", 0.05)),
        row({"inputs": ("scaled", 1e-5)}, layer="graph", depth=2, graph="small world", **by("SGD", 0.02)),
        row({"inputs": ("row numbers", 1e3)}, layer="gat-4", depth=2, graph="preferential"),
    ),
    "input-constant": (
        row({"inputs": ("all equal", 1)}, layer="gat-4", depth=3, graph="preferential"),
        row({"inputs": ("rows equal", 1)}, layer="gatv2", depth=3, graph="tree", **by("RMSprop", 0.003)),
        row({"inputs": ("all equal", 2)}, layer="sage", depth=3, graph="small world", task="links", steps=150),
        row({"inputs": ("rows equal", 1)}, layer="graph", depth=3, graph="other classes", **by("SGD", 0.01)),
    ),
    "output-softmax-twice": (
        row({"output": "softmax"}, layer="gat-4", depth=4, classes=8, columns=64, graph="small world", **SLOW),
        row({"output": "softmax"}, layer="cheb", depth=4, classes=10, graph="grid", **by("SGD", 0.05)),
        row(
            {"output": "sigmoid"}, layer="sage", depth=3, task="links", graph="small world", **by("SGD", 0.3), steps=300
        ),
        row(
            {"output": "softmax", "loss": "negative log-likelihood"},
            layer="tag",
            depth=4,
            classes=10,
            graph="tree",
            steps=60,
            **by("SGD", 0.1),
        ),
    ),
    "output-softmax-over-nodes": (
        row(OVER_NODES, layer="tag", depth=3, graph="grid"),
        row(OVER_NODES, layer="graph", depth=3, graph="small world", **by("SGD", 0.01)),
        row(OVER_NODES, layer="cheb", depth=3, graph="tree", **by("RMSprop", 0.003)),
    ),
    "output-relu": (
        row({"output": "relu"}, layer="cheb", depth=3, graph="grid", classes=8),
        row({"output": "relu"}, layer="gat-4", depth=3, graph="small world", classes=8, columns=64),
        row({"output": "relu"}, layer="tag", depth=3, graph="preferential", **by("Nesterov", 0.05)),
    ),
    "output-out-of-range": (
        row({"output": "relu"}, layer="tag", depth=3, graph="grid", task="regression"),
        row(
            {"output": "sigmoid"}, layer="cheb", depth=3, graph="small world", task="regression", **by("RMSprop", 0.003)
        ),
        row({"output": "tanh"}, layer="mlp", depth=3, task="regression", loss="Huber", batch=32, steps=200),
    ),
    "loss-broadcast": (
        row({"loss": "broadcast"}, layer="tag", depth=3, graph="grid", task="regression"),
        row({"loss": "broadcast, absolute"}, layer="cheb", depth=3, graph="small world", task="regression"),
        row({"loss": "broadcast"}, layer="graph", depth=3, graph="tree", task="regression", **by("RMSprop", 0.003)),
    ),
    "representation-collapse": (
        row({"loss": "rows alike"}, layer="tag", depth=3, graph="grid", train_share=0.9, steps=200),
        row(
            {"loss": "rows alike"},
            layer="graph",
            depth=2,
            graph="tree",
            **by("RMSprop", 0.003),
            train_share=0.9,
            steps=200,
        ),
    ),
    "dropout-too-large": (
        row({"dropout": 0.99}, layer="cheb", depth=3, graph="grid"),
        row({"dropout": 0.98}, layer="gat-4", depth=3, graph="small world"),
        row({"dropout": 0.98}, layer="tag", depth=4, graph="preferential", **by("Nesterov", 0.05)),
    ),
    "nonfinite-operation": (
        row({"activation": "log"}, layer="tag", depth=3, graph="grid"),
        row({"activation": "unit rows"}, layer="graph", depth=3, graph="tree", task="regression"),
        row({"activation": "root of zero"}, layer="cheb", depth=4, graph="small world", **by("RMSprop", 0.003)),
        row({"activation": "softmax by hand"}, layer="gat-4", depth=3, norm="batch", graph="preferential"),
    ),
    "attention-saturated": (
        row(init("attention", 1e4), layer="gat-4", depth=3, graph="small world", **SLOW),
        row(init("attention", 1e4), layer="gatv2", depth=4, graph="preferential"),
        row(init("attention", 1e4), layer="gatv2", depth=3, graph="grid", **by("momentum", 0.02)),
        row(init("attention", 1e4), layer="gat", depth=5, graph="tree", task="regression", steps=150),
    ),
    "no-training-signal": (
        row({"labels": "all one"}, layer="tag", depth=3, graph="grid"),
        row({"loss": "times zero"}, layer="gat-4", depth=3, graph="preferential", **by("RMSprop", 0.003)),
        row({"loss": "empty mask"}, layer="cheb", depth=3, graph="tree", **SLOW),
        row({"output": "detached"}, layer="graph", depth=3, task="links", graph="small world"),
    ),
    "target-nonfinite": (row({"labels": "one in ten missing"}, layer="tag", depth=3, graph="grid", task="regression"),),
    "empty-selection": (row({"loss": "masked, once by nothing"}, layer="cheb", depth=3, graph="tree"),),
    "no-step": (row({"loop": "no step"}, layer="tag", depth=3, graph="grid"),),
    "optimizer-recreated": (
        row({"loop": "new optimizer"}, layer="cheb", depth=3, graph="tree", **by("Nesterov", 0.0005)),
    ),
    "target-is-output": (
        row({"loss": "scores of each other"}, layer="graph", depth=3, task="links", graph="small world", steps=200),
    ),
    "loss-unbounded": (
        row({"loss": "negative log-likelihood"}, layer="tag", depth=3, graph="tree", lr=0.03),
        row({"loss": "maximized"}, layer="sage", depth=2, graph="grid", batch=24, **by("momentum", 0.02)),
    ),
    "target-scale": (row({"labels": "far from zero"}, layer="graph", depth=3, graph="grid", task="regression"),),
    "normalization-statistics": (
        row({"norm": "batch, slow"}, layer="tag", norm="batch", depth=3, graph="grid", inputs=("shifted", 4.0)),
        row(
            {"batch": 2}, layer="cheb", norm="batch, of graphs", depth=2, task="graphs", nodes=300, batch=20, steps=200
        ),
    ),
    "evaluation-inputs": (row({"data": "evaluated as they came"}, layer="tag", depth=3, graph="grid"),),
    "input-changes": (
        row({"data": "shrunk in each step"}, layer="graph", depth=3, graph="small world", **by("SGD", 0.01)),
    ),
    "input-permuted": (
        row({"data": "columns permuted in each step"}, layer="tag", depth=3, graph="grid", optimizer="RMSprop"),
    ),
    "target-changes": (
        row({"data": "targets shuffled in each step"}, layer="gat-4", depth=3, graph="tree", **by("RMSprop", 0.003)),
    ),
    "input-edges-rearranged": (
        row({"edges": "pairs reshaped"}, layer="gat-4", depth=3, graph="tree", **by("SGD", 0.1)),
    ),
    "input-edges-cached": (
        row({"layer": "gcn, cached"}, layer="gcn", depth=4, task="graphs", nodes=600, batch=30, **by("RMSprop", 0.003)),
    ),
    "input-complete-graph": (row({"edges": "all pairs"}, layer="gat-4", depth=3, graph="grid"),),
    "input-without-edges": (row({"edges": "self-loops"}, layer="gat-4", depth=3, columns=4, nodes=400),),
    "batches-sorted": (
        row({"data": "sorted by class"}, **{**SORTED, "width": 16}, norm="layer", **by("RMSprop", 0.003)),
    ),
    "law-broken": (
        row({"loss": "penalized later"}, layer="graph", depth=3, graph="small world", **by("SGD", 0.001), steps=200),
        row({"disturb": "gradient scaled later"}, layer="mlp", depth=4, **SLOW),
        row({"disturb": "gradient noisy later"}, layer="sage", depth=3, graph="tree", **by("SGD", 0.005), steps=400),
    ),
    "overfitting": (
        row({"labels": "random"}, layer="tag", depth=2, width=64, graph="grid", steps=150),
        row({"train_share": 0.05, "layer": "mlp"}, layer="gcn", depth=2, width=64, nodes=400, steps=150),
        row({"labels": "random"}, layer="cheb", depth=2, width=64, steps=150, optimizer="AdamW"),
        row({"labels": "random"}, layer="gat-4", depth=3, width=64, nodes=300, steps=200),
    ),
    "lr-decays-too-fast": (
        row({"schedule": "stepped per batch"}, layer="cheb", depth=3, graph="grid", lr=0.001, batch=20, steps=200),
        row({"schedule": "switched off"}, layer="graph", depth=2, graph="tree", task="regression", **by("SGD", 0.01)),
        row({"schedule": "warm-up without end"}, layer="tag", depth=3, graph="small world", **SLOW),
    ),
    "precision-underflow": (
        row({"precision": "half"}, layer="cheb", depth=3, graph="grid"),
        row({"precision": "bfloat16"}, layer="graph", depth=3, graph="tree", lr=1e-4, steps=300),
    ),
    "weights-overwritten": (
        row({"between": "restored"}, layer="cheb", depth=3, graph="grid", **by("Nesterov", 0.005)),
        row({"between": "averaged"}, layer="tag", depth=3, graph="tree", lr=0.002),
        row({"between": "drawn anew"}, layer="graph", depth=3, graph="small world", lr=0.001, steps=200),
    ),
    HEALTHY: (
        control(layer="gcn", graph="preferential", features="words", decay=5e-4, dropout=0.5, steps=200),
        control(layer="gat-4", graph="tree", dropout=0.6, lr=0.005, decay=5e-4, steps=200, width=64),
        control(layer="tag", graph="grid", **by("RMSprop", 0.003)),
        control(layer="cheb", graph="power law", **SLOW, steps=200),
        control(layer="graph", graph="preferential", lr=0.003, depth=3),  # sums over hubs
        control(layer="gin", graph="power law", lr=0.003, depth=3, norm="batch"),
        control(layer="graph", graph="small world", **by("Nesterov", 0.02), norm="layer", depth=6),
        control(layer="mlp", graph="other classes", depth=3, dropout=0.5, width=64, steps=200),
        control(layer="sage", graph="other classes", depth=4, batch=25, optimizer="AdamW", steps=200),
        control(layer="gatv2", graph="grid", depth=10, lr=0.05, **DEEP),
        control(layer="gat-4", graph="grid", depth=16, residual=True, norm="graph", steps=80),
        control(layer="gcn", graph="tree", depth=32, residual=True, norm="batch", width=16, steps=80),
        control(layer="cheb", graph="tree", depth=3, task="regression", lr=0.005),
        control(layer="tag", graph="preferential", task="regression", **by("momentum", 0.02), steps=200),
        control(layer="graph", task="graphs", nodes=300, depth=3, lr=0.003, batch=15, steps=200),
        control(layer="gat-4", task="graphs", nodes=400, depth=2, norm="batch", steps=200),
        control(layer="sage", task="links", graph="small world", depth=2, decay=1e-3, steps=200),
        control(layer="gcn", graph="power law", schedule="warm-up", lr=0.03, optimizer="Nesterov", steps=200),
        control(layer="cheb", graph="grid", schedule="cosine", **by("RMSprop", 0.01), clip=0.1),
        control(layer="transformer", graph="small world", batch=10, lr=0.002, steps=300),
        control(layer="tag", graph="other classes", classes=10, nodes=300, activation="gelu", depth=3),
        control(layer="sage", graph="tree", train_share=0.1, nodes=300, width=16),
        control(layer="gat", graph="power law", frozen="encoder.convs.0*", width=128, lr=0.02),
        control(
            layer="gin", graph="small world", activation="leaky", loss="label smoothing", decay=0.1, optimizer="AdamW"
        ),
        control(layer="gcn", graph="grid", inputs=("scaled", 10.0), lr=0.003, resumed=True),
        control(layer="mlp", graph="preferential", depth=8, activation="tanh", residual=True, **SLOW, steps=200),
        control(layer="graph", graph="tree", activation="elu", output="log-softmax", **init("he", 1), lr=0.003),
        control(layer="gatv2", graph="preferential", features="words", inputs=("columns never used", 100), **SLOW),
        control(layer="cheb", graph="tree", schedule="exponential", **by("RMSprop", 0.01), steps=200),
        control(layer="tag", graph="grid", schedule="one-cycle", lr=0.02),
        control(layer="graph", graph="small world", precision="bfloat16", lr=0.003),
        control(layer="cheb", graph="small world", depth=3, between="clipped"),
        control(layer="tag", graph="tree", depth=3, between="average swapped in and back", **SLOW),
    ),
}
"""Cause -> rows that no rule was calibrated on: other graphs, layers, norms and optimizers.

They were fixed before any of them was diagnosed. The first diagnosis, before any change of a rule, was right in 94 of
98 faults, with no error or warning in 28 controls and 98 repaired twins. Wrong were init-unbalanced-103 (a bug of the
bank gave it NaN weights; once fixed, it led to the rule that compares neurons within a layer), depth-oversmoothing-100,
lr-too-small-102, which still are, and one of a cause that is no finding any more.
"""
