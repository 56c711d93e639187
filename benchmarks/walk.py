"""List the functions behind a call in the order in which they are called, by package, and count them.

There are two paths: `posterior` follows `prior.posterior(obs).sample()`, `fit` follows `diffem fit digits` to the first
shard of draws on disk. A profiler records every call. The walk consists of

- the functions that are on the stack when a milestone of the path is called (`MILESTONES`), and
- the functions of other modules that these call directly,

each at its first call, in the order of the calls. Properties, functions inside functions and calls during imports are
left out. A change is a pair of neighbours in different packages; `--leave-out core files` leaves out packages whose
functions are called everywhere. `--source` names the folder `src` of another version.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[1] / "src"
# The first call of each function, or the last one before the end of the path for those in `LAST`.
MILESTONES = {
    "posterior": (
        "Posterior.__post_init__",
        "DDIM.step",
        "MLP.forward",
        "Mask._forward",
        "cg",
        "Mask._adjoint",
        "LinearisedDenoiser.vjp",
        "Statistics.add",
    ),
    "fit": (
        "load_recipe",
        "Observations.__init__",
        "RunDir.open",
        "fit_gaussian",
        "save_prior",
        "GaussianPrior.draw_posterior",
        "DrawStore.write",
    ),
}
LAST = {"GaussianPrior.draw_posterior"}
END = "DrawStore.write"  # the end of the path `fit`


class Call(NamedTuple):
    module: str  # relative to the library, such as samplers/base
    function: str
    line: int
    is_property: bool
    caller: int  # position in the list of calls; -1 for none

    @property
    def package(self) -> str:
        return self.module.split("/")[0]


@cache
def properties(file: str) -> set[int]:
    """The first lines of the properties in a file."""
    functions = [node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.FunctionDef)]
    return {
        f.decorator_list[0].lineno
        for f in functions
        if any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in f.decorator_list)
    }


class Recorder:
    """Records the calls of the library's functions, and prints the walk when the path ends."""

    def __init__(self, source: Path, path: str, left_out: list[str]) -> None:
        self.root = f"{source.resolve() / 'diffem'}{os.sep}"
        self.path, self.left_out = path, left_out
        self.calls: list[Call] = []
        self.live: dict[FrameType, int] = {}
        self.importing = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and event in ("call", "return"):
            self.importing += 1 if event == "call" else -1
        if self.importing or not code.co_filename.startswith(self.root) or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        if event == "call":
            above = frame.f_back
            while above is not None and above not in self.live:
                above = above.f_back
            self.live[frame] = len(self.calls)
            self.calls.append(self.named(code, -1 if above is None else self.live[above]))
        elif event == "return":
            if not code.co_flags & inspect.CO_GENERATOR:  # a generator returns at every value
                self.live.pop(frame, None)
            if self.path == "fit" and code.co_qualname == END:
                self.finish()

    def named(self, code: CodeType, caller: int) -> Call:
        line, file = code.co_firstlineno, code.co_filename
        return Call(file[len(self.root) : -3], code.co_qualname, line, line in properties(file), caller)

    def walk(self) -> list[Call]:
        """The functions of the walk in the order of their first calls."""
        at: dict[str, int] = {}
        for position, call in enumerate(self.calls):
            if call.function in MILESTONES[self.path] and (call.function in LAST or call.function not in at):
                at[call.function] = position
        missing = set(MILESTONES[self.path]) - at.keys()
        assert not missing, missing
        followed: set[int] = set()
        for position in at.values():
            while position >= 0:
                followed.add(position)
                position = self.calls[position].caller
        found: dict[tuple[str, int], Call] = {}
        for position, call in enumerate(self.calls):
            caller = call.caller
            while caller >= 0 and "<" in self.calls[caller].function:  # read with the function around it
                caller = self.calls[caller].caller
            direct = caller in followed and self.calls[caller].module != call.module
            if (position in followed or direct) and not call.is_property and "<" not in call.function:
                found.setdefault((call.module, call.line), call)
        return [call for call in found.values() if not call.module.startswith(tuple(self.left_out))]

    def finish(self) -> None:
        """Print the walk and end the program."""
        sys.setprofile(None)
        walk, changes = self.walk(), 0
        for before, call in zip([None, *walk], walk, strict=False):
            if before is None or before.package != call.package:
                changes += before is not None
                print(f"{changes:3} {call.package}")
            print(f"      {call.module} {call.function}")
        print(f"{len(walk)} functions, {changes} changes of package, {len({call.package for call in walk})} packages")
        sys.stdout.flush()
        os._exit(0)


def posterior(recorder: Recorder) -> None:
    """Draw from the posterior of a small network by the default method."""
    import torch

    from diffem import Observations, nn, operators, priors

    x, mask = torch.randn(8, 5), torch.tensor([True, False, True, True, False])
    prior = priors.DiffusionPrior(nn.MLP((5,)), mean=torch.zeros(5))
    obs = Observations(torch.where(mask, x, 0), operators.Mask(mask), sigma=0.1)
    sys.setprofile(recorder)
    prior.posterior(obs).sample(steps=4)  # all steps call the same functions
    recorder.finish()


def fit(recorder: Recorder) -> None:
    """Run `diffem fit digits` until the first shard is written."""
    from diffem.cli import main as command

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["diffem", "fit", "digits", "-o", f"{folder}/run"]
        sys.setprofile(recorder)
        command()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", choices=list(MILESTONES))
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder src of another version")
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="PREFIX", help="modules that are not counted")
    arguments = parser.parse_args()
    if str(arguments.source) not in sys.path[:1]:
        sys.path.insert(0, str(arguments.source))
    {"posterior": posterior, "fit": fit}[arguments.path](
        Recorder(arguments.source, arguments.path, arguments.leave_out)
    )


if __name__ == "__main__":
    main()
