"""Files arrive as they were sent, whatever the size of the parts and the order of the transfers."""

import numpy as np
import pytest

from benchmarks import staging


@pytest.mark.parametrize("size", [3, 10, 1000])
def test_files_in_parts(tmp_path, size):
    contents = {"a/b.txt": b"0123456789", "c": b"xyz", "a/d": b"\x00" * 25}
    sources = {}
    for k, (name, content) in enumerate(contents.items()):
        sources[name] = tmp_path / f"source{k}"
        sources[name].write_bytes(content)
    staging.split(sources, tmp_path / "parts", size)
    folders = sorted((tmp_path / "parts").iterdir(), key=lambda folder: int(folder.name))
    assert all(sum(part.stat().st_size for part in folder.iterdir()) <= size for folder in folders)
    written = []
    for k in range(len(folders)):
        written += staging.join(folders[: k + 1], tmp_path / "job")
    assert sorted(str(file.relative_to(tmp_path / "job")) for file in written) == sorted(contents)
    assert all((tmp_path / "job" / name).read_bytes() == content for name, content in contents.items())


def test_images_arrive_unchanged(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    staging.pack_images(pixels, tmp_path / staging.PACKED)
    assert np.array_equal(staging.unpack_images(tmp_path / staging.PACKED), pixels)
