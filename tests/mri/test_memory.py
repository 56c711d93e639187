"""A large set of slices needs little memory: data source, shards and fingerprint in a process with limited memory."""

import subprocess
import sys

import pytest

from .volumes import write_volume

SCRIPT = """
import resource, sys
import numpy as np, torch
from diffem.runs.sources import make_problem
from diffem.observations.fingerprint import fingerprint
import diffem.mri.fastmri, h5py

torch.set_num_threads(1)
torch.fft.fft2(torch.zeros(4, 4))  # what a first call loads does not count
allowed = int(sys.argv[2]) << 20
held = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData"))) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + allowed, held + allowed))  # anonymous memory, without mapped files
problem = make_problem("fastmri", 0, {"path": sys.argv[1], "slices": [0, None], "accel": 16, "cache": sys.argv[3]})
obs = problem.obs
n = len(obs)
print(n, n * 320 * 320 * 8 >> 20)
train = obs[torch.arange(1, n)]  # as the loop keeps the observations it trains on
fingerprint(obs.tensors())
chi2 = [float(train[i : i + 4].to("cpu").chi2(problem.reference[1 + i : 5 + i]).mean()) for i in range(0, n - 1, 16)]
assert 0.9 < sum(chi2) / len(chi2) < 1.1, chi2
try:
    np.zeros(2 * allowed, dtype=np.uint8)
except MemoryError:
    print("limited")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are those of Linux")
def test_slices_are_read_from_disk_as_they_are_used(tmp_path):
    (tmp_path / "volumes").mkdir()
    write_volume(tmp_path / "volumes" / "0.h5", slices=12, kspace=(320, 320), size=(320, 320))
    for i in range(1, 16):  # the same file under many names: 192 slices in total
        (tmp_path / "volumes" / f"{i}.h5").symlink_to(tmp_path / "volumes" / "0.h5")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "volumes"), "80", str(tmp_path / "cache")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    # 150 MiB of k-space and 75 MiB of images were read within 80 MiB; the required memory does not grow with the number
    # of slices
    assert result.stdout.split() == ["192", "150", "limited"]
