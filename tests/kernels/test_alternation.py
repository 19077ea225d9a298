"""The whole fit in one process: against L-BFGS-B on the same objective, and against itself in other orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.kernels.initial import initial_abilities, warm_abilities
from cbmm_spark.kernels.model import Penalty
from tests.kernels.layouts import LAYOUTS, blocks_of, cells_of, drawn
from tests.oracles import OracleFit, fit_lbfgsb, load_matrix

NODES_FIRST = LoopOptions(exact_below=0)
EXACT = LoopOptions(exact_below=10**12)
TIGHT = LoopOptions(tolerance=1e-5, objective_tolerance=1e-14, max_iterations=400)


def fit(n: np.ndarray, k: np.ndarray, layout: str = "bits", items_per_block: int = 1000, **options: Any) -> ScaleFit:
    blocks = blocks_of(n, k, layout, items_per_block)
    return fit_blocks(blocks, {"s": frozenset(["b"])}, n.shape[0], **options)["s"]


def oracle(n: np.ndarray, k: np.ndarray, found: ScaleFit, sigma: float = 1.0, start: Any = None) -> OracleFit:
    """L-BFGS-B with the penalty of a fit (its items are divided by sigma, hence their weights times sigma squared)."""
    seen = found.models
    ridge = (found.ridge.ability, found.ridge.discrimination / sigma**2, found.ridge.easiness / sigma**2)
    return fit_lbfgsb(n[seen], k[seen], sigma, ridge, start=start)


def check_optimal(n: np.ndarray, k: np.ndarray, found: ScaleFit, sigma: float = 1.0, rel: float = 1e-8) -> None:
    assert found.converged
    assert found.objective <= oracle(n, k, found, sigma).objective * (1 + rel)
    assert found.kkt_residual < 1e-3
    check_monotone(found)


def check_monotone(found: ScaleFit) -> None:
    accepted = np.array([r.objective for r in found.history if r.accepted])
    assert (np.diff(accepted) <= 1e-10 * np.abs(accepted[:-1])).all()
    assert [r.iteration for r in found.history] == list(range(1, len(found.history) + 1))


def recomputed(n: np.ndarray, k: np.ndarray, found: ScaleFit, blocks: list[Block]) -> float:
    """F at the fit's abilities with its own items, from nothing but the cells."""
    items = [item_solution(block, found) for block in blocks]
    a, b = np.concatenate([i.a for i in items]), np.concatenate([i.b for i in items])
    z = np.outer(found.theta, a) + b
    n, k, ridge = n[found.models], k[found.models], found.ridge
    return float(
        (n * np.logaddexp(0, z) - k * z).sum()
        + 0.5 * (ridge.ability * found.theta @ found.theta + ridge.discrimination * a @ a + ridge.easiness * b @ b)
    )


# ------------------------------------------------------------------------------------- against L-BFGS-B
@pytest.mark.parametrize("options", [NODES_FIRST, EXACT], ids=["nodes first", "exact"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("observed", [1.0, 0.6], ids=["complete", "with gaps"])
def test_every_layout_reaches_the_optimum(layout, observed, options):
    n, k = drawn(90, 70, seed=1, observed=observed)
    found = fit(n, k, layout, 30, options=options)
    check_optimal(n, k, found)
    blocks = blocks_of(n, k, layout, 30)
    assert found.objective == pytest.approx(recomputed(n, k, found, blocks), rel=1e-9)
    assert found.log_loss * n.sum() < found.objective


@pytest.mark.parametrize("layout", ["counts", "scores", "sparse_scores"])
def test_repeated_attempts_and_partial_credit(layout):
    n, k = drawn(70, 50, seed=2, observed=0.8, attempts=4, fractional=layout != "counts")
    for options in (NODES_FIRST, EXACT):
        check_optimal(n, k, fit(n, k, layout, options=options))


@pytest.mark.parametrize("layout", ["counts", "scores"])
def test_hundreds_of_attempts_a_cell(layout):
    n, k = drawn(80, 60, seed=1, observed=0.9, attempts=900)
    check_optimal(n, k, fit(n, k, layout))


def test_hundreds_of_attempts_a_cell_in_sparse_cells():
    n, k = drawn(80, 60, seed=1, observed=0.9, attempts=900)
    check_optimal(n, k, fit(n, k, "sparse_scores"))


@pytest.mark.parametrize("shape", [(20, 300), (300, 20), (12, 12), (33, 400)], ids=str)
@pytest.mark.parametrize("options", [NODES_FIRST, EXACT], ids=["nodes first", "exact"])
def test_any_shape(shape, options):
    n, k = drawn(*shape, seed=3, observed=0.9)
    check_optimal(n, k, fit(n, k, options=options))


@pytest.mark.parametrize(
    "name", ["swebench_verified_history", "chembench", "swebench_pro", "bridge_multi_benchmark", "misguided_attention"]
)
def test_real_data(name):
    data = load_matrix(f"{name}.parquet")
    seen = data.attempts.any(axis=1)
    n, k = data.attempts[seen], data.successes[seen]
    layout = "bits" if (n <= 1).all() and np.isin(k, (0, 1)).all() else "scores"
    check_optimal(n, k, fit(n, k, layout, 256))


@pytest.mark.parametrize("layout", ["bits", "sparse_bits"])
def test_five_items_stay_finite(layout):
    data = load_matrix("lsat6.parquet")
    found = fit(data.attempts, data.successes, layout)
    check_optimal(data.attempts, data.successes, found)
    assert np.isfinite(found.theta).all()


def test_five_items_from_nodes():
    data = load_matrix("lsat6.parquet", 400)
    found = fit(data.attempts, data.successes, "bits", options=NODES_FIRST)
    check_optimal(data.attempts, data.successes, found)


@pytest.mark.parametrize("n_items", [5, 20])
def test_thousands_of_models_and_few_items(n_items):
    n, k = drawn(5000 if n_items == 5 else 20_000, n_items, seed=1)
    assert fit(n, k).converged


# ------------------------------------------------------------------------------------- temperature, penalty
@pytest.mark.parametrize("sigma", [0.25, 4.0])
def test_temperature_and_its_oracle(sigma):
    n, k = drawn(80, 60, seed=4, observed=0.8)
    check_optimal(n, k, fit(n, k, sigma=sigma), sigma)


def test_temperature_only_rescales():
    """With the penalty of a and b divided by sigma squared, nothing but their scale changes."""
    n, k = drawn(80, 60, seed=4, observed=0.8)
    plain = fit(n, k, penalty=Penalty(0.2, 0.25, 0.1), options=TIGHT)
    scaled = fit(n, k, penalty=Penalty(0.2, 0.25 / 16, 0.1 / 16), sigma=4.0, options=TIGHT)
    assert scaled.objective == pytest.approx(plain.objective, rel=1e-12)
    np.testing.assert_allclose(scaled.theta, plain.theta, atol=1e-6)


@pytest.mark.parametrize("penalty", [Penalty(0.05), Penalty(3.0, 1.0, 0.5), Penalty(None, 0.02, 0.01)], ids=str)
def test_a_penalty_given_is_the_one_used(penalty):
    n, k = drawn(70, 60, seed=5, observed=0.8)
    found = fit(n, k, penalty=penalty)
    meant = penalty.discrimination * 60 / 70 if penalty.ability is None else penalty.ability
    assert (found.ridge.ability, found.ridge.discrimination) == (pytest.approx(meant), penalty.discrimination)
    check_optimal(n, k, found)


def test_the_balanced_penalty_counts_what_has_responses():
    n, k = drawn(50, 40, seed=6)
    n[10:15], n[:, 30:] = 0.0, 0.0
    found = fit(n, k * n)
    assert found.models.size == 45
    assert found.counts.n_items == 30
    assert found.ridge.ability == pytest.approx(0.25 * 30 / 45)


# ------------------------------------------------------------------------------------- order, layout, start
def test_both_ways_end_at_the_same_abilities():
    n, k = drawn(300, 200, seed=7, observed=0.7)
    nodes, exact = (fit(n, k, options=o) for o in (NODES_FIRST, EXACT))
    assert {r.mode for r in nodes.history} >= {"nodes", "late"}
    assert "nodes" not in {r.mode for r in exact.history}
    np.testing.assert_allclose(nodes.theta, exact.theta, atol=2e-4)
    assert nodes.objective == pytest.approx(exact.objective, rel=1e-9)


def test_order_and_blocks_play_no_part():
    n, k = drawn(83, 75, seed=8, observed=0.8)
    rng = np.random.default_rng(0)
    base = fit(n, k, options=TIGHT).theta
    models, items = rng.permutation(83), rng.permutation(75)
    assert base.std() > 0.3
    np.testing.assert_allclose(fit(n[models], k[models], options=TIGHT).theta, base[models], atol=1e-6)
    np.testing.assert_allclose(fit(n[:, items], k[:, items], options=TIGHT).theta, base, atol=1e-6)
    for size in (1, 7, 20):
        np.testing.assert_allclose(fit(n, k, "bits", size, options=TIGHT).theta, base, atol=1e-6)
    for layout in LAYOUTS[1:]:
        np.testing.assert_allclose(fit(n, k, layout, 20, options=TIGHT).theta, base, atol=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_start_ends_at_the_same_optimum(seed):
    n, k = drawn(120, 100, seed=9, observed=0.9)
    start = {
        "s": np.abs(np.random.default_rng(seed).normal(size=120)) * np.where(k.sum(1) > np.median(k.sum(1)), 1, -1)
    }
    found, base = fit(n, k, start=start, options=TIGHT), fit(n, k, options=TIGHT)
    np.testing.assert_allclose(found.theta, base.theta, atol=1e-5)
    assert found.objective == pytest.approx(base.objective, rel=1e-10)


def test_a_start_at_the_optimum_is_left_at_once():
    n, k = drawn(90, 70, seed=10)
    first = fit(n, k, options=TIGHT)
    start = np.zeros(90)
    start[first.models] = first.theta
    again = fit(n, k, start={"s": start})
    assert again.iteration <= 3
    np.testing.assert_allclose(again.theta, first.theta, atol=1e-4)


def test_several_scales_are_fitted_as_each_alone():
    one, two = drawn(60, 30, seed=11, observed=0.8), drawn(60, 40, seed=12, observed=0.7)
    for part in (one, two):
        part[1][...] *= part[0]
    one[0][40:], one[1][40:], two[0][:10], two[1][:10] = 0.0, 0.0, 0.0, 0.0  # most models ran one benchmark only
    blocks = blocks_of(*one, "bits", 16, "x") + blocks_of(*two, "bits", 16, "y")
    scales = {"overall": frozenset("xy"), "x": frozenset("x"), "y": frozenset("y")}
    together = fit_blocks(blocks, scales, 60)
    assert [together[s].models.size for s in scales] == [60, 40, 50]
    for name, benchmarks in scales.items():
        alone = fit_blocks(blocks, {name: benchmarks}, 60)[name]
        np.testing.assert_array_equal(together[name].theta, alone.theta)
        assert together[name].iteration == alone.iteration
    both = np.concatenate([one[0], two[0]], axis=1), np.concatenate([one[1], two[1]], axis=1)
    check_optimal(*both, together["overall"])


def test_the_listener_hears_every_iteration():
    n, k = drawn(40, 30, seed=13)
    heard: list[tuple[int, float]] = []
    found = fit(n, k, listener=lambda record, theta: heard.append((record.iteration, float(theta.size))))
    assert [i for i, _ in heard] == list(range(1, found.iteration + 1))
    assert {size for _, size in heard} == {40.0}


def test_too_few_iterations_are_not_called_converged():
    n, k = drawn(60, 50, seed=14)
    found = fit(n, k, options=LoopOptions(max_iterations=2))
    assert not found.converged
    assert found.iteration == 2


def test_a_smaller_tolerance_than_the_default_is_met():
    n, k = drawn(83, 75, seed=8, observed=0.8)
    found = fit(n, k, options=LoopOptions(tolerance=1e-6, objective_tolerance=1e-12, max_iterations=100))
    assert found.converged


def test_without_acceleration_it_takes_longer_to_the_same_end():
    n, k = drawn(40, 60, seed=15, observed=0.5)
    plain, fast = (fit(n, k, options=LoopOptions(anderson_depth=d)) for d in (0, 4))
    assert fast.iteration < plain.iteration
    check_optimal(n, k, plain)
    check_optimal(n, k, fast)


# ------------------------------------------------------------------------------------- warm starts
@pytest.mark.parametrize("options", [NODES_FIRST, EXACT], ids=["nodes first", "exact"])
@pytest.mark.parametrize("new", [0, 3, 40])
def test_an_earlier_fit_saves_iterations_and_changes_nothing(new, options):
    n, k = drawn(120, 90, seed=19, observed=0.9)
    k *= n
    earlier = fit(n[new:], k[new:], options=options)
    known = np.full(120, np.nan)
    known[new:] = earlier.theta
    cold, warm = fit(n, k, options=options), fit(n, k, options=options, known={"s": known})
    check_optimal(n, k, warm)
    np.testing.assert_allclose(warm.theta, cold.theta, atol=1e-4 * cold.theta.std())
    assert warm.iteration <= {0: 2, 3: cold.iteration - 1, 40: cold.iteration}[new]


def test_new_models_are_placed_by_their_accuracy_on_the_earlier_scale():
    n, k = drawn(200, 150, seed=20)
    found = fit(n, k)
    known = 3.0 * found.theta - 7.0
    known[::4] = np.nan
    start = warm_abilities(found.counts, known)
    old = np.isfinite(known)
    np.testing.assert_array_equal(start[old], known[old])
    error = start[~old] - (3.0 * found.theta[~old] - 7.0)
    assert np.abs(error).max() < 3.0 * found.theta.std()
    assert error.std() < 0.6 * found.theta.std()


@pytest.mark.parametrize("known", ["nothing", "two models", "upside down"])
def test_where_an_earlier_fit_says_nothing_accuracy_starts(known):
    n, k = drawn(40, 30, seed=21)
    counts = fit(n, k).counts
    values = np.full(40, np.nan)
    if known == "two models":
        values[:2] = [0.3, -0.4]
    if known == "upside down":
        values = -initial_abilities(counts)
    np.testing.assert_array_equal(warm_abilities(counts, values), initial_abilities(counts))


# ------------------------------------------------------------------------------------- degenerate input
@pytest.mark.parametrize("shape", [(1, 30), (1, 3), (1, 1), (2, 1), (30, 1), (50, 2)], ids=str)
@pytest.mark.parametrize("options", [NODES_FIRST, EXACT], ids=["nodes first", "exact"])
def test_the_smallest_scales_converge_and_are_finite(shape, options):
    n, k = drawn(*shape, seed=3)
    found = fit(n, k, options=options)
    assert found.converged
    assert np.isfinite(found.theta).all()
    assert np.isfinite([found.objective, found.log_loss, found.kkt_residual]).all()


@pytest.mark.parametrize("answer", [0.0, 1.0])
def test_nothing_but_one_answer_is_finite(answer):
    n = np.ones((10, 12))
    found = fit(n, n * answer)
    assert found.converged
    assert np.isfinite(found.theta).all()
    assert np.ptp(found.theta) < 1e-6


def test_identical_models_get_identical_abilities():
    n, k = drawn(40, 60, seed=3)
    k[:] = k[0]
    found = fit(n, k)
    assert found.converged
    assert np.ptp(found.theta) < 1e-6


def test_perfectly_ordered_answers():
    k = (np.linspace(0, 1, 40)[:, None] > np.linspace(0, 1, 62)[1:-1]).astype(float)
    found = fit(np.ones_like(k), k)
    check_optimal(np.ones_like(k), k, found)
    assert (np.diff(found.theta) > 0).all()


def test_a_tenth_observed():
    n, k = drawn(60, 200, seed=17, observed=0.1)
    for layout in ("bits", "sparse_bits"):
        found = fit(n, k, layout)
        assert found.converged
        items = item_solution(blocks_of(n, k)[0], found)
        end = oracle(n, k, found, start=(found.theta, items.a, items.b))  # several optima are possible, this is one
        assert end.objective == pytest.approx(found.objective, rel=1e-8)


def test_columns_are_models_whatever_cells_hold_them():
    """A block whose models are not consecutive puts its sums where they belong."""
    n, k = drawn(50, 40, seed=18)
    n[1::2, :20] = 0.0
    k *= n
    models = np.flatnonzero(n[:, :20].any(axis=1))
    blocks = [
        Block("b", cells_of(n[models, :20], k[models, :20], "bits"), models),
        Block("b", cells_of(n[:, 20:], k[:, 20:], "bits"), np.arange(50)),
    ]
    found = fit_blocks(blocks, {"s": frozenset(["b"])}, 50)["s"]
    check_optimal(n, k, found)


UNLIKE = [
    {"penalty": Penalty(None, 1e3, 0.1)}, {"penalty": Penalty(1e3, 1e3, 0.1)}, {"sigma": 300.0}, {"sigma": 1e4},
    {"penalty": Penalty(1e-6, 0.25, 0.1)}, {"sigma": 0.01},
]  # fmt: skip


@pytest.mark.parametrize("penalty", [None, Penalty(0.0, 0.0, 0.0)], ids=["default", "none"])
@pytest.mark.parametrize("earlier", UNLIKE, ids=str)
def test_a_night_of_another_configuration_does_no_harm(earlier, penalty):
    """Abilities that collapsed, or ran away, are no start: they would be a saddle, or beyond the bounds."""
    n, k = drawn(150, 200, seed=5, observed=0.9)
    k *= n
    known = fit(n, k, **earlier).theta
    cold, warm = fit(n, k, penalty=penalty), fit(n, k, penalty=penalty, known={"s": known})
    assert warm.converged
    assert warm.objective == pytest.approx(cold.objective, rel=1e-8)


@pytest.mark.parametrize("change", [lambda t: t + 100.0, lambda t: t * 1e3, lambda t: t * 0.0, lambda t: -t])
def test_any_earlier_abilities_end_at_the_optimum(change):
    n, k = drawn(150, 200, seed=5, observed=0.9)
    k *= n
    for penalty in (None, Penalty(0.0, 0.0, 0.0)):
        cold = fit(n, k, penalty=penalty)
        warm = fit(n, k, penalty=penalty, known={"s": change(cold.theta)})
        assert warm.converged
        assert warm.objective == pytest.approx(cold.objective, rel=1e-8)


# ------------------------------------------------------------------------------------- starts without a direction
def opposite() -> np.ndarray:
    k = np.zeros((100, 40))
    k[:50, :20] = k[50:, 20:] = 1.0
    return k


@pytest.mark.parametrize("kind", ["opposite groups", "circulant", "all wrong", "all correct"])
def test_models_of_one_accuracy_are_no_saddle(kind):
    ring = np.arange(60)
    k = {
        "opposite groups": opposite(),
        "circulant": (((ring[:, None] - ring) % 60) < 30).astype(float),
        "all wrong": np.zeros((20, 40)),
        "all correct": np.ones((20, 40)),
    }[kind]
    found = fit(np.ones_like(k), k)
    check_monotone(found)
    assert found.converged
    starts = [np.random.default_rng(seed).standard_normal(k.shape[0]) for seed in range(3)]
    others = [fit(np.ones_like(k), k, start={"s": start}).objective for start in starts]
    assert found.objective <= np.median(others) * (1 + 1e-6)


@pytest.mark.parametrize("tolerance", [1e-7, 1e-8, 1e-9])
def test_tolerances_below_rounding_of_items_are_met(tolerance):
    n, k = drawn(150, 200, seed=5, observed=0.9)
    found = fit(n, k * n, options=LoopOptions(tolerance=tolerance, max_iterations=60))
    assert found.converged
    assert found.ability_residual <= tolerance
