"""A training that is watched and diagnosed, and what is asked of the diagnosis of a fault and of its repair."""

import torch

import gatdiag


def train(
    folder,
    model,
    loss_of,
    *,
    scores_of=lambda step: {},
    steps=60,
    lr=0.01,
    optimizer=torch.optim.Adam,
    makes_steps=True,
    **watched,
):
    """Watch a training and diagnose it; `loss_of` and `scores_of` are given the number of the step."""
    made = optimizer(model.parameters(), lr=lr)
    with gatdiag.watch(model, folder, every=1, **watched) as recorder:
        for step in range(steps):
            made.zero_grad()
            loss = loss_of(step)
            if loss.requires_grad:
                loss.backward()
            if makes_steps:
                made.step()
            with torch.no_grad():
                recorder.log(loss=loss, **scores_of(step))
    return gatdiag.diagnose(folder)


def check(diagnosis, code, *, is_faulty):
    """A fault is named, with a remedy and what would disprove it; its repair is not blamed for anything."""
    if is_faulty:
        assert diagnosis.verdict.code == code, str(diagnosis)
        assert diagnosis.verdict.severity in ("error", "warning")
        assert diagnosis.verdict.remedy
        assert diagnosis.verdict.falsified_by
    else:
        assert not [one for one in diagnosis if one.severity != "note" or one.code == code], str(diagnosis)
