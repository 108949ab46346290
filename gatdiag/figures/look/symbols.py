"""How quantities are written on axes."""

SMOOTHING = {  # column of the layers' table -> label; outputs, then gradients
    "mu": r"$\mu(X)$",
    "relative_mu": r"$\mu(X)\,/\,\|X\|_F$",
    "output_norm": r"$\|X\|_F$",
    "gradient_mu": r"$\mu(\partial\mathcal{L}/\partial X)$",
    "relative_gradient_mu": r"relative $\mu(\partial\mathcal{L}/\partial X)$",
    "output_gradient_norm": r"$\|\partial\mathcal{L}/\partial X\|_F$",
}
