"""A bank of faulty trainings with repaired twins, and of healthy controls: how often is the right cause named?

A fault is a change of a few attributes of a training that is otherwise fine: `cases` has a row for each, by the code of
the finding that is right. The training without that change is the repaired twin. A fault counts only if the twin trains
clearly better (`bank.counts`), by a yardstick that is not the diagnosis's: the true labels and the usual loss. Controls
are trainings in which nothing is wrong. Half of the bank is held out from calibration, with seeds from 100 on.

Each case is deterministic: equal recipes give equal runs, whatever the number of processes.

- `recipe`: a training as data
- `cases`: the bank, a row for each case
- `tasks`, `network`, `training`: a recipe -> what there is to learn, a network, a watched training
- `bank`: cases -> runs -> verdicts, and which of them are right
- `published_rules`: the rules that other tools publish, on the same runs
- `treated`: cases -> what the remedies cure that the diagnosis names
- `foresight`: cases -> what `gatdiag.preflight` says before they are trained
- `pairs`: two faults at once
- `tables`: results as CSV and Markdown

`gatdiag faults` runs it.
"""
