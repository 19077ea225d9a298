"""Simulated leaderboards: reproducible however they are cut, and every share and mechanism is what it claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import binomtest, kstest, norm

from cbmm_spark.simulation import generator as simulation
from cbmm_spark.simulation import tiles as simulation_tiles
from cbmm_spark.simulation.generator import DUPLICATE, MECHANISMS, MISKEYED, REGULAR, UNINFORMATIVE


def _world(mechanism="mnar", missing=0.3, **options):
    defaults = {"n_benchmarks": 4, "not_run": 0.1, "perfect": 1, "hopeless": 1, "duplicates": 0.05, "miskeyed": 0.05}
    return simulation.draw_world(83, 190, 6, mechanism=mechanism, missing=missing, **{**defaults, **options})


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_tile_is_a_part_of_the_whole(mechanism, data):
    world = _world(mechanism)
    attempt = data.draw(st.integers(0, 2))
    first, last = sorted(data.draw(st.tuples(st.integers(0, 83), st.integers(0, 83))))
    items = np.array(data.draw(st.lists(st.integers(0, 189), max_size=20)), dtype=np.intp)
    whole = simulation.draw_tile(world, slice(None), slice(None), attempt)
    part = simulation.draw_tile(world, slice(first, last), items, attempt)
    np.testing.assert_array_equal(part.attempted, whole.attempted[items, first:last])
    np.testing.assert_array_equal(part.correct, whole.correct[items, first:last])


@pytest.mark.parametrize("cells", [1, 64, 1 << 20])
def test_the_chunk_size_does_not_matter(monkeypatch, cells):
    world = _world("mar")
    expected = simulation.draw_tile(world, slice(None), slice(None))
    block = simulation.draw_block(world, slice(10, 150))
    monkeypatch.setattr(simulation_tiles, "TILE_CELLS", cells)
    again = simulation.draw_tile(_world("mar"), slice(None), slice(None))
    np.testing.assert_array_equal(again.attempted, expected.attempted)
    np.testing.assert_array_equal(again.correct, expected.correct)
    packed = simulation.draw_block(world, slice(10, 150))
    np.testing.assert_array_equal(packed.attempted, block.attempted)
    np.testing.assert_array_equal(packed.solved, block.solved)


def test_a_packed_block_holds_the_same_bits_and_zero_padding():
    world = _world()
    block = simulation.draw_block(world, slice(7, 60))
    tile = simulation.draw_tile(world, slice(None), slice(7, 60))
    for packed, plain in ((block.attempted, tile.attempted), (block.solved, tile.correct)):
        bits = np.unpackbits(packed, axis=1, bitorder="little")
        np.testing.assert_array_equal(bits[:, :83], plain)
        assert not bits[:, 83:].any()


def test_batches_of_models_cover_the_matrix_in_order():
    world = _world()
    whole = simulation.draw_tile(world, slice(None), slice(None))
    batches = list(simulation.iterate_tiles(world, 20))
    assert [b[0] for b in batches] == [slice(0, 20), slice(20, 40), slice(40, 60), slice(60, 80), slice(80, 83)]
    np.testing.assert_array_equal(np.hstack([b[1].correct for b in batches]), whole.correct)


def test_the_seed_decides_everything():
    n, k, world = simulation.draw_matrix(50, 80, 1, missing=0.2)
    n2, k2, world2 = simulation.draw_matrix(50, 80, 1, missing=0.2)
    n3, k3, world3 = simulation.draw_matrix(50, 80, 2, missing=0.2)
    np.testing.assert_array_equal(n, n2)
    np.testing.assert_array_equal(k, k2)
    np.testing.assert_array_equal(world.theta, world2.theta)
    assert (n != n3).any()
    assert (k != k3).any()
    assert (world.theta != world3.theta).all()


def test_no_answer_without_an_attempt_and_counts_add_up():
    world = _world()
    n, k = simulation.draw_counts(world, 3)
    tiles = [simulation.draw_tile(world, slice(None), slice(None), t) for t in range(3)]
    assert set(np.unique(n)) == {0, 3}
    np.testing.assert_array_equal(n.T > 0, tiles[0].attempted)
    np.testing.assert_array_equal(k.T, sum(t.correct.astype(int) for t in tiles))
    assert (k[n == 0] == 0).all()
    assert {0, 1, 2, 3} == set(np.unique(k))
    with pytest.raises(ValueError, match="attempts"):
        simulation.draw_counts(world, 0)


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_answers_follow_the_model(sigma):
    world = simulation.draw_world(400, 500, 12, sigma=sigma)
    tile = simulation.draw_tile(world, slice(None), slice(None))
    p = expit((world.items.a[:, None] * world.theta + world.items.b[:, None]) / sigma)
    # Sums over models and over items, standardised by their exact variance, are standard normal.
    for axis in (0, 1):
        z = (tile.correct - p).sum(axis=axis) / np.sqrt((p * (1 - p)).sum(axis=axis))
        assert kstest(z, norm.cdf).pvalue > 1e-3
    for low in np.linspace(0.0, 0.95, 20):
        here = (p >= low) & (p < low + 0.05)
        assert abs(tile.correct[here].mean() - p[here].mean()) < 5 * 0.5 / np.sqrt(here.sum())


def test_neighbouring_cells_are_independent():
    world = simulation.draw_world(400, 400, 3, uninformative=1.0, missing=0.5)
    tile = simulation.draw_tile(world, slice(None), slice(None))
    p = expit(world.items.b)[:, None]
    z = (
        simulation.draw_tile(simulation.draw_world(400, 400, 3, uninformative=1.0), slice(None), slice(None)).correct
        - p
    )
    z /= np.sqrt(p * (1 - p))
    absent = tile.attempted * 2.0 - 1.0
    second = simulation.draw_tile(world, slice(None), slice(None), 1).correct
    shifted = [
        z[1:] * z[:-1],
        z[:, 1:] * z[:, :-1],
        absent[1:] * absent[:-1],
        absent[:, 1:] * absent[:, :-1],
        absent * z,
    ]
    shifted.append(np.where(tile.attempted, z * (second - p) / np.sqrt(p * (1 - p)), 0.0))
    for product in shifted:
        assert abs(product.mean()) < 4.5 / np.sqrt(product.size)


def test_item_kinds_have_their_shares_and_do_what_they_say():
    sizes = np.array([700, 300])
    items = simulation.draw_items(sizes, 4, uninformative=0.08, duplicates=0.02, miskeyed=0.03)
    assert np.bincount(items.kind).tolist() == [870, 80, 20, 30]
    assert (items.a[items.kind == UNINFORMATIVE] == 0).all()
    assert (items.a[items.kind != UNINFORMATIVE] > 0).all()
    copies = np.flatnonzero(items.kind == DUPLICATE)
    assert (items.kind[items.source[copies]] == REGULAR).all()
    assert (items.benchmark[items.source[copies]] == items.benchmark[copies]).all()
    np.testing.assert_array_equal(np.bincount(items.benchmark), sizes)
    theta = np.linspace(-3, 3, 400)
    world = simulation.with_missing(simulation.build_world(theta, items, 4), "mcar", 0.2)
    tile = simulation.draw_tile(world, slice(None), slice(None))
    both = tile.attempted[copies] & tile.attempted[items.source[copies]]
    np.testing.assert_array_equal(tile.correct[copies][both], tile.correct[items.source[copies]][both])
    assert (tile.attempted[copies] != tile.attempted[items.source[copies]]).any()
    complete = simulation.draw_tile(simulation.build_world(theta, items, 4), slice(None), slice(None)).correct
    slope = (complete - complete.mean(axis=1, keepdims=True)) @ theta
    steep = items.a > 0.7
    assert (slope[(items.kind == MISKEYED) & steep] < 0).all()
    assert (slope[(items.kind == REGULAR) & steep] > 0).mean() > 0.99


def test_perfect_and_hopeless_models_are_so_on_every_item_and_rank_at_the_ends():
    world = _world("mnar")
    tile = simulation.draw_tile(world, slice(None), slice(None))
    perfect, hopeless = world.forced == 1, world.forced == -1
    assert (perfect.sum(), hopeless.sum()) == (1, 1)
    np.testing.assert_array_equal(tile.correct[:, perfect], tile.attempted[:, perfect])
    assert not tile.correct[:, hopeless].any()
    assert world.theta.argmax() == np.flatnonzero(perfect)[0]
    assert world.theta.argmin() == np.flatnonzero(hopeless)[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("not_run", [0.0, 0.25])
def test_the_share_of_missing_responses_is_hit(mechanism, share, not_run):
    world = simulation.draw_world(500, 600, 8, mechanism=mechanism, missing=share, n_benchmarks=4, not_run=not_run)
    tile = simulation.draw_tile(world, slice(None), slice(None))
    run = world.run[:, world.items.benchmark].T
    assert world.run.mean() == pytest.approx(1 - not_run, abs=1e-9)
    assert world.run.any(axis=1).all()
    assert not tile.attempted[~run].any()
    assert 1 - tile.attempted[run].mean() == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_mechanisms_depend_on_what_they_claim(mechanism):
    """Within one model the answer itself matters only under MNAR; the ability shows under MAR and MNAR."""
    options = {"n_benchmarks": 3}
    answers = simulation.draw_tile(simulation.draw_world(600, 800, 21, **options), slice(None), slice(None)).correct
    world = simulation.draw_world(600, 800, 21, mechanism=mechanism, missing=0.4, **options)
    tile = simulation.draw_tile(world, slice(None), slice(None))
    kept = ~world.anchor
    # Among models of one ability (and one benchmark): are wrong answers more often missing than right ones?
    near = (np.abs(world.theta) < 0.05)[None, :] & (kept & (world.items.benchmark == 0))[:, None]
    gone = ~tile.attempted
    wrong, right = gone[near & ~answers], gone[near & answers]
    gap = wrong.mean() - right.mean()
    noise = np.sqrt(gone[near].var() * (1 / wrong.size + 1 / right.size))
    correlation = np.corrcoef(gone[kept].mean(axis=0), world.theta)[0, 1]
    if mechanism == "mcar":
        assert abs(correlation) < 4 / np.sqrt(600)
    else:
        assert correlation < -0.5
    assert gap > 0.25 if mechanism == "mnar" else abs(gap) < 4 * noise


def test_mar_is_explained_by_what_is_observed():
    """Anchors are complete; elsewhere the log-odds are a function of accuracy on them, date and benchmark alone."""
    base = simulation.draw_world(500, 900, 33, n_benchmarks=3)
    day = np.random.default_rng(0).uniform(0, 500, 500)
    world = simulation.with_missing(base, "mar", 0.5, day=day)
    tile = simulation.draw_tile(world, slice(None), slice(None))
    assert tile.attempted[world.anchor].all()
    assert world.anchor.sum() == 45
    complete = simulation.draw_tile(base, slice(None), slice(None))
    accuracy = complete.correct[world.anchor].mean(axis=0)
    assert world.absence is not None
    odds = np.log(world.absence[:, :, 0]) - np.log1p(-world.absence[:, :, 0])
    design = np.column_stack([np.ones(500), accuracy, day])
    for bench in range(3):
        fitted = design @ np.linalg.lstsq(design, odds[:, bench].astype(float), rcond=None)[0]
        np.testing.assert_allclose(fitted, odds[:, bench], atol=1e-4)
        here = ~world.anchor & (world.items.benchmark == bench)
        expected = world.absence[:, bench, 0].sum() * here.sum()
        gone = int((~tile.attempted[here]).sum())
        assert binomtest(gone, 500 * int(here.sum()), expected / (500 * here.sum())).pvalue > 1e-4


def test_the_history_rises_and_families_share_a_level():
    history = simulation.draw_history(2000, 17, days=500.0, n_families=100)
    assert (np.diff(history.day) >= 0).all()
    assert 0 <= history.day.min() < history.day.max() <= 500
    assert history.theta.mean() == pytest.approx(0, abs=1e-12)
    assert history.theta.std() == pytest.approx(1)
    assert np.corrcoef(history.theta, history.day)[0, 1] > 0.3
    residual = history.theta - np.polyval(np.polyfit(history.day, history.theta, 1), history.day)
    means = np.array([residual[history.family == f].mean() for f in range(100)])
    assert means.std() > 2 * residual.std() / np.sqrt(20)  # pure chance would give about 1 / √20


@given(st.integers(1, 30), st.integers(0, 500), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_sizes_add_up(n_benchmarks, extra, seed):
    sizes = simulation.split_items(n_benchmarks + extra, n_benchmarks, seed)
    assert sizes.sum() == n_benchmarks + extra
    assert len(sizes) == n_benchmarks
    assert sizes.min() >= 1


@pytest.mark.parametrize("distribution", simulation.DISCRIMINATIONS)
def test_discrimination_has_the_distribution_asked_for(distribution):
    items = simulation.draw_items(np.array([4000]), 5, discrimination=distribution, benchmark_spread=0.0)
    if distribution == "uniform":
        assert kstest((items.a - 0.2) / 1.8, "uniform").pvalue > 1e-3
    else:
        assert kstest(np.log(items.a) / 0.5, norm.cdf).pvalue > 1e-3
    assert kstest(items.b, norm.cdf).pvalue > 1e-3


def test_impossible_worlds_are_refused():
    items = simulation.draw_items(np.array([10]), 1)
    with pytest.raises(ValueError, match="cannot fill"):
        simulation.split_items(2, 3, 1)
    with pytest.raises(ValueError, match="add up"):
        simulation.draw_items(np.array([10]), 1, uninformative=0.8, miskeyed=0.4)
    with pytest.raises(ValueError, match="could copy"):
        simulation.draw_items(np.array([10]), 1, uninformative=0.5, duplicates=0.5)
    with pytest.raises(ValueError, match="more than"):
        simulation.build_world(np.zeros(2), items, 1, perfect=2, hopeless=1)
    world = simulation.build_world(np.arange(5.0), items, 1)
    with pytest.raises(ValueError, match="share"):
        simulation.with_missing(world, "mcar", 1.0)
    with pytest.raises(ValueError, match="anchor"):
        simulation.with_missing(world, "mar", 0.95)
    with pytest.raises(ValueError, match="leaves models without"):
        simulation.with_missing(world, "mcar", 0.1, not_run=0.5)
    with pytest.raises(ValueError, match="unknown mechanism"):
        simulation.with_missing(world, "mnra", 0.1)
