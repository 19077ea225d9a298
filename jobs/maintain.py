"""Upkeep of a warehouse: `spark-submit … jobs/maintain.py` or `cbmm-spark maintain`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["maintain", *sys.argv[1:]]))
