import pytest
import torch


@pytest.fixture(scope="session", params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request):
    return torch.device(request.param)


@pytest.fixture(scope="session")
def random_graph():
    """A symmetric random graph without self loops: edge_index with both directions stored, in random order."""

    def draw(num_nodes, seed=0, density=0.4):
        generator = torch.Generator().manual_seed(seed)
        upper = (torch.rand(num_nodes, num_nodes, generator=generator) < density).triu(1)
        edges = (upper | upper.T).nonzero().T
        return edges[:, torch.randperm(edges.shape[1], generator=generator)]

    return draw
