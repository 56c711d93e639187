import pytest

from ..datasets.test_cifar10 import pixels, write_batch
from ..metrics.extractors import write_extractor
from ..undrawn import _reports_undrawn  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    """A few images of CIFAR-10's format, and a feature extractor."""
    folder = tmp_path_factory.mktemp("assets")
    (folder / "cifar10").mkdir()
    (folder / "fid").mkdir()
    for k in range(1, 6):
        write_batch(folder / "cifar10" / f"data_batch_{k}.bin", pixels(4, seed=k))
    write_extractor(folder / "fid" / "inception-2015-12-05.pt")
    return folder
