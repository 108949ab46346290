"""Experiments: what gatdiag can run by itself.

- `data`: named graphs with options: benchmark graphs, and those of `synthetic`
- `synthetic`: graphs that are built in: block models, Tree-NeighborsMatch
- `models`: graph neural networks as the papers build them
- `settings`: what a network and a training are, field by field
- `training`: a plain training loop on one graph, or on trees
- `experiment`: one training from its settings, watched or not, with its result
- `sweep`: all trainings of a grid, and a table of their results
- `reproduce`: tables and figures of the papers by name, published beside measured
- `pool`: many trainings at once, in processes
- `markdown`: tables in Markdown
- `bench`: what recording a training costs
- `faults`: small trainings with one fault each: how often does the diagnosis name it?
"""
