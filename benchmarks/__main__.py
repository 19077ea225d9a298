"""python -m benchmarks [name …]: run benchmarks and write their figures to benchmarks/results/<name>.json."""

from __future__ import annotations

import argparse
import os
import sys

# One thread per process, before NumPy loads its BLAS: Spark runs one Python worker per core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from benchmarks import backfill, billion, exactness, growth, kernel, paper_suite, real, recovery, rivals, stages  # noqa: E402

BENCHMARKS = {
    "kernel": (kernel.run, "nanoseconds per cell and iteration against unpacking and one float32 product"),
    "rivals": (rivals.run, "the fit in process against scaled L-BFGS-B and the paper's recurrence"),
    "exactness": (exactness.run, "objective against L-BFGS-B, KKT and random starts on real and simulated data"),
    "real": (real.run, "real leaderboards through ingest and rescore on Spark, against L-BFGS-B"),
    "backfill": (backfill.run, "a history of 108 dates in the same passes, against one fit"),
    "recovery": (recovery.run, "recovery of the truth beside L-BFGS-B and plain accuracy"),
    "stages": (stages.run, "Spark: seconds per iteration against an empty mapInArrow job; 200 iterations"),
    "paper_suite": (paper_suite.run, "Spark: the paper's largest suite, 2,211 models x 12,032 items"),
    "growth": (growth.run, "growth with models, items, observed share, scales and cores"),
    "billion": (billion.run, "Spark: 10,000 x 100,000 from stored blocks"),
}
DEFAULT = ("kernel", "rivals", "exactness", "real", "stages", "paper_suite")


def main() -> int:
    """Run the benchmarks named, or the default ones."""
    listed = "\n".join(f"  {name:12} {text}" for name, (_, text) in BENCHMARKS.items())
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
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    for name in names:
        BENCHMARKS[name][0]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
