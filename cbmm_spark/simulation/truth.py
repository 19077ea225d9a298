"""The true parameters that `simulate` keeps beside its history."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cbmm_spark.errors import InputError


@dataclass(frozen=True)
class Truth:
    """The true parameters that `simulate` keeps beside its history.

    Attributes
    ----------
    abilities
        Columns model, ability, is_perfect, is_hopeless.
    items
        Columns benchmark, item, discrimination, easiness, kind.
    """

    abilities: pa.Table
    items: pa.Table

    @classmethod
    def read(cls, folder: Path) -> Truth:
        """Read it from the folder that was simulated to.

        Raises
        ------
        InputError
            The folder does not hold it.
        """
        tables = []
        for name in ("truth_abilities.parquet", "truth_items.parquet"):
            try:
                tables.append(pq.read_table(folder / name))
            except (OSError, pa.ArrowInvalid):
                raise InputError(f"{folder} holds no readable {name}: give the folder of `simulate --out`") from None
        return cls(*tables)

    def ability_by_model(self) -> dict[str, float]:
        """True ability by model."""
        return dict(zip(self.abilities["model"].to_pylist(), self.abilities["ability"].to_pylist(), strict=True))
