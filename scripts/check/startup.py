#!/usr/bin/env python3
"""Measures the median time and the peak memory of the process `sconce embed "hello"`, with the model in the page cache; and the
memory of four processes with one model, beside that of one: the sum of their proportional set sizes (PSS), in which a page that n
processes map counts 1/n for each. Each process has embedded one text and waits for the next.

    python3 scripts/check/startup.py [--sconce target/release/sconce] [--runs 21]

Exits with 1 if peak memory exceeds 100 MB. Time has no bound, since it depends on the machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def proportional_set_sizes(sconce, processes):
    """The sum of the PSS of some processes in MB, each of which has embedded one text."""
    command = [sconce, "embed", "--offline", "--input", "-", "--output", "-", "--output-format", "jsonl", "--quiet"]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(processes)]
    for process in running:
        process.stdin.write(b"hello\n")
        process.stdin.flush()
    for process in running:
        process.stdout.readline()
    rollups = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in running]
    for process in running:
        process.communicate()
    lines = [line.split() for rollup in rollups for line in rollup.splitlines()]
    return sum(int(line[1]) * 1024 / 1e6 for line in lines if line[0] == "Pss:")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--runs", type=int, default=21)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        # Packed weights of this build: those of another one would be left alone.
        os.environ["SCONCE_CACHE"] = cache
        measure(args)


def measure(args):
    seconds, peaks = [], []
    for run in range(args.runs + 1):
        start = time.perf_counter()
        process = subprocess.Popen([args.sconce, "embed", "--offline", "hello"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit("sconce failed; run scripts/fetch_model.sh first")
        if run == 0:
            # It has packed the weights and filled the page cache. Their digest is kept once the file is three seconds old.
            time.sleep(4)
        else:
            seconds.append(time.perf_counter() - start)
            peaks.append(usage.ru_maxrss * 1024 / 1e6)
    print(
        f"sconce embed hello, {args.runs} runs: median {statistics.median(seconds) * 1e3:.0f} ms "
        f"({min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f}), peak memory {max(peaks):.0f} MB"
    )
    if Path("/proc/self/smaps_rollup").exists():
        one, four = (
            statistics.median(proportional_set_sizes(args.sconce, processes) for _ in range(5)) for processes in (1, 4)
        )
        print(f"proportional set size: one process {one:.1f} MB, four {four:.1f} MB, {four / one:.2f} times that of one")
    sys.exit(max(peaks) > 100)


if __name__ == "__main__":
    main()
