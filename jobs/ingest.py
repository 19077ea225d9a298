"""Merge evaluation results into the table `responses`: `spark-submit … jobs/ingest.py` or `cbmm-spark ingest`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["ingest", *sys.argv[1:]]))
