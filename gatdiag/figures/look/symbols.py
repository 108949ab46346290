"""How quantities are written on axes: in plain characters, which browsers draw and no parser has to read."""

SMOOTHING = {  # column of the layers' table -> label; outputs, then gradients
    "mu": "μ(X)",
    "relative_mu": "μ(X) / ‖X‖",
    "output_norm": "‖X‖",
    "gradient_mu": "μ(∂L/∂X)",
    "relative_gradient_mu": "μ(∂L/∂X) / ‖∂L/∂X‖",
    "output_gradient_norm": "‖∂L/∂X‖",
}
ZERO_NORM = {"relative_mu": "output is zero", "relative_gradient_mu": "gradient is zero"}  # why they are undefined
