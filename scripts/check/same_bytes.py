#!/usr/bin/env python3
"""Compares the output of two sconce binaries byte by byte.

    scripts/check/same_bytes.py OLD NEW [--model DIR]

Embeds the same inputs with both binaries, for every output format, output dtype, compute dtype and instruction set of the processor, and with
chunks, long texts, pairs, kept fields and per-token vectors. Metadata that name the release are the same for both binaries of a release.
Ends with the number of comparisons; the exit code is 1 if any output differs.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FORMATS = ["jsonl", "csv", "npy", "parquet", "arrow", "safetensors"]
OUTPUT_DTYPES = ["f32", "f16", "int8", "binary"]
COMPUTE_DTYPES = ["f32", "bf16", "int8"]


def corpus(folder):
    """Records of many lengths, some of them empty, long, or with ids and fields of several types."""
    words = re.findall(r"\S+", (ROOT / "README.md").read_text())
    texts = [" ".join(words[at : at + 1 + at * 7 % 60]) for at in range(0, 1200, 17)]
    texts += ["", " ", "ünïcödé 日本語 🙂", " ".join(words[:700])]
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for index, text in enumerate(texts):
            record = {"id": f"r{index}", "text": text, "other": texts[index // 2][:80], "year": 1990 + index}
            file.write(json.dumps(record) + "\n")
    return path


def cases(isas):
    for isa, dtype in itertools.product(isas, COMPUTE_DTYPES):
        yield isa, ["--dtype", dtype], "jsonl"
    for form, dtype in itertools.product(FORMATS, OUTPUT_DTYPES):
        yield isas[0], ["--output-dtype", dtype], form
    for form in ("jsonl", "csv", "parquet", "arrow"):
        yield isas[0], ["--keep", "year,other"], form
    for form in FORMATS:
        for options in (
            ["--chunk", "32", "--chunk-overlap", "4"],
            ["--chunk", "32", "--chunk-late", "--pooling", "mean"],
            ["--on-long", "mean"],
            ["--on-long", "skip", "--skip-empty"],
            ["--pair-field", "other"],
        ):
            yield isas[0], options, form
    for options in (["--pooling", "none", "--limit", "9"], ["--pooling", "cls"], ["--no-normalize"], ["--dimensions", "16"]):
        yield isas[0], options, "jsonl"


def run(binary, isa, options, form, source, folder):
    """The bytes of everything that a run leaves, by file name."""
    output = folder / f"out.{form}"
    command = [binary, "embed", "--quiet", "--input", str(source), "--output", str(output), *options]
    done = subprocess.run(command, env=os.environ | {"SCONCE_ISA": isa}, capture_output=True, text=True)
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    for name in files:
        (folder / name).unlink()
    return done.returncode, files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--model", help="by default all-MiniLM-L6-v2 from the cache")
    args = parser.parse_args()
    error = subprocess.run([args.new, "embed", "x"], env=os.environ | {"SCONCE_ISA": "none"}, capture_output=True, text=True)
    isas = re.search(r"it has (.*)", error.stderr)[1].split(", ")
    model = ["--model", args.model] if args.model else []
    differences = count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source = corpus(folder)
        (folder / "run").mkdir()
        for isa, options, form in cases(isas):
            old, new = (run(binary, isa, [*model, *options], form, source, folder / "run") for binary in (args.old, args.new))
            count += 1
            ledgers = [result[1].pop(f"out.{form}.ledger.jsonl", b"") for result in (old, new)]
            # Reasons are sentences for people and may be worded anew.
            ledgers = [[{k: v for k, v in json.loads(line).items() if k != "reason"} for line in ledger.splitlines()] for ledger in ledgers]
            if old != new or ledgers[0] != ledgers[1] or old[0] not in (0, 3):
                differences += 1
                print(f"differs: SCONCE_ISA={isa} {form} {' '.join(options)} (exit codes {old[0]}, {new[0]})")
    print(f"{count} comparisons under {', '.join(isas)}, {differences} differences")
    return differences > 0


if __name__ == "__main__":
    sys.exit(main())
