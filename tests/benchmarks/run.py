"""What the store costs: appending, sealing, and opening a large run; prints figures, asserts nothing.

    python -m tests.benchmarks.run

A run of 5,000 steps, 40 layers, 120 parameters and 64 laws in each layer but the last (12.5 million rows of neurons) is
written through `Store`, then opened with `gatdiag.load` in processes of their own, every table touched: sealed, and as
a killed process leaves it.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gatdiag.run import seal
from gatdiag.run.store import Store
from tests.run.synthetic import synthetic_run

_TABLES = ("steps", "layers", "parameters", "neurons")
_OPEN = """
import sys, time
begin = time.perf_counter()
import gatdiag
run = gatdiag.load(sys.argv[1])
loaded = time.perf_counter()
import pandas
times, rows = [time.perf_counter()], 0
for name in sys.argv[2:]:
    rows += len(getattr(run, name))
    times.append(time.perf_counter())
text = ", ".join(f"{name} {b - a:.2f}" for name, a, b in zip(sys.argv[2:], times, times[1:]))
print(f"all {times[-1] - begin:.2f} s: load {loaded - begin:.2f}, import pandas {times[0] - loaded:.2f}, {text}; "
      f"{rows:,} rows")
"""


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


def size(folder: Path) -> str:
    """Bytes of a folder, in words."""
    return f"{sum(path.stat().st_size for path in folder.iterdir()) / 2**20:.0f} MiB"


def peak() -> int:
    """Largest resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def record(folder: Path, steps: int, layers: int, neurons: int) -> None:
    """Writes the run, and says what an append costs beside what it takes to make the numbers up."""
    spent = []
    append = Store.append

    def timed(*args: object) -> None:
        begin = time.perf_counter()
        append(*args)  # type: ignore[arg-type]
        spent.append(time.perf_counter() - begin)

    Store.append = timed  # type: ignore[method-assign, assignment]
    try:
        synthetic_run(folder, steps=steps, layers=layers, neurons=neurons, seal=False)
    finally:
        Store.append = append  # type: ignore[method-assign]
    spent.sort()
    say(
        f"{len(spent)} appends: median {1e6 * spent[len(spent) // 2]:.0f} us, "
        f"mean {1e6 * sum(spent) / len(spent):.0f} us, {4e6 * sum(spent) / len(spent):.0f} us a step"
    )


def read(folder: Path, rounds: int = 3) -> None:
    """Opens the run in new processes."""
    for _ in range(rounds):
        subprocess.run([sys.executable, "-c", _OPEN, str(folder), *_TABLES], check=True)


def main() -> None:
    """Writes, reads, seals and reads again."""
    parser = argparse.ArgumentParser(description="Costs of the store.")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--neurons", type=int, default=64)
    parser.add_argument("--keep", type=Path, help="write the run here and keep it")
    options = parser.parse_args()
    say(f"{os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "run"
        record(folder, options.steps, options.layers, options.neurons)
        say(f"as a kill leaves it: {size(folder)}")
        read(folder, 1)
        before, begin = peak(), time.perf_counter()
        seal(folder)
        say(
            f"sealed in {time.perf_counter() - begin:.1f} s: {size(folder)}; "
            f"peak memory {peak()} MiB (before: {before} MiB)"
        )
        read(folder)


if __name__ == "__main__":
    main()
