#!/usr/bin/env python3
"""Embeds many lines with a tiny model; checks that memory stays constant and that every row is written, in order.

    python3 scripts/check/scale.py [--sconce target/release/sconce] [--rows 1000000] [--input-gb 0]

Embeds a third of the rows, at most 300,000, as many times as give all rows, and all rows once, into jsonl, npy and parquet. The peak memory (VmHWM) of all rows
may exceed the highest of the others by 10 %, or by 4 bytes for each row more, which is less than a pointer for each row; the number of
rows has to match; and sampled rows have to equal the vectors of their texts embedded alone. With --input-gb N, also embeds N GB of
jsonl, mostly a field that is not embedded, with the address space limited to 1 GB. Exits with 1 if a check fails.

What grows is the fragmentation of the heap: measured for npy, 3 bytes a row in the first million and 0.6 in the third. The bytes in use do
not grow.
"""
import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "tests/fixtures/bert-tiny")
# Peak memory may grow by the larger of the two. Whatever is kept for a row has the 8 bytes of a pointer or an offset, at least.
MAX_GROWTH, MAX_BYTES_PER_ROW = 0.10, 4
WORDS = "the of to in is on and light lamp candle wick flame burn attention head key query value".split()


def line(rng, length=60):
    text = ""
    while len(text) < length - 8:
        text += rng.choice(WORDS) + " "
    return text[:-1]


def run(sconce, source, target, *more):
    stats = target + ".stats"
    start = time.monotonic()
    command = [sconce, "embed", "-m", MODEL, "-i", source, "-o", target, "--stats", stats, "--quiet", *more]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    with open(stats) as file:
        found = json.load(file)
    return found, time.monotonic() - start


def rows_of(target, picks):
    """The number of rows, and the vectors of the rows `picks`. Uses the standard library only."""
    if target.endswith(".npy"):
        import ast
        import struct

        with open(target, "rb") as file:
            header = ast.literal_eval(file.read(128)[10:].decode())
            count, width = header["shape"]
            found = {}
            for index in picks:
                file.seek(128 + 4 * width * index)
                found[index] = list(struct.unpack(f"<{width}f", file.read(4 * width)))
            size = os.path.getsize(target)
        assert size == 128 + 4 * width * count, f"{target} has {size} bytes"
        return count, found
    count, found = 0, {}
    with open(target) as file:
        for count, text in enumerate(file, 1):
            if count - 1 in picks:
                row = json.loads(text)
                assert row["index"] == count - 1, f"row {count - 1} has index {row['index']}"
                found[count - 1] = row["embedding"]
    return count, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=os.path.join(ROOT, "target/release/sconce"))
    parser.add_argument("--rows", type=int, default=1_000_000, help="fewer show the growth of the first seconds")
    parser.add_argument("--input-gb", type=float, default=0)
    parser.add_argument("--formats", nargs="+", default=["jsonl", "npy", "parquet"])
    options = parser.parse_args()
    rng = random.Random(4)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        sources = {}
        few = min(300_000, options.rows // 3)
        for rows in (few, options.rows):
            sources[rows] = os.path.join(folder, f"{rows}.txt")
            with open(sources[rows], "w") as file:
                file.writelines(line(rng) + "\n" for _ in range(rows))
        for format in options.formats:
            peaks = []
            for rows, source in sources.items():
                target = os.path.join(folder, f"out.{format}")
                # Both peaks are a maximum over as many rows.
                runs = [run(options.sconce, source, target, "--restart") for _ in range(options.rows // rows)]
                stats, seconds = runs[-1]
                peaks.append(max(stats["peak_memory_bytes"] for stats, _ in runs))
                print(
                    f"{format:12} {rows:9} rows {os.path.getsize(source) / 1e6:7.1f} MB in {seconds:6.1f} s, "
                    f"{rows / seconds:7.0f} rows/s, peak {peaks[-1] / 1e6:6.1f} MB",
                    flush=True,
                )
                assert stats["rows"] == rows
                if format != "parquet":
                    picks = sorted({0, rows - 1, *rng.sample(range(rows), 50)})
                    count, found = rows_of(target, set(picks))
                    assert count == rows, f"{count} rows"
                    with open(source) as file:
                        texts = [text[:-1] for index, text in enumerate(file) if index in found]
                    command = [options.sconce, "embed", "-m", MODEL, "--quiet", *texts]
                    alone = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
                    for index, text in zip(picks, alone):
                        assert json.loads(text)["embedding"] == [float(f"{x:.9g}") for x in found[index]] or same(
                            json.loads(text)["embedding"], found[index]
                        ), f"row {index} differs from the vector of its text"
                os.remove(target)
            growth, more_rows = peaks[1] - peaks[0], options.rows - few
            print(
                f"{format:12} peak memory grows by {100 * growth / peaks[0]:+.1f} %, {growth / more_rows:+.1f} bytes for each row more"
            )
            failed |= growth > max(MAX_GROWTH * peaks[0], MAX_BYTES_PER_ROW * more_rows)
        if options.input_gb:
            source = os.path.join(folder, "large.jsonl")
            body = "lorem ipsum dolor " * 5600
            with open(source, "w") as file:
                rows = 0
                while file.tell() < options.input_gb * 1e9:
                    file.write(json.dumps({"id": rows, "body": body, "text": line(rng)}) + "\n")
                    rows += 1
            limit = 1_000_000_000
            target = os.path.join(folder, "large.npy")
            stats = target + ".stats"
            command = [options.sconce, "embed", "-m", MODEL, "-i", source, "-o", target, "--stats", stats, "--quiet"]
            subprocess.run(
                command,
                check=True,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
            )
            with open(stats) as file:
                found = json.load(file)
            assert found["rows"] == rows
            print(
                f"{os.path.getsize(source) / 1e9:.1f} GB of input with an address space of 1 GB: {found['rows']} rows in "
                f"{found['seconds']:.0f} s, peak {found['peak_memory_bytes'] / 1e6:.1f} MB"
            )
    sys.exit(failed)


def same(a, b):
    """Whether two lists are equal as 32-bit floats."""
    import struct

    return struct.pack(f"<{len(a)}f", *a) == struct.pack(f"<{len(b)}f", *b)


if __name__ == "__main__":
    main()
