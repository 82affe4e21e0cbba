#!/usr/bin/env python3
"""Measures the median time and the peak memory of the process `sconce embed "hello"`, with the model in the page cache.

    python3 scripts/check/startup.py [--sconce target/release/sconce] [--runs 21]

Exits with 1 if peak memory exceeds 100 MB. Time has no bound, since it depends on the machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--runs", type=int, default=21)
    args = parser.parse_args()
    seconds, peaks = [], []
    for run in range(args.runs + 1):
        start = time.perf_counter()
        process = subprocess.Popen([args.sconce, "embed", "--offline", "hello"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit("sconce failed; run scripts/fetch_model.sh first")
        if run > 0:  # the first run fills the page cache
            seconds.append(time.perf_counter() - start)
            peaks.append(usage.ru_maxrss * 1024 / 1e6)
    print(
        f"sconce embed hello, {args.runs} runs: median {statistics.median(seconds) * 1e3:.0f} ms "
        f"({min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f}), peak memory {max(peaks):.0f} MB"
    )
    sys.exit(max(peaks) > 100)


if __name__ == "__main__":
    main()
