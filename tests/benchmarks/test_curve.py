"""Measures of points against the manifold's curve with known answers, and tiny runs of the benchmarks that use them."""

import json
import shutil

import pytest
import torch

from benchmarks import chance, last_lap, manifold, seeds
from benchmarks.curve import (
    LINE,
    REG,
    DivergenceFrom,
    along_truth,
    distance_from_curve,
    even_truth,
    exact_draws,
    exact_places,
    lengths_of,
    moved,
    on_curve,
    without_floor,
    worst_rise,
)
from diffem.datasets.manifold import curve, truth
from diffem.metrics import sinkhorn
from diffem.metrics.transport import entropic_cost


def test_distance_from_the_curve():
    """The distance of a small step across the curve is its length."""
    z = torch.linspace(0.1, 0.9, 64, dtype=torch.float64)
    on, ahead = curve(z, seed=2), curve(z + 1e-6, seed=2)
    tangent = (ahead - on) / (ahead - on).norm(dim=1, keepdim=True)
    across = torch.randn(64, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    across = across - (across * tangent).sum(1, keepdim=True) * tangent
    off = on + 0.01 * across / across.norm(dim=1, keepdim=True)
    assert float(distance_from_curve(on, seed=2).max()) < 1e-3  # half the spacing of the curve's points
    torch.testing.assert_close(distance_from_curve(off, seed=2), torch.full((64,), 0.01).double(), rtol=0.02, atol=0)


def test_measures_of_all_draws():
    truths = truth(512, seed=2)
    same = without_floor(truths, truths, seed=2)
    assert (same["sliced"], same["along"], same["elsewhere"]) == (0, 0, 0)
    reversed_ = without_floor(truths.flip(0), truths, seed=2)  # the same points, assigned to other observations
    assert (reversed_["sliced"], reversed_["along"]) == (0, 0)
    assert reversed_["elsewhere"] > 0.5
    shifted = truths.clone()
    shifted[:128, 0] += 100
    assert without_floor(shifted, truths, seed=2)["strays"] == 0.25


def test_positions_along_the_curve():
    """Even points of any number lie at the arc lengths of the finer curve, and steps are as long as their chords."""
    x = even_truth(1000, seed=2)
    place = on_curve(x, seed=2)[1]
    assert bool((place.diff() > 0).all())
    torch.testing.assert_close(
        place.diff(), x.diff(dim=0).norm(dim=1).double(), rtol=0, atol=4e-3
    )  # tolerance: two spacings of the curve's points


def test_exact_draws_of_the_curve():
    x = truth(300, seed=2)
    seen = exact_draws(x, torch.eye(5).expand(300, 5, 5), 1e-4, seed=2)
    assert float((seen - x).norm(dim=1).max()) < 2e-3  # everything measured: the nearest point of the curve
    blind = exact_draws(torch.zeros(4096, 1), torch.zeros(4096, 1, 5), 1e-2, seed=2)
    place, even = (on_curve(x, seed=2)[1].sort().values for x in (blind, even_truth(1 << 13, seed=2)))
    # nothing measured: the prior. Kolmogorov's distance exceeds 1.95/√n once in a thousand sets
    below = torch.searchsorted(place, even, right=True) / 4096
    assert float((below - torch.linspace(0, 1, 1 << 13)).abs().max()) < 1.95 / 64


def test_the_worst_rise_is_relative_to_the_best_lap_before():
    assert worst_rise([4.0, 2.0, 3.0, 1.0, 1.2]) == pytest.approx(0.5)
    assert worst_rise([4.0, 2.0, 1.0]) < 0
    assert worst_rise([1.0]) == 0


def test_the_first_of_several_exact_draws_is_the_single_draw():
    y, A = torch.zeros(8, 1), torch.randn(8, 1, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(exact_places(y, A, 0.1, seed=2, draws=4)[:, :1], exact_places(y, A, 0.1, seed=2))


def test_divergence_from_a_fixed_set():
    x, target = truth(200, seed=2), even_truth(100, seed=2)
    against = DivergenceFrom(target)
    assert against(x) == pytest.approx(sinkhorn(x, target), rel=1e-9)
    assert against(x, own=entropic_cost(x, None, REG)) == against(x)


def test_transport_along_the_curve_of_two_points():
    """Of two points at the ends of the curve, each is transported to one half of the truth."""
    ends = curve(torch.tensor([0.0, 1.0]), seed=2).float()
    places = lengths_of(even_truth(LINE, 2))
    first, last = places.chunk(2)
    moves = torch.cat([first, places[-1] - last])
    assert along_truth(ends, 2) == pytest.approx(float(moves.square().mean().sqrt()), rel=1e-6)
    # a neighbour may be found instead of the point itself
    assert along_truth(even_truth(LINE, 2), 2) < float(places[1])


def test_transport_on_a_line_matches_quantiles():
    x = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert moved(x, x.flip(0) + 2) == pytest.approx(4)
    assert moved(x, x.repeat_interleave(3)) == 0
    assert moved(torch.zeros(2), torch.tensor([-1.0, 1.0])) == 1


SMALL = [
    "data.n=256",
    "e_step.steps=8",
    "e_step.draws=2",
    "e_step.shard=100",
    "e_step.fresh=0.5",
]


def test_a_tiny_run_writes_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr(manifold, "EVEN", 128)
    words = ["--recipe", "manifold-quick", "--laps", "2", "--points", "64", "--prior-steps", "8", "--out"]
    words += [str(tmp_path / "run"), "--results", str(tmp_path), "--picture", str(tmp_path / "picture.png"), "--set"]
    manifold_words = [*words, *SMALL, "train.steps=20", "train.first_steps=20"]
    manifold.main([*manifold_words, "--minutes", "1e-9"])  # stops before lap 1
    assert not (tmp_path / "manifold.json").exists()
    manifold.main(manifold_words)
    result = json.loads((tmp_path / "manifold.json").read_text())
    assert [row["lap"] for row in result["rows"]] == [0, 1, 2]
    last, figures = result["rows"][-1], result["figures"]
    assert figures["sinkhorn_pooled"] == last["sinkhorn_pooled"]
    assert figures["perfect_even"] < last["sinkhorn_even"]  # the untrained prior
    assert figures["perfect_prior_along"] < last["prior_along"]
    assert figures["worst_rise"] == last["sinkhorn_draws"] / result["rows"][1]["sinkhorn_draws"] - 1
    assert figures["worst_rise_off_curve"] == last["off_curve"] / result["rows"][1]["off_curve"] - 1
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    # a run that was stopped goes on without the draws of earlier laps, whose measures it keeps
    shutil.rmtree(tmp_path / "run" / "laps" / "001" / "draws")
    manifold.main([*manifold_words, "--minutes", "9"])
    assert json.loads((tmp_path / "manifold.json").read_text())["rows"] == result["rows"]
    words = ["--run", str(tmp_path / "run"), "--streams", "1", "--train", "4", "--samples", "64", "--steps", "4"]
    last_lap.main([*words, "--results", str(tmp_path)])
    result = json.loads((tmp_path / "last-lap.json").read_text())
    assert [row["measured"] for row in result["rows"]] == [0.8, 0]
    assert result["figures"]["prior_along_0"] == pytest.approx(result["rows"][1]["prior_along"])


def test_chance_in_exact_draws(tmp_path):
    """Renewing fewer draws reduces the variation by chance; all draws vary less than some of them."""
    words = ["--runs", "4", "--points", "64", "--settled", "20", "--results", str(tmp_path), "--set"]
    chance.main([*words, "data.n=512", "e_step.fresh=0.02"])
    rows = json.loads((tmp_path / "chance.json").read_text())["rows"]
    rise = {(row["renewed"], row["measure"]): row["rise"] for row in rows}
    for measure in chance.MEASURES:
        assert 0 <= rise["as the recipe", measure] < rise["all", measure]
    assert rise["all", "pooled"] < rise["all", "draws"]


def test_seeds_are_compared_with_chance(tmp_path, monkeypatch):
    """A seed with both results is a row; a seed whose parts ended is not computed again."""
    words = ["--seeds", "0", "1", "--out", str(tmp_path), "--results", str(tmp_path)]
    small = ["--runs", "2", "--set", "data.n=256", "e_step.fresh=0.02", "laps=8"]
    seeds.main([*words, "--parts", "chance", *small])
    assert not (tmp_path / "seeds.json").exists()  # no run yet
    run = {"figures": dict.fromkeys(seeds.SHOWN, 0.04) | {"worst_rise_pooled": 1e3}} | dict.fromkeys(seeds.SOURCE, "")
    (tmp_path / "seed1" / "manifold.json").write_text(json.dumps(run))
    monkeypatch.setattr(chance, "main", None)
    seeds.main([*words, "--parts", "chance"])
    result = json.loads((tmp_path / "seeds.json").read_text())
    (row,) = result["rows"]
    assert (row["seed"], row["sinkhorn_draws"]) == (1, 0.04)
    exact = json.loads((tmp_path / "seed1" / "chance.json").read_text())["rows"]
    means = {r["measure"]: r["mean"] for r in exact if r["renewed"] == "as the recipe"}
    assert {name: row[f"exact_{name}"] for name in means} == means
    assert result["figures"] == {"worst_draws": 0.04, "worst_prior": 0.04, "rises_beyond_chance": 1, "seeds": 1}
