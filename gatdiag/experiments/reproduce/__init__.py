"""The tables and figures of the papers, each reproduced by name: what the paper says beside what was measured.

- `reproduction`: what a name states, and the list of all names
- `engine`: trains what a name needs, once for all names, and compares
- `report`: the folder of a name: README.md, results.csv, figures, the page
- `gats`: what the names of "Are GATs Out of Balance?" share
- `taming`: the names of "Taming Gradient Oversmoothing and Expansion"
- `lipschitz`: the names of "Lipschitz Normalization for Self-Attention Layers"
- `findings`: what the findings beyond the papers share

Each other name is a module here with one constant, ``REPRODUCTION``: ``table_3`` for ``table-3``.
"""
