"""Gradient descent written out, for the tests of findings beyond the papers."""

import torch
from torch.nn import functional as F


def loss_of(model, graph):
    return F.cross_entropy(model(graph.x, graph.edge_index)[graph.train_mask], graph.y[graph.train_mask])


def descend(model, graph, rate, steps):
    weights = [*model.parameters()]
    for _ in range(steps):
        gradients = torch.autograd.grad(loss_of(model, graph), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= rate * gradient
