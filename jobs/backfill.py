"""Score a whole history, one published run a date: `spark-submit … jobs/backfill.py` or `cbmm-spark backfill`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["backfill", *sys.argv[1:]]))
