#!/usr/bin/env python3
"""Draws docs/terminal.svg: commands and what they print, from a real run with all-MiniLM-L6-v2.

    python scripts/bench/terminal_picture.py [--sconce target/release/sconce] [--output docs/terminal.svg]

Needs rich (scripts/bench/requirements-picture.txt) and the model of scripts/fetch_model.sh. The commands run in a temporary directory
with the pages of docs/.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from rich.console import Console
from rich.text import Text

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 110
COMMANDS = [
    'sconce embed "A lamp in the window"',
    "sconce embed -i docs/*.md --skip-empty --keep text -o docs.parquet",
    'sconce search docs.parquet "how do I resume a run" -k 3 --keep text',
    'sconce similarity "a lamp" "a light" "a key"',
]


def run(command, folder, environment):
    """What a command prints, output and errors in their order."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout.splitlines()


def shorten(line):
    """A line that fits the picture."""
    return line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce", type=pathlib.Path)
    parser.add_argument("--output", default=ROOT / "docs" / "terminal.svg", type=pathlib.Path)
    args = parser.parse_args()
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), color_system="truecolor")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(ROOT / "docs", folder / "docs")
        (folder / "bin").mkdir()
        (folder / "bin" / "sconce").symlink_to(args.sconce.resolve())
        environment = dict(os.environ, PATH=f"{folder / 'bin'}:{os.environ['PATH']}", COLUMNS=str(COLUMNS))
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "green"), (command, "bold")))
            for line in run(command, folder, environment):
                console.print(Text(shorten(line)), no_wrap=True)
            console.print()
    svg = console.export_svg(title="sconce", unique_id="sconce")
    # Without the font of a content delivery network: the reader's own monospaced one.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, monospace", "monospace")
    args.output.write_text(svg)


if __name__ == "__main__":
    main()
