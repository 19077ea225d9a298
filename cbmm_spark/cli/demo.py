"""The demonstration of `make rescore`: simulate, ingest and rescore in one process, so that Spark starts only once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cbmm_spark.cli.main import main as command


def main(arguments: Sequence[str]) -> int:
    """Run the three commands one after the other, as long as they succeed.

    Parameters
    ----------
    arguments
        The folder to work in, then options that all three commands take, for example ``--config FILE``.

    Returns
    -------
    int
        Exit code of the first command that failed, or 0.
    """
    folder, *common = arguments
    history, warehouse = f"{folder}/history", f"{folder}/warehouse"
    steps = (
        ["simulate", "--out", history],
        ["ingest", "--warehouse", warehouse, "--input", f"{history}/history.parquet"],
        ["rescore", "--warehouse", warehouse, "--truth", history],
    )
    for step in steps:
        print("$ cbmm-spark", *step, *common, flush=True)
        code = command([*step, *common])
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
