#!/usr/bin/env python3
"""Writes the table of docs/models.md from docs/models.json; with --check, fails if the page has another one.

    python scripts/check/models_table.py [--check]

Each row of models.json has

    id          the model on the hub; MODEL in the command
    family      the model type, or the module for models without an encoder
    command     the command that runs it, with MODEL for the id
    fixture     the model under tests/fixtures that tests/integration/models_table.rs runs the command with
    prompts     names of prompts that the model's files have and the fixture's have not
    config      fields of config.json that the fixture gets
    labels      1: the fixture is cut to the first label of its head, for a cross-encoder
    fixture_family   the model type of the fixture if it is another one, with the same modules
    refused     a part of the sentence that refuses it
"""

import argparse
import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- models.json -->\n", "<!-- end of models.json -->\n"


def row(entry):
    command = entry["command"].replace("MODEL", entry["id"])
    result = f"refused: {entry['refused']}" if "refused" in entry else f"`{command}`"
    return f"| {entry['id']} | {entry['family']} | {result} |\n"


def table(entries):
    lines, shown = [], entries
    for i, entry in enumerate(shown):
        if "section" not in entry:
            lines.append(row(entry))
        elif i + 1 < len(shown) and "section" not in shown[i + 1]:
            note = f"{entry['note']}\n\n" if entry["note"] else ""
            lines.append(f"\n### {entry['section']}\n\n{note}| model | family | command |\n|---|---|---|\n")
    return "".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the page instead of writing it")
    check = parser.parse_args().check
    entries = json.loads((DOCS / "models.json").read_text(encoding="utf-8"))
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    new = before + BEGIN + table(entries) + END + after
    if check:
        sys.exit("docs/models.md differs from docs/models.json: run scripts/check/models_table.py" if new != page else 0)
    (DOCS / "models.md").write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
