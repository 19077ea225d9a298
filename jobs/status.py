"""One screen about a warehouse: `spark-submit … jobs/status.py` or `cbmm-spark status`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["status", *sys.argv[1:]]))
