"""The configuration as typed, frozen dataclasses: every key, its type, its default and its limits."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Limits:
    """What a number or a list may be; kept in the field's metadata.

    Parameters
    ----------
    minimum, maximum
        Bounds, inclusive unless `above` or `below` says otherwise.
    above, below
        Whether the lower (`above`) or upper (`below`) bound itself is excluded.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = False
    below: bool = False

    def complaint(self, value: float) -> str | None:
        """What is wrong with `value`, or None."""
        if value < self.minimum or (self.above and value == self.minimum):
            return f"must be {'above' if self.above else 'at least'} {self.minimum:g}"
        if value > self.maximum or (self.below and value == self.maximum):
            return f"must be {'below' if self.below else 'at most'} {self.maximum:g}"
        return None


def _within(
    default: Any, minimum: float = -math.inf, maximum: float = math.inf, *, above: bool = False, below: bool = False
) -> Any:
    return field(default=default, metadata={"limits": Limits(minimum, maximum, above, below)})


@dataclass(frozen=True)
class ColumnsConfig:
    """Names under which a long input may hold each column; the first one present is taken."""

    model: tuple[str, ...] = ("model", "model_id")
    item: tuple[str, ...] = ("item", "item_id")
    score: tuple[str, ...] = ("correct", "score")
    benchmark: tuple[str, ...] = ("benchmark",)
    attempt: tuple[str, ...] = ("attempt", "run")
    date: tuple[str, ...] = ("date", "evaluated_at")


Strictness = Literal["ignore", "warn", "fail"]
"""What a check does when it finds something."""


@dataclass(frozen=True)
class ChecksConfig:
    """What is looked for in an input before anything is written."""

    content: Strictness = "fail"
    names: Strictness = "warn"
    vanished: Strictness = "warn"


ANY = "*"
"""Stands for every benchmark that a table of `[ingest]` does not name."""

METRICS = (
    *(
        "exact_match",
        "acc_norm",
        "acc",
        "pass@1",
        "pass_at_1",
        "correct",
        "is_correct",
        "resolved",
        "score",
        "prefix_match",
    ),
    *("quasi_exact_match", "inst_level_strict_acc", "prompt_level_strict_acc", "mcc", "f1", "em"),
)
"""Names of metrics known as scores of single answers, the preferred ones first."""

STATUS: Mapping[str, float | Literal["missing"]] = types.MappingProxyType(
    {
        "resolved": 1.0,
        "unresolved": 0.0,
        "passed": 1.0,
        "failed": 0.0,
        "timeout": 0.0,
        "empty": 0.0,
        "error": "missing",
        "incomplete": "missing",
    }
)
"""What a status in the place of a score means."""


@dataclass(frozen=True)
class IngestConfig:
    """How evaluation results are read and which of them are accepted."""

    default_benchmark: str = "default"
    duplicates: Literal["latest", "first", "error"] = "latest"
    attempts: Literal["all", "latest", "first", "error"] = "all"
    fractions: Literal["soft", "threshold", "reject"] = "soft"
    threshold: float = _within(0.5, 0, 1)
    date_formats: tuple[str, ...] = ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "yyyy-MM-dd HH:mm[:ss]", "yyyy-MM-dd")
    revision: Literal["key", "ignore"] = "key"
    version: Literal["key", "ignore"] = "key"
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    checks: ChecksConfig = field(default_factory=ChecksConfig)
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {ANY: METRICS})
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    full_score: Mapping[str, float] = field(default_factory=dict, metadata={"limits": Limits(0, above=True)})
    status: Mapping[str, float | Literal["missing"]] = field(
        default_factory=lambda: dict(STATUS), metadata={"limits": Limits(0, 1)}
    )
    flags: Mapping[str, Literal["wrong", "missing"]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    benchmarks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PackConfig:
    """How responses are packed into blocks."""

    items_per_block: int = _within(1024, 1, 1 << 20)
    sparse_below: float = _within(0.015625, 0, 1)


@dataclass(frozen=True)
class ScalesConfig:
    """Which sets of benchmarks share one ability scale."""

    per_benchmark: bool = True
    overall: bool = True
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SolverConfig:
    """The penalties of the model and when its fit ends."""

    method: Literal["nodes", "paper"] = "nodes"
    sigma: float = _within(1.0, 0, above=True)
    lambda_ability: float | Literal["auto"] = _within("auto", 0)
    lambda_discrimination: float = _within(0.25, 0)
    lambda_easiness: float = _within(0.1, 0)
    tolerance: float = _within(1e-4, 1e-9)
    paper_tolerance: float = _within(1e-4, 0, above=True)
    objective_tolerance: float = _within(1e-9, 0)
    max_iterations: int = _within(500, 1)
    anderson_depth: int = _within(4, 0, 20)
    node_spacing: float = _within(0.2, 0, 2, above=True)
    min_nodes: int = _within(32, 16, 4096)
    max_nodes: int = _within(96, 16, 4096)
    partitions: int = _within(0, 0)
    warm_start: bool = True
    starts: int = _within(1, 1, 1000)
    seed: int = _within(20260511, 0)


@dataclass(frozen=True)
class RescoreConfig:
    """What is published beside the estimates, and when a model, item or scale is called thin."""

    level: float = _within(0.95, 0, 1, above=True, below=True)
    few_items: int = _within(10, 0)
    few_responses: int = _within(10, 0)
    min_items: int = _within(20, 1)
    disconnected: Literal["refuse", "publish"] = "refuse"
    claim_minutes: float = _within(30.0, 1)
    top: int = _within(20, 0)


@dataclass(frozen=True)
class LinkingConfig:
    """How the scales of a run are put on those of earlier runs; see docs/linking.md."""

    method: Literal["stocking-lord", "mean-sigma", "off"] = "stocking-lord"
    min_anchors: int = _within(20, 1)
    reference: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GateActions:
    """What each gate does when its limit is crossed."""

    models: Strictness = "fail"
    items: Strictness = "fail"
    responses: Strictness = "fail"
    coverage: Strictness = "fail"
    moved: Strictness = "fail"
    scales: Strictness = "fail"
    nulls: Strictness = "fail"


@dataclass(frozen=True)
class GatesConfig:
    """How far a night may be from the last published one before somebody has to look."""

    max_drop_models: float = _within(0.1, 0, 1)
    max_drop_items: float = _within(0.1, 0, 1)
    max_drop_responses: float = _within(0.1, 0, 1)
    max_coverage_drop: float = _within(0.1, 0, 1)
    max_moved: float = _within(0.2, 0, 1)
    moved_se: float = _within(3.0, 0, above=True)
    actions: GateActions = field(default_factory=GateActions)


@dataclass(frozen=True)
class RetentionConfig:
    """How long nights are kept."""

    keep_nights: int = _within(400, 0)
    keep_weekly: int = _within(0, 0)
    keep_monthly: int = _within(120, 0)
    keep_saved_nights: int = _within(14, 1)
    keep_failed_days: int = _within(30, 1)


@dataclass(frozen=True)
class SourceConfig:
    """One input of a night; the options mean what those of `cbmm-spark ingest` mean, an empty text: not given."""

    name: str = ""
    input: str = ""
    format: str = "auto"
    benchmark: str | Literal[""] = ""
    model: str | Literal[""] = ""
    items: str | Literal[""] = ""
    mapping: str | Literal[""] = ""
    optional: bool = False


@dataclass(frozen=True)
class NightlyConfig:
    """What `cbmm-spark nightly` reads, and when it gives up."""

    on_source_error: Literal["stop", "continue"] = "stop"
    skip_unchanged: bool = True
    metrics_file: str | Literal[""] = ""
    sources: tuple[SourceConfig, ...] = ()


@dataclass(frozen=True)
class MaintainConfig:
    """How long files that no current version needs are kept, and which files are too small."""

    vacuum_hours: int = _within(168, 168, 24 * 3660)
    small_file_mb: int = _within(64, 1, 1024)
    large_file_mb: int = _within(256, 1, 4096)


@dataclass(frozen=True)
class SimulateConfig:
    """The leaderboard history that `simulate` draws."""

    models: int = _within(400, 2)
    benchmarks: int = _within(5, 1)
    items: int = _within(3000, 1)
    start: str = "2025-05-01"
    months: int = _within(18, 1, 1200)
    perfect: int = _within(2, 0)
    hopeless: int = _within(2, 0)
    missing: float = _within(0.03, 0, 1, below=True)
    mechanism: Literal["mcar", "mar", "mnar"] = "mcar"
    not_run: float = _within(0.0, 0, 1, below=True)
    discrimination: Literal["lognormal", "uniform"] = "lognormal"
    uninformative: float = _within(0.08, 0, 1)
    duplicates: float = _within(0.002, 0, 0.5)
    miskeyed: float = _within(0.002, 0, 1)
    seed: int = _within(20260511, 0)


@dataclass(frozen=True)
class SparkConfig:
    """How Spark is started where it was not submitted."""

    master: str = "local[*]"
    driver_memory: str = "4g"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """Everything that can be set. The defaults are those of `conf/local.toml`."""

    warehouse: str = "warehouse"
    ingest: IngestConfig = field(default_factory=IngestConfig)
    pack: PackConfig = field(default_factory=PackConfig)
    scales: ScalesConfig = field(default_factory=ScalesConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    rescore: RescoreConfig = field(default_factory=RescoreConfig)
    linking: LinkingConfig = field(default_factory=LinkingConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    nightly: NightlyConfig = field(default_factory=NightlyConfig)
    maintain: MaintainConfig = field(default_factory=MaintainConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)

    def as_json(self) -> str:
        """The whole configuration as JSON with sorted keys: equal configurations give equal text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False)
