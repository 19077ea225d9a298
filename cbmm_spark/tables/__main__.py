"""`python -m cbmm_spark.tables` prints docs/tables.md."""

import sys

from cbmm_spark.tables.document import document

sys.stdout.write(document())
