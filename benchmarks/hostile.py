"""Give every malicious or malformed input of the test corpus to its command: `python -m benchmarks.hostile`.

A row contains, for one input, the exit code, the seconds and memory beyond the import, and the message. `not_refused`
counts the inputs that were not rejected with exit code 2 and a message that names the file and the cause, within 5 s
and 500 MB, without executing or writing anything.
"""

from __future__ import annotations

import argparse

from tests.hostile.corpus import CORPUS
from tests.hostile.measure import measure

from .record import record


def main() -> None:
    rows, controls = [], []
    for row in measure(list(CORPUS)):
        (controls if row["control"] else rows).append(row)
        print("ok  " if not row["faults"] else "BAD ", row["name"], *row["faults"], flush=True)
    figures = {
        "inputs": len(rows),
        "not_refused": sum(bool(row["faults"]) for row in rows),
        "sound_inputs": len(controls),
        "sound_inputs_refused": sum(bool(row["faults"]) for row in controls),
        "worst_seconds": round(max(row["seconds"] for row in rows), 2),
        "worst_mib": max(row["bytes"] for row in rows) >> 20,
    }
    kept = [
        {
            "input": row["name"],
            "code": row["code"],
            "seconds": round(row["seconds"], 3),
            "mib": row["bytes"] >> 20,
            "faults": row["faults"],
        }
        for row in rows
    ]
    print(figures)
    print(record("hostile", figures, kept))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it has no options
    main()
