"""Bring CIFAR-10, weights and the Inception network to a machine without network, in parts of limited size.

    python -m benchmarks.staging pack FOLDER --assets assets --weights weights/cifar10-rho75 [--megabytes 50]
    python -m benchmarks.staging unpack FOLDER [FOLDER …] --into JOB

`pack` writes numbered folders `FOLDER/0`, `FOLDER/1`, … of at most `--megabytes` each, in the order in which a training
needs them: images, weights, and the network of the FID, which is needed at the end. `unpack` restores every file whose
parts have all arrived into `JOB/assets` and `JOB/weights`, so it can be called after every transfer. The images travel
as lossless WebP, which halves their size, and arrive as `train.npz`.
"""

from __future__ import annotations

import argparse
import io
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffem.files.cifar10 import images

PACKED = "images.npz"
THREADS = 16  # Pillow encodes outside of the interpreter lock
Pixels = NDArray[np.uint8]


def encode(pixels: Pixels) -> list[bytes]:
    """Images `(n, 3, 32, 32)` as lossless WebP."""
    files = []
    for image in pixels:
        file = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(file, "WEBP", lossless=True, quality=100, method=4)
        files.append(file.getvalue())
    return files


def decode(files: list[bytes]) -> Pixels:
    """The images `(n, 3, 32, 32)` in these files."""
    return np.stack([np.asarray(Image.open(io.BytesIO(file))).transpose(2, 0, 1) for file in files])


def pack_images(pixels: Pixels, file: Path) -> None:
    with ThreadPoolExecutor() as pool:
        files = list(chain.from_iterable(pool.map(encode, np.array_split(pixels, THREADS))))
    np.savez(file, sizes=[len(f) for f in files], data=np.frombuffer(b"".join(files), np.uint8))


def unpack_images(file: Path) -> Pixels:
    packed = np.load(file)
    data, ends = packed["data"].tobytes(), accumulate(packed["sizes"].tolist(), initial=0)
    files = [data[begin:end] for begin, end in pairwise(ends)]
    step = -(-len(files) // THREADS)
    with ThreadPoolExecutor() as pool:
        return np.concatenate(list(pool.map(decode, (files[k : k + step] for k in range(0, len(files), step)))))


def split(files: dict[str, Path], into: Path, size: int) -> None:
    """Write files, by name, into numbered folders of at most `size` bytes; a file that does not fit is cut.

    The parts of `NAME` are `NAME#k-of-n`; slashes of a name become `@`.
    """
    left, number = size, 0
    for name, path in files.items():
        rest, pieces = path.stat().st_size, []
        while rest > 0:
            if left == 0:
                left, number = size, number + 1
            pieces.append((number, min(left, rest)))
            left, rest = left - pieces[-1][1], rest - pieces[-1][1]
        with path.open("rb") as source:
            for k, (folder, length) in enumerate(pieces):
                target = into / str(folder) / f"{name.replace('/', '@')}#{k}-of-{len(pieces)}"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read(length))


def join(folders: list[Path], into: Path) -> list[Path]:
    """Write the files whose parts are all in `folders` and that are not there yet; returns them."""
    parts = {part.name: part for folder in folders for part in folder.rglob("*#*-of-*")}
    written = []
    for name, count in sorted({(p.split("#")[0], int(p.rsplit("-", 1)[1])) for p in parts}):
        target, names = into / name.replace("@", "/"), [f"{name}#{k}-of-{count}" for k in range(count)]
        if target.exists() or any(part not in parts for part in names):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".part")
        with partial.open("wb") as file:
            for part in names:
                file.write(parts[part].read_bytes())
        partial.rename(target)
        written.append(target)
    return written


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--assets", type=Path, required=True)
    packing.add_argument("--weights", type=Path, nargs="*", default=[], help="folders of exported weights")
    packing.add_argument("--megabytes", type=int, default=50)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("folders", type=Path, nargs="+")
    unpacking.add_argument("--into", type=Path, required=True)
    arguments = parser.parse_args(words)
    if arguments.command == "pack":
        shutil.rmtree(arguments.folder, ignore_errors=True)
        arguments.folder.mkdir(parents=True)
        packed = arguments.folder / PACKED
        pack_images(images(arguments.assets / "cifar10").numpy(), packed)
        weights = {f"weights/{w.name}/{f.name}": f for w in arguments.weights for f in sorted(w.iterdir())}
        fid = "fid/inception-2015-12-05.pt"
        files = {PACKED: packed, **weights, f"assets/{fid}": arguments.assets / fid}
        split(files, arguments.folder, arguments.megabytes * 1_000_000)
        packed.unlink()
    else:
        for file in join(arguments.folders, arguments.into):
            if file.name == PACKED:
                folder = arguments.into / "assets" / "cifar10"
                folder.mkdir(parents=True, exist_ok=True)
                np.savez(folder / "train.npz", images=unpack_images(file))
            print(file)


if __name__ == "__main__":
    main()
