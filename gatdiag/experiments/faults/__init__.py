"""A benchmark for the diagnosis: small trainings with one planted fault each, their repaired twins, healthy controls.

A fault is a change of a few settings of a training that is otherwise fine: `cases` lists them by the code of the
finding that is right. The training without that change is the repaired twin. A fault counts only if its twin trains
clearly better (`bank.should_count`), measured independently of the diagnosis: with the true labels and the usual loss.
Nothing is wrong with the controls. Half of the cases are held out from calibration; their seeds start at 100.

Equal recipes give equal runs, whatever the number of processes.

- `recipe`: a training as data
- `cases`: all cases
- `tasks`, `network`, `training`: recipe -> data, model, recorded training
- `bank`: cases -> runs -> verdicts, and which of them are right
- `published_rules`: the rules of other tools, on the same runs
- `treatment`: whether the remedies that the diagnosis names cure the faults
- `preflight`: what `gatdiag.preflight` predicts before the training
- `pairs`: two faults at once
- `tables`: results as CSV and Markdown

`gatdiag faults` runs it.
"""
