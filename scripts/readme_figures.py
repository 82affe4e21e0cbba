#!/usr/bin/env python3
"""Writes README's figures anew from the pages that they are from: the tables of speeds from benches/peers-*.md, one a machine, and the first vector from
the tool's own output.

    python3 scripts/readme_figures.py [--check] [--sconce target/release/sconce]

What stands between `<!-- NAME -->` and `<!-- /NAME -->` is replaced. With --check nothing is written; it exits with 1 if README
differs. The vector is compared only as far as it is shown, since its last digits depend on the processor.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"sconce": "Sconce", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "ctranslate2": "CTranslate2"}


def speeds(page):
    """The table of README: every peer and type, the fastest first within a type, and the machine it was measured on."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    head, body = rows[0], rows[2:]
    machine = next(line for line in page.splitlines() if " cores: " in line).lstrip("- ")
    tokens = [index for index, name in enumerate(head) if name.endswith("tokens/s")]
    cosine = head.index("cosine, mean")
    found = ["| | short texts, tokens/s | mixed | long | mean cosine to f32 |", "|---|---:|---:|---:|---:|"]
    order = list(dict.fromkeys(row[1] for row in body))
    rate = lambda row: int(row[tokens[1]].replace(",", ""))
    for row in sorted(body, key=lambda row: (order.index(row[1]), row[0] != "sconce", -rate(row))):
        name = f"{NAMES.get(row[0], row[0])}, {row[1]}"
        cells = [row[index] for index in tokens] + [f"{float(row[cosine]):.5f}".rstrip("0").rstrip(".")]
        bold = "**" if row[0] == "sconce" else ""
        found.append("| " + " | ".join([f"{bold}{name}{bold}", *cells]) + " |")
    return f"Measured on {machine}.\n\n" + "\n".join(found)


def vector(sconce):
    """The row of the first example, with two numbers of its vector, cut to the digits that every processor gives."""
    command = [sconce, "embed", "--offline", "A lamp in the window"]
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    first = ",".join(f"{x:.5f}" for x in row["embedding"][:2])
    shown = {key: value for key, value in row.items() if key != "embedding"}
    row = json.dumps(shown, separators=(",", ":"))[:-1] + f',"embedding":[{first}…]}}'
    return f'```console\n$ sconce embed "A lamp in the window"\n{row}\n```'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce")
    args = parser.parse_args()
    path = ROOT / "README.md"
    readme = before = path.read_text()
    pages = sorted((ROOT / "benches").glob("peers-*.md"))
    tables = "\n\n".join(speeds(page.read_text()) for page in pages)
    for name, text in {"speeds": tables, "vector": vector(args.sconce)}.items():
        pattern = re.compile(rf"<!-- {name} -->\n.*?\n<!-- /{name} -->", re.S)
        if not pattern.search(readme):
            sys.exit(f"README.md has no <!-- {name} -->")
        readme = pattern.sub(lambda _: f"<!-- {name} -->\n{text}\n<!-- /{name} -->", readme)
    if readme == before:
        return
    if args.check:
        sys.exit("README.md shows other figures than the pages they are from; run scripts/readme_figures.py")
    path.write_text(readme)


if __name__ == "__main__":
    main()
