"""The sampler benchmarks: their problems, distances that separate right from wrong, and a tiny run."""

import json
import math

import pytest
import torch

from benchmarks import figure2, mixture


def test_the_mixture_problem_is_the_one_described():
    prior, obs = mixture.problem(8, 2, seed=3)
    assert prior.means.shape == (25, 8)
    assert set(prior.means.unique().tolist()) == {-16.0, -8.0, 0.0, 8.0, 16.0}
    assert torch.equal(prior.means[:, :2], prior.means[:, 6:])  # the same position in every pair of coordinates
    assert len(prior.means.unique(dim=0)) == 25
    s = torch.linalg.svdvals(obs.A.tensors()["matrix"])
    assert (s < 1).all()
    assert (s[:-1] >= s[1:]).all()
    assert float(obs.cov.diagonal(()).sqrt()) < float(s[0])
    again, other = mixture.problem(8, 2, seed=3)[1], mixture.problem(8, 2, seed=4)[1]
    assert torch.equal(obs.y, again.y)
    assert not torch.equal(obs.y, other.y)


def test_a_tiny_run_of_the_mixture(tmp_path):
    words = ["--seeds", "1", "--samples", "40", "--steps", "12", "--measured", "2", "--particles", "4", "--results"]
    mixture.main([*words, str(tmp_path)])
    result = json.loads((tmp_path / "mixture.json").read_text())
    rows = {(row["method"], row["sampler"]): row for row in result["rows"]}
    assert {method for method, _ in rows} == {"floor", *mixture.METHODS}
    assert all(math.isfinite(row["w1"]) for row in rows.values())
    # even few draws distinguish the exact denoiser from one with V = Σ_t
    assert rows["exact", "ddpm2"]["w1"] < 0.5 * rows["sigma_t", "ddpm2"]["w1"]
    assert result["figures"]["w1_8_2_tds"] == rows["mmps, full solve", "tds"]["w1"]


def test_the_likelihoods_of_figure_2():
    """For one component, a Gaussian, the exact covariance gives p(y | x_t), and Σ_t does not."""
    problem = figure2.Problem(0, "cpu")
    one = torch.zeros(1, 3, dtype=torch.float64)
    problem.prior = figure2.priors.MixturePrior(torch.ones(1, dtype=torch.float64), one, torch.ones(1) * 0.3)
    x_t = torch.randn(50, 3, dtype=torch.float64)
    found = problem.log_likelihoods(x_t, 0.5)
    shift = found["exact"] - found["truth"]
    assert torch.allclose(shift, shift[:1].expand_as(shift), atol=1e-10)
    assert torch.allclose(found["sigma_x"], found["exact"], atol=1e-10)  # V of a Gaussian is (Σ_x⁻¹ + Σ_t⁻¹)⁻¹
    assert (found["sigma_t"] - found["truth"]).std() > 0.1


def test_coupled_points_follow_their_own_weights():
    """Each set follows its own weights; the sets share 1 − TV of their points."""
    generator = torch.Generator().manual_seed(0)
    w_p, w_q = (torch.rand(40, generator=generator, dtype=torch.float64) for _ in range(2))
    w_p, w_q = w_p / w_p.sum(), w_q / w_q.sum()
    n = 4000
    p, q = figure2.picked_together(w_p, w_q, n, torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64))
    for index, w in ((p, w_p), (q, w_q)):
        counts = torch.bincount(index, minlength=40) / n
        assert (
            counts - w
        ).abs().max() <= 3 / n  # systematic resampling: the error of each part is below one point, and the split rounds
    shared = float((p == q).double().mean())
    assert shared == pytest.approx(1 - 0.5 * float((w_p - w_q).abs().sum()), abs=2 / n)


def test_a_tiny_run_of_figure_2(tmp_path, monkeypatch):
    words = ["--seeds", "1", "--samples", "4096", "--points", "48", "--sigmas", "0.1"]
    words += [
        "--results",
        str(tmp_path),
        "--picture",
        str(tmp_path / "figure2.png"),
        "--folder",
        str(tmp_path / "kept"),
    ]
    figure2.main(words)
    result = json.loads((tmp_path / "figure2.json").read_text())
    monkeypatch.setattr(figure2, "measure", None)  # a second run only reads
    figure2.main(words)
    assert json.loads((tmp_path / "figure2.json").read_text())["rows"] == result["rows"]
    assert len(result["rows"]) == len(figure2.COVARIANCES)
    assert (tmp_path / "figure2.png").read_bytes()[:4] == b"\x89PNG"
    variation = {(row["covariance"], row["sigma_t"]): row["total_variation"] for row in result["rows"]}
    assert variation["exact", 0.1] < variation["sigma_t", 0.1] < 1


def test_rows_of_more_problems_are_kept():
    def row(method, seeds, **more):
        return {"d": 8, "m": 1, "method": method, "sampler": "ddpm2", "seeds": seeds, **more}

    before = [row("exact", 100, commit="a"), row("dps", 20, commit="a"), row("tmpd", 20, commit="a")]
    rows = mixture.together([row("dps", 20, commit="b"), row("exact", 20, commit="b")], before)
    assert [(r["method"], r["commit"]) for r in rows] == [("exact", "a"), ("dps", "b"), ("tmpd", "a")]
