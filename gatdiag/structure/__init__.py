"""Structure: a model becomes ordered layers, each with the role of every parameter; and the replica that runs it."""
