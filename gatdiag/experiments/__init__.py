"""Experiments: trainings that gatdiag runs by itself.

- `data`: named graphs with options: benchmark graphs, and those of `synthetic`
- `synthetic`: built-in graphs: block models, Tree-NeighborsMatch
- `models`: graph neural networks as the papers build them
- `settings`: settings of a network and of a training
- `training`: a plain training loop on one graph
- `experiment`: one training from its settings, watched or not, and its result
- `sweep`: all trainings of a grid, and a table of their results
- `pool`: parallel trainings, in processes or on a cluster
"""
