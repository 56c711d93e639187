"""Results in the repository have the form and the names that pages and users' scripts expect."""

import json
from pathlib import Path

import pytest

from benchmarks.record import RESULTS

FIXED = {
    "digits": {"mse_draw", "mse_mean16", "mse_draw_gaussian", "mse_mean_gaussian", "seconds"},
    "manifold": {"sinkhorn_draws", "sinkhorn_prior", "worst_rise", "compute_minutes", "laps"},
    "speed": {"estep_evals_per_s", "estep_ratio_to_bare", "mstep_images_per_s", "mstep_ratio_to_bare", "peak_gib"},
    "cifar10-fast": {"fid_50k", "kid", "gpu_minutes", "laps", "rejected_last_lap"},
    "mri-fast": {
        "psnr_mean_r6",
        "psnr_zero_r6",
        "psnr_gaussian_r6",
        "chi2_r6",
        "coverage90_r6",
        "gpu_minutes",
        "slices",
    },
    "cost": {f"speedup_azula_{k}_{device}" for k in ("k1", "k3") for device in ("cpu", "gpu")},
    "chaos": {"faults", "lost", "silently_wrong"},
    "watch": {"false_alarms", "noise_x2", "noise_half", "shuffled", "shifted", "repeats"},
    "memory": {"peak_mib_2000", "peak_mib_50000"},
    "hostile": {"inputs", "not_refused"},
    "tables": {"mean_rank_rmse", "mean_rank_crps", "tables", "coverage90"},
}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_has_the_common_keys(path: Path):
    result = json.loads(path.read_text())
    assert result["name"] == path.stem
    assert result["command"].startswith("python -m benchmarks.")
    assert result["commit"]
    assert result["machine"]
    assert all(isinstance(value, int | float) for value in result["figures"].values())
    assert isinstance(result["rows"], list)
    assert " /" not in result["command"]  # no path of the machine on which it ran


@pytest.mark.parametrize("name", FIXED)
def test_every_result_has_its_fixed_names(name: str):
    figures = json.loads((RESULTS / f"{name}.json").read_text())["figures"]
    assert FIXED[name] <= figures.keys()
