"""Kill processes that write a run, and check the run. To be run as a script, because it forks. Prints a line per kill.

python -m tests.run.killing seal FOLDER        kill before each file system call of sealing, then at random times
python -m tests.run.killing resume FOLDER      the same for resuming
python -m tests.run.killing write FOLDER       kill at random times of recording
python -m tests.run.killing train FOLDER       kill before each file system call of a training that is watched
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas  # noqa: F401  (so that no child has to import it)

from gatdiag.run import Store, load, seal
from tests.run.recorded import META, ROWS, SEALED, append_step, check, files, record

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir"}
STEPS = 6


def say(text: str) -> None:
    """Print and flush a line, so that no fork prints it again."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def forked(work: Callable[[], object], kill_after: float | None = None) -> bool:
    """Do the work in a fork of this process. Returns whether it was not killed."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            say(f"failed: {error!r}")
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(1)
    return not os.WIFSIGNALED(status)


def kill_before(number: int) -> None:
    """Kill this process before its `number`-th file system call."""
    left = [number]

    def hook(event: str, _: object) -> None:
        if event in EVENTS:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kill_at_every_instant(folder: Path, work: Callable[[Path], object], holds: Callable[[Path], object]) -> None:
    """Kill work on copies of a run, before each file system call and at random times, and check the copies."""

    def until(copy: Path, number: int) -> None:
        kill_before(number)
        work(copy)

    number, lived = 0, False
    while not lived:
        number += 1
        copy = folder / f"event{number}"
        shutil.copytree(folder / "original", copy)
        lived = forked(lambda copy=copy, number=number: until(copy, number))
        holds(copy)
        say("finished" if lived else "killed")
    for number in range(6):
        copy = folder / f"random{number}"
        shutil.copytree(folder / "original", copy)
        lived = forked(lambda copy=copy: work(copy), kill_after=random.uniform(0, 0.06))
        holds(copy)
        say("finished" if lived else "killed")


def kill_sealing(folder: Path) -> None:
    """After a kill, the run reads as it was recorded, and can be sealed."""

    def twice_recorded() -> None:
        record(folder / "original", range(5)).seal("finished")
        second = Store.resume(folder / "original", 4)
        for step in range(4, STEPS):
            append_step(second, step, 1.0)
        second.close()

    recorded = [*((step, 0.0) for step in range(4)), *((step, 1.0) for step in range(4, STEPS))]

    def whole_and_sealable(copy: Path) -> None:
        check(load(copy), recorded)
        seal(copy)
        assert files(copy) == SEALED, files(copy)
        check(load(copy), recorded)
        assert load(copy).status == "interrupted"

    forked(twice_recorded)
    kill_at_every_instant(folder, seal, whole_and_sealable)


def kill_resuming(folder: Path) -> None:
    """After a kill, all tables have either all steps or those before the resumed one, and the run can be resumed."""

    def before_or_after(copy: Path) -> None:
        run = load(copy)
        check(run, range(STEPS if len(run.arrow("steps")) == STEPS else 4))
        again = Store.resume(copy, 4)
        append_step(again, 4)
        again.seal("finished")
        assert files(copy) == SEALED, files(copy)
        check(load(copy), range(5))

    forked(lambda: record(folder / "original", range(STEPS)).seal("finished"))
    kill_at_every_instant(folder, lambda copy: Store.resume(copy, 4), before_or_after)


def kill_writing(folder: Path) -> None:
    """After a kill, every step whose `append` has returned can be read, and no row is duplicated or incomplete."""
    for number in range(12):
        run = folder / str(number)
        read_end, write_end = os.pipe()

        def recording(run: Path = run, write_end: int = write_end) -> None:
            writer = Store.create(run, META)
            for step in range(10**6):
                append_step(writer, step)
                os.write(write_end, b".")

        forked(recording, kill_after=random.uniform(0.01, 0.05))
        os.close(write_end)
        acknowledged = 0
        while data := os.read(read_end, 10**6):
            acknowledged += len(data)
        os.close(read_end)
        holds_at_least(run, acknowledged)
        say("killed")


def holds_at_least(folder: Path, steps: int) -> None:
    """Check that the run has these steps and at most a part of the next one, and can be resumed."""
    if not (folder / "meta.json").exists():
        assert not steps
        return
    run = load(folder)
    counts = [len(run.arrow(name)) / rows for name, rows in ROWS.items()]
    assert all(steps <= count <= steps + 1 for count in counts), (steps, counts)
    writer = Store.resume(folder, steps)
    append_step(writer, steps, 2.0)
    writer.seal("finished")
    check(load(folder), [*((step, 0.0) for step in range(steps)), (steps, 2.0)])


def train(folder: Path, steps: int = STEPS, *, resume: bool = False) -> None:
    """A training that is always the same, of which as much is watched as is not recorded yet."""
    import torch

    import gatdiag

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 3)
    begin = Store.check_resume(folder) if resume else 0
    for step in range(steps):
        if step == begin:
            recorder = gatdiag.watch(model, folder, every=1, resume=resume, overwrite=not resume, warn=False)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if step >= begin:
            recorder.log(loss=loss)
            if step % 2 == 0:
                recorder.diagnosis()  # writes what waits
    if begin < steps:
        recorder.finish()


def kill_training(folder: Path) -> None:
    """After a kill, the training goes on where its record ends, and the record is that of a training without a kill."""
    train(folder / "whole")
    whole = load(folder / "whole")
    number, lived = 0, False
    while not lived:
        number += 1
        killed = folder / f"event{number}"

        def until(killed: Path = killed, number: int = number) -> None:
            kill_before(number)
            train(killed)

        lived = forked(until)
        is_run = (killed / "meta.json").exists()
        forked(lambda killed=killed, is_run=is_run: train(killed, resume=is_run))
        run = load(killed)
        for name, rows in ROWS_OF_TRAINING.items():
            found, expected = run.arrow(name), whole.arrow(name)
            assert found["step"].to_pylist() == expected["step"].to_pylist(), (number, name)
            assert len(found) == STEPS * rows
        assert run.steps["loss"].tolist() == whole.steps["loss"].tolist()
        for name in ("norm", "gradient_norm", "unchanged_fraction"):
            assert run.parameters[name].equals(whole.parameters[name]), (number, name)
        say("finished" if lived else "killed")


ROWS_OF_TRAINING = {"steps": 1, "layers": 2, "parameters": 4, "neurons": 0}

if __name__ == "__main__":
    random.seed(0)
    kill = {"seal": kill_sealing, "resume": kill_resuming, "write": kill_writing, "train": kill_training}
    kill[sys.argv[1]](Path(sys.argv[2]))
