#!/usr/bin/env python3
"""Generates the figures of README.md and docs/: tables of speeds from benches/peers-*.md and of full-size models from benches/full-size.md,
and the README's first vector from sconce.

    python3 scripts/bench/readme_figures.py [--check] [--sconce target/release/sconce] [--only NAME]

Replaces the text between `<!-- NAME -->` and `<!-- /NAME -->`:

    README.md        install    how to install sconce: with pip once Cargo.toml says that it is on PyPI, else from the clone
    README.md        vector     a row of `sconce embed`, with the digits that every processor gives
    README.md        speeds     tokens per second: one table for all machines
    README.md        million    what a million texts cost on the slowest and the fastest of the machines
    docs/speed.md    speeds     tokens per second and mean cosines: one table per machine
    docs/speed.md    single     milliseconds of a single text: one table per machine
    docs/speed.md    ratios     speeds of full-size models beside peers, from benches/full-size-peers.md
    docs/accuracy.md full-size  differences and memory of full-size models, from benches/full-size.md

With --check nothing is written; exits with 1 if a page is out of date. Only the block vector needs a binary.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"sconce": "Sconce", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "ctranslate2": "CTranslate2"}
TEXTS = ["short", "mixed", "long"]
# Dollars: about what clouds ask for a core of a general-purpose machine on demand.
PRICE_OF_CORE_HOUR = 0.05
CORES = 2
# The first flag that a processor has names its columns.
ISAS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}


class Page:
    """A page of peers.py: the machine, the columns, and one row of cells per peer and type."""

    def __init__(self, path):
        lines = path.read_text().splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        self.machine = next(line for line in lines if " cores: " in line).removeprefix("- ")
        self.columns, self.rows = rows[0], rows[2:]

    def cell(self, row, column):
        return row[self.columns.index(column)]

    def sorted_rows(self):
        """By type in the order of the page; within a type Sconce first, then by speed on mixed texts."""
        types = list(dict.fromkeys(row[1] for row in self.rows))
        speed = lambda row: int(self.cell(row, "mixed, tokens/s").replace(",", ""))
        return sorted(self.rows, key=lambda row: (types.index(row[1]), row[0] != "sconce", -speed(row)))

    def processor(self):
        return self.machine.split(", family")[0].replace("(R)", "")

    def isa(self):
        """The widest ISA of the processor; with AVX-512 and its vendor, on whom the rates of FMA and of bf16 depend."""
        flags = self.machine.split(" cores: ")[1].split()
        isa = next(isa for flag, isa in ISAS.items() if flag in flags)
        return isa if isa != "AVX-512" else f"{isa}, {'Intel' if 'Intel' in self.machine else 'AMD'}"


def peer_name(row):
    name = f"{NAMES.get(row[0], row[0])}, {row[1]}"
    return f"**{name}**" if row[0] == "sconce" else name


def speeds_of_machine(page):
    """The full table of one machine."""
    lines = ["| | short texts, tokens/s | mixed | long | mean cosine to f32 |", "|---|---:|---:|---:|---:|"]
    for row in page.sorted_rows():
        cells = [page.cell(row, f"{texts}, tokens/s") for texts in TEXTS]
        cells.append(f"{float(page.cell(row, 'cosine, mean')):.5f}".rstrip("0").rstrip("."))
        lines.append("| " + " | ".join([peer_name(row), *cells]) + " |")
    return f"Measured on {page.machine}.\n\n" + "\n".join(lines)


def speeds_of_all_machines(pages):
    """The table of all machines: a column per machine, for mixed texts."""
    lines = ["| tokens/s | " + " | ".join(page.isa() for page in pages) + " |", "|---|" + "---:|" * len(pages)]
    for first in pages[0].sorted_rows():
        cells = []
        for page in pages:
            found = next((row for row in page.rows if row[:2] == first[:2]), None)
            cells.append(page.cell(found, "mixed, tokens/s") if found else "")
        lines.append("| " + " | ".join([peer_name(first), *cells]) + " |")
    machines = "; ".join(f"{page.isa()}: {page.processor()}" for page in pages)
    return "\n".join([*lines, "", f"{machines}."])


def cost_of_a_million(pages):
    """What a million texts of 100 tokens cost, from the tokens per second of mixed texts."""
    tokens = 100 * 1_000_000
    speeds = {}
    for page in pages:
        for row in page.rows:
            if row[:2] in (["sconce", "f32"], ["sconce", "int8"]):
                speed = int(page.cell(row, "mixed, tokens/s").replace(",", ""))
                speeds.setdefault(row[1], []).append((speed, page.isa()))
    cases = [("f32", min(speeds["f32"])), ("int8", max(speeds["int8"]))]
    sentences = []
    for dtype, (speed, isa) in cases:
        hours = tokens / speed / 3600
        cost = hours * CORES * PRICE_OF_CORE_HOUR
        sentences.append(
            f"- {dtype} on {isa}: 100,000,000 / {speed:,} tokens per second = {hours:.1f} hours of {CORES} cores, or ${cost:.2f}"
        )
    return f"A million texts of 100 tokens, at ${PRICE_OF_CORE_HOUR:.2f} for an hour of a core:\n\n" + "\n".join(sentences)


def single_texts(page):
    """The table of single texts of one machine."""
    columns = [column for column in page.columns if column.startswith("one text")]
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in page.sorted_rows():
        lines.append("| " + " | ".join([peer_name(row), *(page.cell(row, column) for column in columns)]) + " |")
    return f"Measured on {page.machine}.\n\n" + "\n".join(lines)


def installation():
    """The commands that install sconce."""
    with open(ROOT / "Cargo.toml", "rb") as file:
        if tomllib.load(file)["package"]["metadata"]["release"]["pypi"]:
            return "```sh\npip install sconce-embed          # the command sconce and a Python package; no Rust, no PyTorch\n```"
    return (
        "```sh\n"
        "scripts/quickstart.sh     # in a clone: build, install, download all-MiniLM-L6-v2, compare three texts\n"
        "scripts/test.sh           # all tests\n"
        "```\n\n"
        "[Both need](#from-source) Rust, a C compiler and Python with pip. [One command](docs/install.md) makes a Python wheel."
    )


def first_vector(sconce):
    """The README's first example: the row of a text, with two elements of its vector, rounded to five decimals."""
    command = [sconce, "embed", "--offline", "A lamp in the window"]
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    elements = ",".join(f"{x:.5f}" for x in row.pop("embedding")[:2])
    row = json.dumps(row, separators=(",", ":"))[:-1] + f',"embedding":[{elements}…]}}'
    return f'```console\n$ sconce embed "A lamp in the window"\n{row}\n```'


def full_size():
    """The table of full-size models."""
    lines = (ROOT / "benches" / "full-size.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    machine = next(line for line in lines if " on " in line and "full_size.py" in line).split("` on ")[1]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", f"Measured on {machine}"])


def ratios():
    """The table of full-size models beside peers."""
    lines = (ROOT / "benches" / "full-size-peers.md").read_text().splitlines()
    first = lines.index("## Sconce / fastest peer") + 2
    date, machine = [next(line for line in lines[i:] if line.startswith("- "))[2:] for i in (0, next(i for i, line in enumerate(lines) if line.startswith("- ")) + 1)]
    table = [line for line in lines[first : lines.index("", first)]]
    return "\n".join([*table, "", f"Measured on {date.split(',')[0]}, {machine}"])


def replaced(text, name, block, path):
    """`text` with the block of this name replaced."""
    pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.S)
    if not pattern.search(text):
        sys.exit(f"{path.relative_to(ROOT)} has no block <!-- {name} --> … <!-- /{name} -->")
    return pattern.sub(lambda _: f"<!-- {name} -->\n{block}\n<!-- /{name} -->", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce", help="binary for the first vector")
    parser.add_argument("--only", choices=["full-size", "install", "million", "ratios", "single", "speeds", "vector"], help="generate the blocks of this name only")
    args = parser.parse_args()
    pages = [Page(path) for path in sorted((ROOT / "benches").glob("peers-*.md"))]
    blocks = [
        ("README.md", "install", installation),
        ("README.md", "vector", lambda: first_vector(args.sconce)),
        ("README.md", "speeds", lambda: speeds_of_all_machines(pages)),
        ("README.md", "million", lambda: cost_of_a_million(pages)),
        ("docs/accuracy.md", "full-size", full_size),
        ("docs/speed.md", "speeds", lambda: "\n\n".join(map(speeds_of_machine, pages))),
        ("docs/speed.md", "ratios", ratios),
        ("docs/speed.md", "single", lambda: "\n\n".join(single_texts(page) for page in pages if "one text, ms" in page.columns)),
    ]
    outdated = []
    for file, name, make in blocks:
        if args.only not in (None, name):
            continue
        path = ROOT / file
        before = path.read_text()
        after = replaced(before, name, make(), path)
        if after == before:
            continue
        outdated.append(f"{file} ({name})")
        if not args.check:
            path.write_text(after)
    if args.check and outdated:
        sys.exit(f"out of date: {', '.join(outdated)}; run scripts/bench/readme_figures.py")


if __name__ == "__main__":
    main()
