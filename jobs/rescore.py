"""Fit, and publish abilities and item parameters: `spark-submit … jobs/rescore.py` or `cbmm-spark rescore`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["rescore", *sys.argv[1:]]))
