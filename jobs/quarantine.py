"""List, read again or remove refused rows: `spark-submit … jobs/quarantine.py list` or `cbmm-spark quarantine list`."""

import sys

from cbmm_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["quarantine", *sys.argv[1:]]))
