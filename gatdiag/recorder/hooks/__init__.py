"""Torch's hooks -> events of a training. Hooks know a `Listener`, and never measure, change or return anything.

- `listener`: the events
- `modules`: calls of the model and its layers, and gradients of their outputs; `attention`: attention coefficients
- `optimizers`: steps; `backward`: backward passes, what they began with, and their loss
- `registry`: one function in each of torch's tables of global hooks, which calls the recorders of this process
- `outside`: our tensor operations are not seen by the user's modes, and our functions not by the compiler
- `threads`: which thread trains a model
"""
