#!/usr/bin/env python3
"""Runs the code blocks of docs/recipes.md, each in a new process, on a corpus of six texts.

    pip install -r scripts/check/requirements-readers.txt
    scripts/fetch_model.sh
    python3 scripts/check/recipes.py [--sconce target/release/sconce]

Every recipe has to succeed, and those that rank have to print the text that is most similar to the first one right after it. Exits
with 1 if a recipe fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    "A lamp in the window", "Quarterly earnings rose by a tenth", "A light left on in the window", "The recipe needs two eggs",
    "Shares fell on Monday", "How to change a bicycle tyre",
]
NEAREST = TEXTS[2]


def recipes():
    """(language, code) of each code block."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    return re.findall(r"```(sh|python)\n(.*?)```", page, flags=re.DOTALL)


def run(language, code, folder, env):
    command = ["bash", "-euc", code] if language == "sh" else [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target" / "release" / "sconce")
    args = parser.parse_args()
    blocks = recipes()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, PATH=f"{args.sconce.resolve().parent}:{os.environ['PATH']}")
        (Path(folder) / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        for language, code in blocks:
            result = run(language, code, folder, env)
            ranks = language == "python" and "corpus.parquet" in code
            wrong = None
            if result.returncode != 0:
                wrong = (result.stderr.strip().splitlines() or ["no message"])[-1]
            elif ranks and not 0 <= result.stdout.find(TEXTS[0]) < result.stdout.find(NEAREST):
                wrong = f"does not rank {NEAREST!r} second: {result.stdout}"
            failed += wrong is not None
            print(f"{code.strip().splitlines()[0][:60]:60} {wrong or 'ok'}")
    print(f"{len(blocks) - failed} recipes ran" + (f", {failed} failed" if failed else ""))
    sys.exit(failed > 0 or len(blocks) < 7)


if __name__ == "__main__":
    main()
