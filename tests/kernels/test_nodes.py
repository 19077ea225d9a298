"""Ability nodes: what is interpolated, how exactly, and which grids odd abilities give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cbmm_spark.kernels.nodes import Nodes, horner, local_weights, make_nodes, monomials, weight_matrix, window_start

abilities = arrays(np.float64, st.integers(1, 60), elements=st.floats(-30, 30, allow_subnormal=False))


def interpolated(nodes: Nodes, f, theta: np.ndarray) -> np.ndarray:
    start, weights = local_weights(nodes, theta)
    values = f(nodes.abilities)
    return (values[start[:, None] + np.arange(weights.shape[1])] * weights).sum(axis=1)


@given(abilities, st.sampled_from([0.1, 0.2, 0.5, 2.0]), st.sampled_from([(8, 12), (12, 40), (32, 96), (64, 64)]))
@settings(max_examples=100, deadline=None)
def test_every_grid_covers_its_abilities_and_every_row_of_weights_sums_to_one(theta, spacing, bounds):
    nodes = make_nodes(theta, spacing, *bounds)
    t = nodes.abilities
    assert t.size == nodes.count
    assert bounds[0] <= nodes.count <= bounds[1]
    assert np.isfinite(t).all()
    assert (np.diff(t) > 0).all()
    assert t[0] < theta.min()
    assert t[-1] > theta.max()
    start, weights = local_weights(nodes, theta)
    assert (start >= 0).all()
    assert (start + weights.shape[1] <= nodes.count).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    matrix = weight_matrix(nodes, theta)
    assert matrix.shape == (theta.size, nodes.count)
    np.testing.assert_allclose(matrix.sum(axis=1, dtype=np.float64), 1.0, rtol=0, atol=2e-6)
    numbers = matrix.astype(float) @ np.arange(nodes.count)  # a polynomial in u, hence exact on any grid
    np.testing.assert_allclose(numbers, nodes.positions(theta), atol=2e-6 * nodes.count)


def test_abilities_are_where_interpolation_is_central():
    theta = np.random.default_rng(0).normal(size=400)
    nodes = make_nodes(theta, 0.2, 32, 96)
    low, high = nodes.inner
    assert low < theta.min()
    assert theta.max() < high


def test_polynomials_of_degree_seven_are_reproduced():
    rng = np.random.default_rng(1)
    theta = rng.normal(0.4, 1.3, 200)
    nodes = make_nodes(theta, 0.5, 16, 96)
    for degree in range(8):
        coefficients = rng.normal(size=degree + 1)

        def f(t, c=coefficients):
            return np.polynomial.polynomial.polyval(np.arcsinh((t - nodes.centre) / nodes.width), c)

        np.testing.assert_allclose(interpolated(nodes, f, theta), f(theta), atol=1e-11)

    def eighth(t):
        return np.arcsinh((t - nodes.centre) / nodes.width) ** 8

    assert np.abs(interpolated(nodes, eighth, theta) - eighth(theta)).max() > 1e-9  # not more than promised


@pytest.mark.parametrize("steepness", [1.0, 2.0, 4.0])
def test_the_error_falls_with_the_eighth_power_of_the_spacing(steepness):
    theta = np.random.default_rng(2).normal(size=2000)

    def softplus(t):
        return np.logaddexp(0.0, steepness * t - 0.3)

    errors = [
        np.abs(interpolated(make_nodes(theta, h, 8, 1000), softplus, theta) - softplus(theta)).max()
        for h in (0.4, 0.2, 0.1)
    ]
    assert errors[0] > 30 * errors[1]
    assert errors[1] > 30 * errors[2]
    if steepness == 1.0:
        assert errors[1] < 1e-8


@pytest.mark.parametrize("outlier", [8.0, 20.0, 50.0])
def test_an_outlier_lengthens_the_grid_and_does_not_coarsen_it(outlier):
    theta = np.random.default_rng(3).normal(size=500)
    without, with_it = (make_nodes(t, 0.2, 32, 96) for t in (theta, np.append(theta, outlier)))

    def gap(nodes: Nodes) -> float:
        return float(np.diff(nodes.abilities)[np.searchsorted(nodes.abilities, 0.0)])

    assert gap(with_it) < 1.15 * gap(without)
    assert with_it.count - without.count < 60
    assert with_it.abilities[-1] > outlier


def test_a_grid_that_would_need_too_many_nodes_keeps_its_range():
    theta = np.append(np.random.default_rng(3).normal(size=500), 1e6)
    nodes = make_nodes(theta, 0.05, 32, 40)
    assert nodes.count == 40
    assert nodes.abilities[0] < theta.min()
    assert nodes.abilities[-1] > 1e6


@pytest.mark.parametrize(
    "theta",
    [[0.7], [0.7, 0.7, 0.7], [-1.0, 1.0], [1e-9, 0.0], [0.0] * 99 + [5.0], [-3.0, -3.0, 2.0]],
    ids=["one", "identical", "two", "nearly identical", "all but one", "few"],
)
def test_few_and_equal_models_have_a_usable_grid(theta):
    theta = np.array(theta)
    nodes = make_nodes(theta, 0.2, 32, 96)
    assert 32 <= nodes.count <= 96
    assert (np.diff(nodes.abilities) > 0).all()

    def f(t):
        return np.logaddexp(0.0, 1.2 * t + 0.4)

    np.testing.assert_allclose(interpolated(nodes, f, theta), f(theta), atol=1e-6)


def test_positions_are_the_inverse_of_abilities_and_slope_is_their_derivative():
    theta = np.linspace(-2.0, 2.5, 41)
    nodes = make_nodes(theta, 0.2, 32, 96)
    position = nodes.positions(theta)
    np.testing.assert_allclose(nodes.theta(position), theta, atol=1e-12)
    h = 1e-5
    numeric = (nodes.theta(position + h) - nodes.theta(position - h)) / (2 * h)
    np.testing.assert_allclose(nodes.slope(position), numeric, rtol=1e-8)
    assert nodes.positions(np.array([-1e9, 1e9])).tolist() == [0.0, nodes.count - 1.0]


def test_the_slope_of_the_basis_is_its_derivative():
    theta = np.random.default_rng(4).normal(size=50)
    nodes = make_nodes(theta, 0.2, 32, 96)
    position = nodes.positions(theta)
    start = window_start(nodes, position)
    values = np.exp(0.7 * nodes.abilities)[start[:, None] + np.arange(8)]
    value, slope = horner(monomials(values), position - start)
    np.testing.assert_allclose(value, np.exp(0.7 * theta), rtol=3e-7)
    slope = slope / nodes.slope(position)
    np.testing.assert_allclose(slope, 0.7 * np.exp(0.7 * theta), rtol=3e-6)
