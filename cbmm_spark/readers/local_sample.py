"""What detection may look at, found in local files without Spark."""

from __future__ import annotations

from cbmm_spark.config.schema import ColumnsConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import Sample
from cbmm_spark.readers.listing import Listing
from cbmm_spark.readers.parquet_rows import columns_in
from cbmm_spark.readers.texts import beginning

_LONGEST_FIRST_LINE = 16 << 20  # bytes: the header of a wide table with 100,000 long names fits
_BEGINNING = 1 << 16  # bytes


def sample_of(listing: Listing, columns: ColumnsConfig) -> Sample:
    """Look at the first of some files.

    Raises
    ------
    InputError
        Every file is empty, or the first cannot be read.
    """
    if listing.is_delta:
        return Sample(listing.path, (), "", (), True, columns, listing=listing)
    if not listing.files:
        raise InputError(f"{listing.path} is empty")
    files = [f"file:{file.path}" if listing.fetch is None else file.path for file in listing.files]
    parquet = all(file.name.lower().endswith((".parquet", ".pq")) for file in listing.files)
    first, head = "", ""
    if not parquet:
        first, head = _first_lines(listing)
        parquet = first.startswith("PAR1")
    names = columns_in(listing) if parquet else ()
    return Sample(listing.path, files, first, names, False, columns, head, listing)


def _first_lines(listing: Listing) -> tuple[str, str]:
    """The first line that is not blank, of the first file that has one, and the beginning of that file."""
    for file in listing.files:
        for most in (_BEGINNING, _LONGEST_FIRST_LINE):
            head = beginning(listing, file, most).decode(errors="replace")
            lines = head.splitlines()
            first = next((line for line in lines if line.strip()), "")
            if first and (len(lines) > 1 or len(head) < most):
                return first, head[:_BEGINNING]
        if first:
            return first, head[:_BEGINNING]
    return "", ""
