"""The whole night as one command: `spark-submit … jobs/nightly.py` or `cbmm-spark nightly`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["nightly", *sys.argv[1:]]))
