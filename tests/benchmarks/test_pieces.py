"""The results of a run in pieces: laps are counted through, and every row keeps its source."""

import json
from pathlib import Path

from benchmarks.cifar10 import join_pieces


def piece(path: Path, before: int, laps: int, commit: str) -> Path:
    rows = [{"lap": k, "gpu_minutes": float(before + k)} for k in range(laps + 1)]
    figures = {"laps": laps, "laps_before": before, "gpu_minutes": rows[-1]["gpu_minutes"]}
    source = {"command": f"python -m benchmarks.cifar10 --out runs/{commit}", "commit": commit, "machine": "a GPU"}
    path.write_text(json.dumps(source | {"name": "x", "date": "2026-11-18", "figures": figures, "rows": rows}))
    return path


def test_a_figure_that_the_last_piece_lacks_is_that_of_an_earlier_one(tmp_path: Path):
    laps, final = piece(tmp_path / "laps.json", 0, 3, "aaa"), piece(tmp_path / "final.json", 3, 1, "bbb")
    with_draws = json.loads(laps.read_text())
    with_draws["figures"]["fid_draws"] = 5.8
    laps.write_text(json.dumps(with_draws))
    joined = json.loads(join_pieces("whole", [laps, final], tmp_path).read_text())
    assert joined["figures"] == {"laps": 4, "laps_before": 0, "gpu_minutes": 4.0, "fid_draws": 5.8}


def test_laps_of_pieces_are_counted_from_the_first_one(tmp_path: Path):
    first, second = piece(tmp_path / "a.json", 0, 3, "aaa"), piece(tmp_path / "b.json", 3, 2, "bbb")
    joined = json.loads(join_pieces("whole", [first, second], tmp_path).read_text())
    assert [row["lap"] for row in joined["rows"]] == [0, 1, 2, 3, 4, 5]
    assert [row["gpu_minutes"] for row in joined["rows"]] == [0, 1, 2, 3, 4, 5]
    assert [row.get("commit") for row in joined["rows"]] == ["aaa"] * 4 + [None] * 2
    assert joined["commit"] == "bbb"
    assert joined["command"] == "python -m benchmarks.cifar10"  # without folders
    assert joined["figures"] == {"laps": 5, "laps_before": 0, "gpu_minutes": 5.0}
