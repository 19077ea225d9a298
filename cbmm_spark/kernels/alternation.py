"""The outer loop: alternate, gauge, accelerate, stop. Holds theta and nothing else that matters.

It does not know where a pass is computed: `run_pass` is given. Source: method.md sections 5 and 6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cbmm_spark.kernels.aggregate import EXACT_RESIDUAL, Mode, ModelResult, ScaleTask, Totals
from cbmm_spark.kernels.anderson import Anderson
from cbmm_spark.kernels.cells import ItemKey
from cbmm_spark.kernels.components import component_numbers
from cbmm_spark.kernels.counts import Counts
from cbmm_spark.kernels.exact import ITEM_TOLERANCE
from cbmm_spark.kernels.initial import initial_abilities, warm_abilities
from cbmm_spark.kernels.items import LARGEST_THETA
from cbmm_spark.kernels.model import F64, Index, Items, Ridge, best_gauge, standard_gauge
from cbmm_spark.kernels.nodes import Nodes, make_nodes

RELATIVE_ROUNDING = 1e-12
"""Two objectives that differ by less than this, relatively, are equal."""

NODE_ITEMS = 100
"""Items below which a scale is fitted exactly from the start: few items grow steep, and nodes cannot follow them."""

NODE_ROUNDING = 1e-7
"""The same for objectives evaluated at nodes in float32."""

NODE_TOLERANCE = 1e-6
"""Relative node error above which the grid is refined."""

REFINED_TABLE = 2_000_000
"""Entries (models x nodes) up to which a grid may be refined beyond `max_nodes`, as steep items need it."""

WARM_SHARE = 0.9
"""Share of models with an earlier ability from which on a fit begins with exact iterations."""

SWITCH_CHANGE = 2e-3
"""Change of ability, in standard errors, below which iterations leave the nodes: the next, exact one ends the fit."""

COARSE, COARSE_CHANGE = 1.5, 0.1
"""Factor of the spacing of nodes while some ability still changes by more than so many standard errors."""

ITEM_SHARE, FIRST_RESIDUAL = 1e-3, 1e-2
"""Residual to which items are solved on the nodes, as a share of how far abilities still move; its largest value."""

ITEM_FLOOR = 1e-8
"""Residual, in standard errors, below which an item's own optimum is rounding, whatever tolerance is asked for."""

SWITCH_FALL = 3e-8
"""Relative fall of the objective below which iterations leave the nodes: near the error of the nodes themselves."""


@dataclass(frozen=True)
class LoopOptions:
    """Settings of the loop; see `[solver]` in the configuration."""

    tolerance: float = 1e-4
    objective_tolerance: float = 1e-9
    max_iterations: int = 500
    anderson_depth: int = 4
    node_spacing: float = 0.2
    min_nodes: int = 32
    max_nodes: int = 96
    exact_below: int = 1_000_000


@dataclass(frozen=True)
class IterationRecord:
    """One accepted or refused iteration, as written to `run_iterations`."""

    scale: str
    iteration: int
    mode: str
    objective: float
    max_ability_change: float
    seconds: float
    accepted: bool


@dataclass
class ScalePass:
    """What a pass returns for one scale: the model stage's result for all models, and the totals over items."""

    models: ModelResult
    totals: Totals


RunPass = Callable[[Sequence[ScaleTask]], dict[str, ScalePass]]
Listener = Callable[[IterationRecord, F64], None]


@dataclass
class ScaleFit:
    """State and result of one scale.

    Attributes
    ----------
    models
        Positions of the models with responses on this scale among all models, shape (N,).
    theta
        Their abilities, shape (N,), in the balanced gauge of the ridge.
    counts
        Their counts.
    objective, log_loss
        F at theta with its own items, and the mean loss per attempt; exact when converged.
    ability_residual, item_residual
        KKT residuals in standard errors.
    node_error
        Objective at the nodes minus exact objective, relative.
    information
        Fisher information of every model, without ridge.
    items
        Item parameters, where they are not the optimum for theta that they are otherwise computed as.
    """

    name: str
    benchmarks: frozenset[str]
    ridge: Ridge
    models: Index
    counts: Counts
    theta: F64
    nodes: Nodes
    mode: Mode
    iteration: int = 0
    converged: bool = False
    objective: float = np.inf
    log_loss: float = np.nan
    ability_residual: float = np.nan
    item_residual: float = np.nan
    node_error: float = 0.0
    change: float = np.inf
    information: F64 = field(default_factory=lambda: np.zeros(0))
    history: list[IterationRecord] = field(default_factory=list)
    items: Mapping[ItemKey, Items] | None = None
    items_at_bound: int = 0

    @property
    def models_at_bound(self) -> int:
        """Models whose ability has no penalty and stands at its bound."""
        if self.ridge.ability > 0.0 or self.items is not None:  # the paper's recurrence, which has items, has no bounds
            return 0
        return int(np.count_nonzero(np.abs(self.theta) >= LARGEST_THETA))

    @property
    def components(self) -> Index:
        """Number of the connected component of every model, from 1, shape (N,)."""
        return component_numbers(self.counts.labels)

    @property
    def kkt_residual(self) -> float:
        """The larger of the two residuals, in standard errors."""
        return max(self.ability_residual, self.item_residual)


def start_scale(
    name: str,
    benchmarks: frozenset[str],
    counts: Counts,
    ridge: Ridge,
    options: LoopOptions,
    theta: F64 | None = None,
    known: F64 | None = None,
) -> ScaleFit:
    """Prepare a scale for the loop: abilities from accuracy (or as given), nodes, mode.

    Parameters
    ----------
    counts
        Of all models, shape (M,); at least one model must have responses.
    theta
        Start for all models, shape (M,); from accuracy where not given.
    known
        Abilities of an earlier fit to start from instead, shape (M,), NaN for models it did not have.
    """
    models = np.flatnonzero(counts.attempts > 0)
    own = counts.of(models)
    if theta is not None:
        start = theta[models]
    else:
        start = initial_abilities(own) if known is None else warm_abilities(own, known[models])
        if known is not None and min(ridge.ability, ridge.discrimination, ridge.easiness) <= 0.0:
            # Bounds hold where no penalty does, in the gauge of the start, which has mean 0 and spread 1.
            start = np.clip(standard_gauge(start).abilities(start), -LARGEST_THETA, LARGEST_THETA)
    small = counts.cells <= options.exact_below or counts.n_items < NODE_ITEMS
    near = known is not None and np.count_nonzero(np.isfinite(known[models])) >= WARM_SHARE * models.size
    mode: Mode = "exact" if small or near else "nodes"
    spacing = options.node_spacing * (COARSE if mode == "nodes" else 1.0)
    nodes = make_nodes(start, spacing, options.min_nodes, options.max_nodes)
    return ScaleFit(name, benchmarks, ridge, models, own, start, nodes, mode)


class _Driver:
    """Moves one scale from pass to pass."""

    def __init__(self, fit: ScaleFit, options: LoopOptions) -> None:
        self.fit, self.options = fit, options
        self.plain: F64 | None = None  # where to go instead when an accelerated step is refused
        self.spacing = options.node_spacing
        self.is_coarse = fit.mode == "nodes"
        self.steepest = 0.0
        self.tables_fail = False  # a plain step from the tables raised the objective: from then on by Newton steps only
        self.measured_by: Mode = fit.mode  # how the last accepted objective was evaluated
        self.most_nodes = max(options.max_nodes, REFINED_TABLE // max(fit.theta.size, 1))
        self.accelerator = Anderson(options.anderson_depth)
        self.trial = fit.theta
        self.previous = np.inf

    def task(self) -> ScaleTask:
        fit = self.fit
        items = min(ITEM_TOLERANCE, max(0.1 * self.options.tolerance, ITEM_FLOOR))
        nodes = EXACT_RESIDUAL
        if fit.mode == "nodes":
            nodes = min(max(ITEM_SHARE * fit.change, EXACT_RESIDUAL), FIRST_RESIDUAL)
        return ScaleTask(
            fit.name, fit.benchmarks, fit.models, self.trial, fit.nodes, fit.ridge, fit.mode,
            item_tolerance=items, steepest=self.steepest, node_tolerance=nodes,
        )  # fmt: skip

    def take(self, result: ScalePass, seconds: float) -> IterationRecord:
        fit, options = self.fit, self.options
        fit.iteration += 1
        square = float(self.trial @ self.trial)
        objective = result.totals.loss + result.totals.penalty + 0.5 * fit.ridge.ability * square
        if self._rises(objective):
            fit.converged = self._stands_still()
            self._refuse()
            return self._record(fit.mode, fit.objective, fit.change, seconds, accepted=False)
        fall = (fit.objective - objective) / max(abs(objective), 1e-300)
        mode = fit.mode
        if self.measured_by == "nodes" and mode != "nodes":
            self._correct_history(result.totals.node_error)
        self.measured_by, self.steepest = mode, result.totals.steepest
        fit.theta, fit.objective = self.trial, objective
        fit.log_loss = result.totals.loss / max(float(fit.counts.attempts.sum()), 1.0)
        fit.information, fit.item_residual = result.models.information, result.totals.residual
        fit.items_at_bound = int(result.totals.at_bound)
        fit.ability_residual = float(result.models.residual.max(initial=0.0))
        fit.node_error = result.totals.node_error / max(abs(objective), 1e-300)
        image = self._gauged(result)
        weight = np.sqrt(np.maximum(fit.information + fit.ridge.ability, 1e-300))
        step = image - fit.theta
        fit.change = float((np.abs(step) * weight).max(initial=0.0))
        record = self._record(mode, objective, fit.change, seconds, accepted=True)
        if self._stands_still() and abs(fall) <= options.objective_tolerance:
            fit.converged = True
            return record
        self._advance(image, step, weight, fall)
        return record

    def _stands_still(self) -> bool:
        """Whether neither abilities nor items have anywhere to go from the last accepted point, measured exactly.

        Where that holds and a next step is refused, what the objective could still fall by is below its rounding.
        """
        fit, tolerance = self.fit, self.options.tolerance
        still = fit.change <= tolerance and fit.ability_residual <= tolerance
        return self.measured_by != "nodes" and still and fit.item_residual <= max(tolerance, 2.0 * ITEM_FLOOR)

    def _correct_history(self, node_error: float) -> None:
        """Take the node error, known from the first exact iteration on, off the objectives recorded before."""
        fit = self.fit
        fit.history = [replace(record, objective=record.objective - node_error) for record in fit.history]

    def _rises(self, objective: float) -> bool:
        """Whether the objective is above the last accepted one by more than it can be known."""
        if self.measured_by == "nodes" and self.fit.mode != "nodes" and self.plain is None:
            return False  # the first exact objective has nothing exact to be compared with; from here on none may rise
        known = NODE_ROUNDING if self.measured_by == "nodes" else RELATIVE_ROUNDING
        return not objective <= self.fit.objective + known * abs(self.fit.objective)

    def _refuse(self) -> None:
        """Go back: to the plain image where the step was accelerated, else half way to the last accepted abilities.

        Every model's own step points downhill (its sign is exact), so halving ends.
        """
        if self.plain is not None:
            self.trial, self.plain = self.plain, None
        else:
            self.trial = 0.5 * (self.trial + self.fit.theta)
            if self.fit.mode == "exact":
                self.tables_fail, self.fit.mode = True, "late"
        self.accelerator.reset()
        if self.fit.mode == "nodes":
            self._fine_nodes()
            self.fit.mode = "exact"  # nodes that cannot see where the objective falls are of no use any more

    def _fine_nodes(self) -> None:
        if self.is_coarse:
            options, self.is_coarse = self.options, False
            self.fit.nodes = make_nodes(self.trial, self.spacing, options.min_nodes, self.most_nodes)

    def _gauged(self, result: ScalePass) -> F64:
        fit = self.fit
        image = result.models.theta
        totals = result.totals
        if min(fit.ridge.ability, fit.ridge.discrimination, fit.ridge.easiness) <= 0.0:
            return image  # bounds hold in the gauge of the start; no penalty prefers another one
        gauge = best_gauge(
            float(image.sum()), float(image @ image), image.size, totals.a_square, totals.ab_sum, fit.ridge
        )
        return gauge.abilities(image)

    def _advance(self, image: F64, step: F64, weight: F64, fall: float) -> None:
        fit, options = self.fit, self.options
        complete = fit.counts.cells == fit.models.size * fit.counts.n_items
        if fit.mode == "nodes" and (fit.change <= SWITCH_CHANGE or (fall <= SWITCH_FALL and not complete)):
            fit.mode = "exact"
        spacing = float(fit.nodes.slope(np.array([0.5 * (fit.nodes.count - 1)]))[0])
        if fit.mode == "exact":
            if float(np.abs(step).max(initial=0.0)) < 0.25 * spacing:
                fit.mode = "late"
        elif fit.mode == "late" and not self.tables_fail and float(np.abs(step).max(initial=0.0)) > 0.5 * spacing:
            fit.mode = "exact"
        accelerated = self.accelerator.propose(fit.theta, step, weight)
        if accelerated is not None and fit.ridge.ability <= 0.0:
            accelerated = np.clip(accelerated, -LARGEST_THETA, LARGEST_THETA)
        self.plain, self.trial = (None, image) if accelerated is None else (image, accelerated)
        if fit.mode != "late" and abs(fit.node_error) > NODE_TOLERANCE and fit.nodes.count < self.most_nodes:
            self.spacing *= 0.5
            self.is_coarse = False
            fit.nodes = make_nodes(self.trial, self.spacing, options.min_nodes, self.most_nodes)
        if fit.change <= COARSE_CHANGE or fit.mode != "nodes":
            self._fine_nodes()
        low, high = fit.nodes.inner
        if self.trial.min() < low or self.trial.max() > high:
            spacing = self.spacing * (COARSE if self.is_coarse else 1.0)
            fit.nodes = make_nodes(self.trial, spacing, options.min_nodes, self.most_nodes)

    def _record(self, mode: str, objective: float, change: float, seconds: float, *, accepted: bool) -> IterationRecord:
        record = IterationRecord(self.fit.name, self.fit.iteration, mode, objective, change, seconds, accepted)
        self.fit.history.append(record)
        return record


def alternate(
    fits: Sequence[ScaleFit], run_pass: RunPass, options: LoopOptions, listener: Listener | None = None
) -> None:
    """Run the loop until every scale has converged or used its iterations; results are left in `fits`.

    Parameters
    ----------
    fits
        From `start_scale`.
    run_pass
        Computes one pass for the scales that are still running.
    options
        Settings.
    listener
        Called after every iteration with its record and the theta to continue from (shape (M,)).
    """
    drivers = [_Driver(fit, options) for fit in fits]
    while True:
        active = [d for d in drivers if not d.fit.converged and d.fit.iteration < options.max_iterations]
        if not active:
            return
        began = time.perf_counter()
        results = run_pass([d.task() for d in active])
        seconds = time.perf_counter() - began
        for driver in active:
            record = driver.take(results[driver.fit.name], seconds)
            if listener is not None:
                listener(record, driver.trial)
