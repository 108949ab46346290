"""Trainings on several processes, each of which runs: python distributed_training.py CASE FOLDER."""

import json
import os
import signal
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gatdiag

STEPS = 4


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def batches(rank):
    """Four batches of each process."""
    generator = torch.Generator().manual_seed(100)
    x = torch.randn(STEPS, 2, 10, 6, generator=generator)
    y = torch.randint(0, 4, (STEPS, 2, 10), generator=generator)
    return [*zip(x[:, rank], y[:, rank], strict=True)]


def train(model, optimizer, batches, *, clip=None, before_step=lambda step: None):
    losses = []
    for step, (x, y) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        before_step(step)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def as_local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def trained(prepare, folder, *, watched, around=True, **options):
    """The losses and weights of a training, with or without us."""
    rank, model = dist.get_rank(), make_model()
    prepared = prepare(model)
    optimizer = sgd(prepared)
    with gatdiag.watch(prepared if around else model, folder, every=1, metrics="full", enabled=watched):
        losses = train(prepared, optimizer, batches(rank), **options)
    return [losses, *(as_local(parameter.detach()).tolist() for parameter in model.parameters())]


def shard(model):
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def parallelize(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


def with_buffers_as_views(model):
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def static(model):
    return DistributedDataParallel(model, static_graph=True)


def data_parallel(folder):
    """Each kind of wrapping is the same training with and without us."""
    return {
        name: [trained(prepare, folder / name, watched=watched, **options) for watched in (False, True)]
        for name, prepare, options in (
            ("ddp", DistributedDataParallel, {}),
            ("inner", DistributedDataParallel, {"around": False}),
            ("clipped", DistributedDataParallel, {"clip": 0.1}),
            ("views", with_buffers_as_views, {"clip": 0.1}),
            ("static", static, {"clip": 0.1}),
        )
    }


def sharded(folder):
    return {
        name: [trained(prepare, folder / name, watched=watched, **options) for watched in (False, True)]
        for name, prepare, options in (
            ("fsdp", shard, {}),
            ("fsdp clipped", shard, {"clip": 0.1}),
            ("tensor parallel", parallelize, {}),
        )
    }


def watched_before(folder):
    """`watch` comes before the process group: every process believes what the environment says."""
    model = make_model()
    recorder = gatdiag.watch(model, folder / "run", every=1)
    exists = (folder / "run").exists()
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    prepared = DistributedDataParallel(model)
    losses = train(prepared, sgd(prepared), batches(dist.get_rank()))
    recorder.finish()
    return {"exists": exists, "losses": losses}


def failing(folder, way):
    """Rank 1 raises, or is killed, in the third step; rank 0 gets an error from its collective."""
    rank, model = dist.get_rank(), make_model()
    prepared, ended = DistributedDataParallel(model), "finished"
    if rank == 0:  # torchrun ends the others as soon as it sees that one is gone, which may be before their error
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def before_step(step):
        if step == 2 and rank == 1:
            if way == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("mine")

    try:
        with gatdiag.watch(prepared, folder / "run", every=1):
            train(prepared, sgd(prepared), batches(rank), before_step=before_step)
    except Exception as error:
        ended = type(error).__name__
    return {"ended": ended}


def main(case, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if case != "watched_before":
        dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    way = case.partition(" ")[2]
    found = failing(folder, way) if way else globals()[case](folder)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    if way:  # torch may abort while it takes down a group in error: https://github.com/pytorch/pytorch/pull/179291
        os._exit(0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
