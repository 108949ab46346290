"""How quantities are written on axes.

The loss is a plain L: a calligraphic one comes from a font of matplotlib's own, of which browsers draw boxes.
"""

SMOOTHING = {  # column of the layers' table -> label; outputs, then gradients
    "mu": r"$\mu(X)$",
    "relative_mu": r"$\mu(X)\,/\,\|X\|_F$",
    "output_norm": r"$\|X\|_F$",
    "gradient_mu": r"$\mu(\partial L/\partial X)$",
    "relative_gradient_mu": r"relative $\mu(\partial L/\partial X)$",
    "output_gradient_norm": r"$\|\partial L/\partial X\|_F$",
}
