"""Tables and figures of the papers, and findings beyond them, each reproduced by name.

reproduction   what a name stands for
gats           "Are GATs Out of Balance?"
lipschitz      "Lipschitz Normalization for Self-Attention Layers"
taming         "Taming Gradient Oversmoothing and Expansion"
beyond_*       one finding beyond the papers each
measurements   shared by these findings
engine         all names; trains what a name needs, and compares the results with the paper
report         the folder of a name: README.md, results.csv, figures, pages
"""
