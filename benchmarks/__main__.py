"""python -m benchmarks [name …]: run benchmarks and write their figures to benchmarks/results/<name>.json."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

# One thread per process, before NumPy loads its BLAS: Spark runs one Python worker per core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

# Imported when it runs, by this name.
BENCHMARKS = {
    "kernel": "nanoseconds per cell and iteration against unpacking and one float32 product",
    "rivals": "the fit in process against scaled L-BFGS-B and the paper's recurrence",
    "exactness": "objective against L-BFGS-B, KKT and random starts on real and simulated data",
    "real": "real leaderboards through ingest and rescore on Spark, against L-BFGS-B",
    "backfill": "a history of 108 dates in the same passes, against one fit",
    "recovery": "recovery of the truth beside L-BFGS-B and plain accuracy",
    "ingest": "Spark: ingest of 100 M long rows and of 1 GB of lm-eval samples beside a shuffle; ingest:ROWS",
    "stages": "Spark: seconds per iteration against an empty mapInArrow job; 200 iterations",
    "paper_suite": "Spark: the paper's largest suite, 2,211 models x 12,032 items",
    "growth": "growth with models, items, observed share, scales and cores",
    "linking": "drift of unchanged models over nine nights, unlinked and linked; drifting items",
    "history_link": "early dates put on the scale of the last one, by models and by items",
    "frozen": "Spark: 50 new models scored against 12,032 fixed items, against a full refit",
    "nights": "Spark: 90 simulated nights through `nightly`, beside all in one go; nights:N for N",
    "packing": "Spark: packing beside a plain shuffle; a night of 1 %. packing:ROWS for another size",
    "billion": "Spark: 10,000 x 100,000 from stored blocks",
}
DEFAULT = ("kernel", "rivals", "exactness", "real", "stages", "paper_suite")


def main() -> int:
    """Run the benchmarks named, or the default ones."""
    listed = "\n".join(f"  {name:12} {text}" for name, text in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{listed}\ndefault: {' '.join(DEFAULT)}; all: every one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name")
    names = parser.parse_args().names or list(DEFAULT)
    if names == ["all"]:
        names = list(BENCHMARKS)
    asked = [name.partition(":") for name in names]
    unknown = [name for name, _, _ in asked if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    for name, _, size in asked:
        run = importlib.import_module(f"benchmarks.{name}").run
        if size:
            run(int(size))
        else:
            run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
