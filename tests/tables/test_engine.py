"""The engine: addresses of rows, additional gaps, rows held out, and imputations against an exact answer."""

import numpy as np
import pandas as pd
import torch

from diffem.priors import GaussianPrior
from diffem.tables import DiffusionImputer
from diffem.tables.drawing import draw, row_addresses
from diffem.tables.encoding import Encoding
from diffem.tables.gaps import HIDDEN, RARE, column_gaps, parts, with_more_gaps
from diffem.tables.scores import coverage


def test_addresses_follow_from_values_and_tell_equal_rows_apart():
    z = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    z[::4, 1] = np.nan
    found = row_addresses(z)
    assert ((found >= 0) & (found < 1 << 32)).all()
    order = np.random.default_rng(1).permutation(50)
    assert np.array_equal(row_addresses(z[order]), found[order])
    assert np.array_equal(row_addresses(z[7:9]), found[7:9])
    assert len(set(row_addresses(np.repeat(z[:1], 20, 0)))) == 20


def test_gaps_are_added_where_they_are_rare_and_columns_lose_all_their_coordinates():
    z = np.zeros((400, 4), dtype=np.float32)
    places = [slice(0, 1), slice(1, 4)]
    more = with_more_gaps(z, places, np.random.RandomState(0))
    assert np.array_equal(more[:400], z)
    gone = np.isnan(more[400:])
    assert 0.15 < gone.mean() < 0.32  # 0.23 without the rows that lost all, of 200
    assert (gone[:, 1:] == gone[:, 1:2]).all()
    assert not gone.all(1).any()
    enough = np.where(np.random.default_rng(0).random((400, 4)) < 2 * RARE, np.nan, z)
    assert with_more_gaps(enough, places, np.random.RandomState(0)) is enough


def test_rows_are_held_out_of_tables_that_are_large_enough():
    z = np.arange(1000.0)[:, None]
    [(kept, held)] = parts(z, 1, np.random.RandomState(0))
    assert sorted([*kept[:, 0], *held[:, 0]]) == list(range(1000))
    assert len(held) == 100
    assert parts(z[:50], 1, np.random.RandomState(0))[0][1] is None


def test_every_row_is_held_out_of_one_of_several_runs():
    z = np.arange(50.0)[:, None]
    folds = parts(z, 4, np.random.RandomState(0))
    assert sorted(np.concatenate([held for _, held in folds])[:, 0]) == list(range(50))
    for kept, held in folds:
        assert sorted([*kept[:, 0], *held[:, 0]]) == list(range(50))


def test_the_coordinates_of_a_category_are_hidden_together():
    hidden = column_gaps([slice(0, 1), slice(1, 4), slice(4, 4)])((2000, 4), np.random.RandomState(0))
    assert (hidden[:, 1:] == hidden[:, 1:2]).all()
    assert abs(hidden[:, :2].mean() - HIDDEN) < 4 * np.sqrt(HIDDEN / 4000)


def test_draws_of_several_priors_are_independent_and_their_expectation_is_exact_for_a_gaussian():
    """x ~ N(0, [[1, .8], [.8, 1]]), y = x₀ + noise of 0.03: E[x₁ | y] = .8 y/(1 + .03²), and draws differ by .6."""
    prior = GaussianPrior(torch.zeros(2), torch.tensor([[1.0, 0.8], [0.8, 1.0]]))
    z = np.array([[1.0, np.nan]] * 400, dtype=np.float32)
    drawn = draw([prior, prior], z, 2, steps=4, seed=0)
    np.testing.assert_allclose(drawn.mean[:, 1], 0.8 / (1 + 0.03**2), rtol=1e-5)
    first, second = drawn.x[:, :, 1] - drawn.mean[:, 1]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2  # 400 pairs: 0.05 standard error
    assert abs(first.std() / np.sqrt(1 - 0.64 / (1 + 0.03**2)) - 1) < 0.15  # 0.035


def test_snapped_draws_decode_to_values_of_the_table():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.random(40), "b": random.poisson(2, 40), "c": random.choice(list("xyz"), 40)})
    encoding = Encoding(frame)
    z = encoding.encode(frame)
    np.testing.assert_allclose(encoding.snapped(z), z, rtol=1e-5, atol=1e-6)  # float32
    draws = random.standard_normal((3, 40, encoding.size))
    once = encoding.snapped(draws)
    np.testing.assert_allclose(encoding.snapped(once), once, rtol=1e-5, atol=1e-6)


def test_a_gaussian_table_is_imputed_as_well_as_can_be():
    """Three columns with correlation 0.9: E[x₂ | x₀, x₁] has the error √(1 − 2·0.9²/1.9), as the Gaussian start."""
    random = np.random.default_rng(0)
    common = random.standard_normal((2000, 1))
    x = np.sqrt(0.9) * common + np.sqrt(0.1) * random.standard_normal((2000, 3))
    gaps = x.copy()
    gaps[random.random(x.shape) < 0.2] = np.nan
    gaps[:300, :2], gaps[:300, 2] = x[:300, :2], np.nan
    tiny = {"network": {"kind": "residual", "hidden": [8], "embedding": 4}, "train.batch": 16, "e_step.steps": 2}
    imputer = DiffusionImputer(laps=1, steps=5, random_state=0, recipe=tiny).fit(gaps)
    draws = np.stack([table[:300, 2] for table in imputer.sample_posterior(gaps[:300], 40)])
    least = np.sqrt(1 - 2 * 0.81 / 1.9)
    error = np.sqrt(((draws.mean(0) - x[:300, 2]) ** 2).mean())
    # 300 values: 4 % standard error; 40 draws: 1 % more than their exact mean
    assert 0.88 * least < error < 1.14 * least
    assert 0.84 < coverage(draws, x[:300, 2]) < 0.96  # 300 values: 0.0173 standard error
