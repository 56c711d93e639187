"""The comparison of optimizers in small: one network, several trainings, their held-out losses."""

import json

from benchmarks import optimizers

NETWORK = "network={kind: unet, hidden: [8, 8], blocks: 1, heads: [0, 0], embedding: 8}"


def test_every_run_has_rows_on_the_way_and_at_its_end(assets, tmp_path):
    sizes = ["--images", "8", "--batch", "2", "--points", "2", "--held-out", "4"]
    folders = ["--assets", str(assets), "--results", str(tmp_path)]
    runs = ["--runs", "adam-1e-3", "muon-2e-3"]
    optimizers.main([*runs, *sizes, *folders, "--set", NETWORK, "train.warmup=2", "train.ema=0.5"])
    result = json.loads((tmp_path / "optimizers.json").read_text())
    assert {(row["optimizer"], row["lr"]) for row in result["rows"]} == {("adam", 1e-3), ("muon", 2e-3)}
    assert {row["images"] for row in result["rows"] if row["optimizer"] == "muon"} >= {8}
    assert set(result["figures"]) == {"adam_0.001", "muon_0.002", "images", "side"}
    assert all(row["loss"] > 0 for row in result["rows"])
