"""Faults of files: truncation, a flipped bit, files of other laps, seeds and runs, missing report data, moved data."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

# ^finished runs that provide files: the same run (for another lap), one with another seed, one on other observations
DONORS: dict[str, dict[str, Any]] = {"swap-lap": {}, "swap-seed": {"seed": 1}, "swap-run": {"observations": 1}}
LAPS, SHARDS = (1, 2), 6
OF_THE_RUN = ("run.json", "recipe.yaml")
OF_A_LAP = (
    "prior.safetensors", "training.safetensors", "metrics.json", "losses.json", "samples.npy", "posterior.npy",
)  # fmt: skip


def damage(kind: str, out: Path, rng: random.Random) -> str:
    """Truncate a file of the run, or flip one of its bits."""
    files = sorted(f for f in out.rglob("*") if f.is_file() and f.stat().st_size and f.name != ".lock")
    if not files:
        return ""
    # mostly draws, since they are most of the files; sometimes another file of the run
    draws = [f for f in files if f.suffix == ".npy" and f.parent.name == "draws"]
    victim = rng.choice(draws if draws and rng.random() < 0.5 else files)
    data = bytearray(victim.read_bytes())
    if kind == "truncate":
        data = data[: rng.randrange(len(data))]
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    victim.write_bytes(data)
    return f"damaged {victim.relative_to(out)}"


def keep_checkpoints() -> None:
    """Let a donor keep the last checkpoint of every training, which a normal run removes."""
    from diffem.em import m_step

    write = m_step.write_checkpoint

    def write_and_keep(path: Path, *arguments: Any) -> None:
        write(path, *arguments)
        shutil.copy(path, path.with_name("kept.safetensors"))

    m_step.write_checkpoint = write_and_keep


def swap(out: Path, donor: Path, same_run: bool, rng: random.Random) -> str:
    """Replace a file by that of another run, or of another lap or shard of the same run."""
    if not out.is_dir() or not (out / "recipe.yaml").exists():  # the run ended before it created its folder
        return ""
    kind = rng.random()
    if kind < 0.5:
        return _swap_shard(out, donor, same_run, rng)
    if kind < 0.6 and not same_run:
        name = rng.choice(OF_THE_RUN)
        shutil.copy(donor / name, out / name)
        return f"damaged {name}"
    lap, name = rng.choice(LAPS), rng.choice(OF_A_LAP)
    source = donor / "laps" / f"{3 - lap if same_run else lap:03d}"
    target = out / "laps" / f"{lap:03d}" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / ("kept.safetensors" if name.startswith("training") else name), target)
    return f"damaged {target.relative_to(out)}"


def _swap_shard(out: Path, donor: Path, same_run: bool, rng: random.Random) -> str:
    """Replace the array and the report of a shard by a matching pair of another run, lap or range of observations."""
    lap, k = rng.choice(LAPS), rng.randrange(SHARDS)
    source = (lap, k)
    if same_run:
        source = (3 - lap, k) if rng.random() < 0.5 else (lap, (k + rng.randrange(1, SHARDS)) % SHARDS)
    folder = out / "laps" / f"{lap:03d}" / "draws"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in (".npy", ".json"):
        shutil.copy(
            donor / "laps" / f"{source[0]:03d}" / "draws" / f"{source[1]:05d}{suffix}", folder / f"{k:05d}{suffix}"
        )
    return f"damaged {(folder / f'{k:05d}.npy').relative_to(out)}"


def damage_shown(out: Path, rng: random.Random) -> str:
    """Remove `samples.npy` or `posterior.npy` of a lap, truncate it, flip a bit, or replace it by another lap's."""
    files = sorted(out.glob("laps/*/samples.npy")) + sorted(out.glob("laps/*/posterior.npy"))
    if not files:
        return ""
    victim = rng.choice(files)
    others = [file for file in files if file.name == victim.name and file != victim]
    data, how = bytearray(victim.read_bytes()), rng.randrange(4 if others else 3)
    if how == 0:
        victim.unlink()
    elif how == 1:
        victim.write_bytes(data[: rng.randrange(len(data))])
    elif how == 2:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
    else:
        shutil.copyfile(rng.choice(others), victim)
    return f"damaged {victim.relative_to(out)}"


def on_a_file(out: Path, name: str = "obs", seed: int = 0) -> dict[str, Any]:
    """Save observations to a file beside the run; returns the options of a run on them."""
    from .faults import observations

    file = Path(f"{out}.{name}.safetensors")
    observations(seed).save(file)
    return {"kind": "none", "data": str(file)}


def move_data(out: Path, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Move the run's data file.

    Returns:
        Options of the run with the new path, and sometimes options with other data, which must be rejected.
    """
    new = Path(f"{out}.moved.safetensors")
    os.replace(f"{out}.obs.safetensors", new)
    begun = (out / "recipe.yaml").exists()  # without a recipe no run exists yet that other data could harm
    wrong = on_a_file(out, "changed", seed=1) if begun and rng.random() < 0.5 else None
    return {"kind": "none", "data": str(new)}, wrong
