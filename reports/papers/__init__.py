"""Tables and figures of the papers, and findings beyond them: published against measured.

Run from a checkout: `python -m reports.papers` lists the names, `python -m reports.papers NAME` trains what is missing
and writes the folder reports/NAME.

published      numbers of the papers' tables (published.csv), as settings of trainings
study          what a name stands for
gats           "Are GATs Out of Balance?"
lipschitz      "Lipschitz Normalization for Self-Attention Layers", and the divisor of its released code
taming         "Taming Gradient Oversmoothing and Expansion"
beyond_*       scripts of one finding beyond the papers each
measurements   shared by these scripts
runner         trains what a name lacks, and keeps its results.csv
comparison     means over seeds, published and measured
agreement      what is apart, the figure of measured against published, reports/README.md
layers, laws   the conservation laws of every convolution of PyG
cells          trains what the published tables lack, cheapest first
markdown       tables in Markdown, also for the fault bank and the benchmarks
page           the folder of a name: README.md and the figures
"""
