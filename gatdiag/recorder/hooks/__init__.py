"""How the recorder notices what a training does, without being seen by it.

- `registry`: one function in each of torch's tables of global hooks, which calls the recorders of this process
- `outside`: our tensor operations are not seen by the user's modes, and our functions not by the compiler
- `threads`: which thread trains a model
"""
