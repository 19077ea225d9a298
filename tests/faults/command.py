"""A command as a person runs it, with its exit code and its line: in a process of its own on the test-suite's JVM.

Run as ``python -m tests.faults.command [--meet POINT FOLDER] [--fill POINT FILE] rescore …`` in the environment that
`nights.attached_environment` gives.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cbmm_spark.cli import main as cli
from cbmm_spark.fit import fit_scales as fits
from cbmm_spark.rescoring import job as rescore
from cbmm_spark.runs import publish
from cbmm_spark.spark import session
from tests.faults.driver import attached

TOGETHER = 2
PATIENCE = 300.0


def meet(folder: Path) -> None:
    """Wait until the other process is here as well, so that both go on in the same moment."""
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + PATIENCE
    while len(list(folder.iterdir())) < TOGETHER:
        if time.monotonic() > until:
            sys.exit("the other process did not come")
        time.sleep(0.001)


def fill(ballast: Path) -> None:
    """Leave no byte on a disk."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def at_point(point: str, action: Callable[[], None]) -> None:
    """Do something where a night passes a point, the first time."""
    done: list[str] = []

    def passed(name: str) -> None:
        if name == point and not done:
            done.append(name)
            action()

    for module in (rescore, fits, publish):
        module.faultpoint = passed  # type: ignore[attr-defined]


def before_claiming(action: Callable[[], None]) -> None:
    """Do something after packing, before the day is claimed and the tables of results are made."""
    start = rescore.start_run

    def later(*given: Any, **more: Any) -> Any:
        action()
        return start(*given, **more)

    rescore.start_run = later


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--meet", nargs=2)
    parser.add_argument("--fill", nargs=2)
    given, arguments = parser.parse_known_args()
    spark = attached()
    session.build_session = lambda *_: spark
    session.stop_session = lambda *_: None  # the JVM is the test-suite's
    if given.fill:
        at_point(given.fill[0], lambda: fill(Path(given.fill[1])))
    if given.meet:
        place, folder = given.meet[0], Path(given.meet[1])
        if place == "claim":
            before_claiming(lambda: meet(folder))
        else:
            meet(folder)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
