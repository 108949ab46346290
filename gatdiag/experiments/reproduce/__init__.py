"""The tables and figures of the papers, each reproduced by name: what the paper says beside what was measured.

reproduction   what a name states
gats           the names of "Are GATs Out of Balance?": ``TABLE_3`` is table-3
lipschitz      those of "Lipschitz Normalization for Self-Attention Layers"
taming         those of "Taming Gradient Oversmoothing and Expansion"
beyond_*       a finding beyond the papers each
findings       what these findings share
engine         the list of all names; trains what a name needs, once for all names, and compares
report         the folder of a name: README.md, results.csv, figures, the page
"""
