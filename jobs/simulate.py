"""Draw a leaderboard history (no Spark needed): `spark-submit … jobs/simulate.py` or `cbmm-spark simulate`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["simulate", *sys.argv[1:]]))
