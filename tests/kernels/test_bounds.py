"""No penalty, or not on every parameter: bounds keep the estimates finite where the data do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, minimize

from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.kernels.items import LARGEST_A, LARGEST_B, LARGEST_THETA, LONGEST_STEP, Box, State, newton_step
from cbmm_spark.kernels.model import Penalty
from tests.kernels.layouts import blocks_of, drawn
from tests.oracles import PenalisedObjective, fit_lbfgsb

NODES_FIRST = LoopOptions(exact_below=0)
EXACT = LoopOptions(exact_below=10**12)
ZERO = Penalty(0.0, 0.0, 0.0)
BOTH_WAYS = pytest.mark.parametrize("options", [NODES_FIRST, EXACT], ids=["nodes first", "exact"])

Point = tuple[np.ndarray, np.ndarray, np.ndarray]


def fit(
    n: np.ndarray, k: np.ndarray, penalty: Penalty = ZERO, layout: str = "bits", **options: Any
) -> tuple[ScaleFit, Point]:
    """The fit, and its abilities and items; every model has responses."""
    blocks = blocks_of(n, k, layout, 32)
    found = fit_blocks(blocks, {"s": frozenset("b")}, n.shape[0], penalty, **options)["s"]
    items = [item_solution(block, found) for block in blocks]
    return found, (found.theta, np.concatenate([i.a for i in items]), np.concatenate([i.b for i in items]))


def with_constants(seed: int, n_models: int = 60, n_items: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """A perfect and a hopeless model, an item that everybody else solves and one that nobody else does."""
    n, k = drawn(n_models, n_items, seed)
    k[:, 0], k[:, 1] = 1.0, 0.0
    k[0], k[1] = 1.0, 0.0
    return n, k


def bounds_of(penalty: Penalty, n_models: int, n_items: int) -> np.ndarray:
    """Box of the fit, shape (n_models + 2 n_items, 2)."""
    free = np.inf
    theta, a, b = (
        bound if weight == 0.0 else free
        for bound, weight in (
            (LARGEST_THETA, penalty.ability), (LARGEST_A, penalty.discrimination), (LARGEST_B, penalty.easiness)
        )
    )  # fmt: skip
    low = np.repeat([-theta, 0.0, -b], [n_models, n_items, n_items])
    high = np.repeat([theta, a, b], [n_models, n_items, n_items])
    return np.column_stack([low, high])


def improved(n: np.ndarray, k: np.ndarray, found: ScaleFit, point: Point, penalty: Penalty) -> tuple[float, Point]:
    """What L-BFGS-B in the same box lowers the objective by, from our point, relative; and where it ends."""
    objective = PenalisedObjective(n, k, 1.0, (found.ridge.ability, found.ridge.discrimination, found.ridge.easiness))
    bounds = bounds_of(penalty, *n.shape)
    x = np.clip(np.concatenate(point), *bounds.T)
    here = objective(x)[0]
    assert found.objective == pytest.approx(here, rel=1e-8)
    scale = 1.0 / np.sqrt(objective.curvature(x))

    def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(u * scale)
        return value, gradient * scale

    options = {"maxcor": 30, "maxiter": 3000, "maxfun": 12_000, "ftol": 0.0, "gtol": 1e-10}
    end = minimize(scaled, x / scale, jac=True, method="L-BFGS-B", bounds=bounds / scale[:, None], options=options)
    theta, a, b = objective.split(end.x * scale)
    return (here - float(end.fun)) / abs(here), (theta, a, b)


def check_finite(found: ScaleFit, point: Point, penalty: Penalty = ZERO) -> None:
    assert found.converged
    check_bounded(found, point, penalty)


def check_bounded(found: ScaleFit, point: Point, penalty: Penalty) -> None:
    theta, a, _ = point
    assert np.isfinite(np.concatenate(point)).all()
    assert np.isfinite([found.objective, found.log_loss, found.kkt_residual, found.information.sum()]).all()
    assert a.min() >= 0.0
    low, high = bounds_of(penalty, theta.size, a.size).T
    assert (np.concatenate(point) >= low * (1 + 1e-15)).all()
    assert (np.concatenate(point) <= high * (1 + 1e-15)).all()
    accepted = np.array([r.objective for r in found.history if r.accepted])
    assert (np.diff(accepted) <= 1e-10 * np.abs(accepted[:-1])).all()


def check(n: np.ndarray, k: np.ndarray, found: ScaleFit, point: Point, penalty: Penalty = ZERO) -> None:
    check_finite(found, point, penalty)
    assert improved(n, k, found, point, penalty)[0] < 1e-8


def check_but_for_scale(n: np.ndarray, k: np.ndarray, found: ScaleFit, point: Point) -> None:
    """What is left to gain is a change of scale and origin: the models that are not at a bound keep their distances."""
    check_finite(found, point)
    left, (theta, _, _) = improved(n, k, found, point, ZERO)
    assert left < 5e-6
    inner = np.abs(point[0]) < LARGEST_THETA
    slope, origin = np.polyfit(point[0][inner], theta[inner], 1)
    assert slope > 0.0
    np.testing.assert_allclose(slope * point[0][inner] + origin, theta[inner], atol=1e-2 * theta[inner].std())


# ------------------------------------------------------------------------------------- no penalty at all
@BOTH_WAYS
@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_perfect_and_hopeless_models_and_constant_items(seed, options):
    n, k = with_constants(seed)
    found, point = fit(n, k, options=options)
    check_but_for_scale(n, k, found, point)
    assert (point[0][0] >= point[0]).all()
    assert (point[0][1] <= point[0]).all()
    assert found.models_at_bound >= 2
    errors = 1.0 / np.sqrt(np.maximum(found.information, 1e-300))
    assert min(errors[0], errors[1]) > np.median(errors)


@pytest.mark.parametrize("seed", [4, 7])
def test_nothing_is_left_to_gain(seed):
    n, k = with_constants(seed)
    check(n, k, *fit(n, k))


@pytest.mark.parametrize("layout", ["counts", "scores", "sparse_bits", "sparse_scores"])
def test_the_same_in_other_layouts(layout):
    n, k = with_constants(4, 50, 30)
    rng = np.random.default_rng(4)
    gaps = rng.random(n.shape) < 0.1
    n[gaps], k[gaps] = 0.0, 0.0
    found, point = fit(n, k, layout=layout)
    check_but_for_scale(n, k, found, point)
    assert (point[0][0] >= point[0]).all()


@pytest.mark.parametrize("place", ["items", "models"])
def test_only_items_or_only_models_are_constant(place):
    n, k = drawn(60, 40, seed=5)
    if place == "items":
        k[:, 0], k[:, 1] = 1.0, 0.0
    else:
        k[0], k[1] = 1.0, 0.0
    found, point = fit(n, k)
    check_but_for_scale(n, k, found, point)
    if place == "models":
        assert point[0].argmax() == 0
        assert point[0].argmin() == 1


@BOTH_WAYS
def test_without_constants_it_is_the_papers_estimate(options):
    n, k = drawn(300, 60, seed=6)
    assert 0 < k.mean(axis=1).min() < k.mean(axis=1).max() < 1
    assert 0 < k.mean(axis=0).min() < k.mean(axis=0).max() < 1
    found, point = fit(n, k, options=options)
    check(n, k, found, point)
    best = fit_lbfgsb(n, k)
    assert found.objective == pytest.approx(best.objective, rel=1e-8)
    assert np.corrcoef(found.theta, best.theta)[0, 1] > 0.999999
    assert (found.models_at_bound, found.items_at_bound) == (0, 0)


@pytest.mark.parametrize("seed", [1, 5])
def test_a_small_benchmark_without_penalty(seed):
    n, k = drawn(60, 40, seed=seed)
    assert 0 < k.mean(axis=1).min() < k.mean(axis=1).max() < 1
    check(n, k, *fit(n, k))


def test_an_item_at_its_bound_is_not_said_to_have_converged():
    """It gains by stretching all abilities, a little in every iteration: never said to have converged on the way."""
    n, k = drawn(60, 40, seed=2)
    found, point = fit(n, k)
    assert found.items_at_bound > 0
    assert not found.converged
    check_bounded(found, point, ZERO)
    assert improved(n, k, found, point, ZERO)[0] < 1e-3


def test_perfectly_ordered_answers_without_penalty():
    k = (np.linspace(0, 1, 20)[:, None] > np.linspace(0, 1, 32)[1:-1]).astype(float)
    found, point = fit(np.ones_like(k), k)
    check_finite(found, point)
    assert (np.diff(point[0]) >= 0).all()
    assert found.items_at_bound > 0


@pytest.mark.parametrize("answer", [0.0, 1.0])
def test_nothing_but_one_answer_without_penalty(answer):
    n = np.ones((10, 12))
    found, point = fit(n, n * answer)
    check_finite(found, point)
    assert found.log_loss < 1e-3


# ------------------------------------------------------------------------------------- one weight of three
@pytest.mark.parametrize(
    "penalty",
    [Penalty(0.0, 0.25, 0.1), Penalty(0.2, 0.0, 0.1), Penalty(0.2, 0.25, 0.0)],
    ids=["abilities free", "discriminations free", "easinesses free"],
)
@pytest.mark.parametrize("constants", [False, True], ids=["plain", "with constants"])
def test_one_weight_is_zero(penalty, constants):
    n, k = with_constants(7) if constants else drawn(60, 40, seed=7)
    found, point = fit(n, k, penalty)
    check(n, k, found, point, penalty)


# ------------------------------------------------------------------------------------- a step inside the box
BOXES = [Box(30.0, 40.0), Box(np.inf, 40.0), Box(30.0, np.inf), Box(np.inf, np.inf), Box(1.0, 0.5)]


@st.composite
def steps(draw) -> tuple[tuple[np.ndarray, np.ndarray], State, Box]:
    """Points in a box, at its edges too, with convex quadratics that want to leave it now and then."""
    box = draw(st.sampled_from(BOXES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, pull = 12, draw(st.sampled_from([0.1, 10.0, 300.0]))
    high_a, high_b = min(box.a, 30.0), min(box.b, 40.0)
    a, b = rng.uniform(0, high_a, size), rng.uniform(-high_b, high_b, size)
    a[:4], b[2:6] = [0.0, high_a, 0.0, high_a], [high_b, -high_b, -high_b, high_b]
    aa, bb = rng.lognormal(0, 1.5, (2, size))
    ab = rng.uniform(-0.95, 0.95, size) * np.sqrt(aa * bb)
    grad_a, grad_b = pull * rng.normal(size=(2, size)) * np.sqrt([aa, bb])
    return (a, b), State(grad_a, grad_b, aa, ab, bb), box


def brute(point, state: State, box: Box, j: int) -> tuple[np.ndarray, float]:
    """Minimum of item j's quadratic over the box, by bounded least squares."""
    hessian = np.array([[state.aa[j], state.ab[j]], [state.ab[j], state.bb[j]]])
    slope = np.array([state.grad_a[j], state.grad_b[j]])
    root = np.linalg.cholesky(hessian).T
    low = np.array([-point[0][j], -box.b - point[1][j]]) - 1e-13
    high = np.array([box.a - point[0][j], box.b - point[1][j]]) + 1e-13
    step = lsq_linear(root, -np.linalg.solve(root.T, slope), (low, high), method="bvls", tol=1e-14).x
    return step, float(slope @ step + 0.5 * step @ hessian @ step)


@given(steps())
@settings(max_examples=150, deadline=None)
def test_a_step_is_the_best_inside_the_box(problem):
    point, state, box = problem
    da, db, length = newton_step(*problem)
    assert (point[0] + da >= 0.0).all()
    assert (point[0] + da <= box.a + 1e-12).all()
    assert (np.abs(point[1] + db) <= box.b + 1e-12).all()
    for j in range(da.size):
        slope, hessian = [state.grad_a[j], state.grad_b[j]], [[state.aa[j], state.ab[j]], [state.ab[j], state.bb[j]]]
        if np.abs(np.linalg.solve(hessian, slope)).max() > LONGEST_STEP:
            continue  # steps so long are cut, box or not
        wanted, value = brute(point, state, box, j)
        own = state.grad_a[j] * da[j] + state.grad_b[j] * db[j]
        own += 0.5 * (state.aa[j] * da[j] ** 2 + state.bb[j] * db[j] ** 2) + state.ab[j] * da[j] * db[j]
        size = 1.0 + abs(value)
        assert own == pytest.approx(value, abs=1e-9 * size)
        np.testing.assert_allclose([da[j], db[j]], wanted, atol=1e-6 * np.sqrt(size))
        metric = state.aa[j] * da[j] ** 2 + 2 * state.ab[j] * da[j] * db[j] + state.bb[j] * db[j] ** 2
        assert length[j] == pytest.approx(np.sqrt(metric), rel=1e-9, abs=1e-12)


def test_where_nothing_is_penalised_the_box_is_closed():
    assert Box.of(0.0, 0.0) == Box(LARGEST_A, LARGEST_B)
    assert Box.of(0.1, 0.0) == Box(np.inf, LARGEST_B)
    assert Box.of(0.0, 0.1) == Box(LARGEST_A, np.inf)
    assert Box.of(0.1, 0.1).is_open
