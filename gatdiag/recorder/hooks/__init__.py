"""Torch's hooks -> events of a training. Hooks know a `Listener`, and never measure, change or return anything.

- `listener`: the events
- `modules`: calls of the model and its layers, and gradients of their outputs; `attention`: attention coefficients
- `optimizers`: steps; `backward`: backward passes, and what they began with
"""
