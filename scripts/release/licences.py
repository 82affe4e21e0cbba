#!/usr/bin/env python3
"""Prints the licences of the crates that are in the binary: their names, and the texts that their packages contain.

    python3 scripts/release/licences.py > THIRD-PARTY-LICENSES.txt
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
PREFIXES = ("license", "licence", "copying", "notice", "unlicense")


def host():
    shown = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.split()[1] for line in shown.splitlines() if line.startswith("host:"))


def packages():
    """The packages that the binary is linked from, without sconce itself: not those of build scripts, macros and tests."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host()]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    by_id = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    macros = {id for id, package in by_id.items() if any("proc-macro" in target["kind"] for target in package["targets"])}
    root = metadata["resolve"]["root"]
    found, queue = set(), [root]
    while queue:
        for dep in nodes[queue.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dep["dep_kinds"])
            if is_linked and dep["pkg"] not in macros and dep["pkg"] not in found:
                found.add(dep["pkg"])
                queue.append(dep["pkg"])
    return sorted((by_id[id] for id in found), key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The licence texts of a package."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = {path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(PREFIXES)}
    if package["license_file"]:
        files.add((folder / package["license_file"]).resolve())
    return [path.read_text(errors="replace").strip() for path in sorted(files)]


def main():
    found = packages()
    users = {}
    print("Crates in the binary of sconce, with the licences that they offer.\n")
    for package in found:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or 'see its text below'} ({package['repository'] or package['homepage'] or 'crates.io'})")
        for text in texts(package):
            users.setdefault(text, []).append(name)
    for text, names in users.items():
        print(f"\n{'=' * 80}\n{', '.join(names)}\n{'-' * 80}\n\n{text}")
    print(f"licences.py: {len(found)} crates, {len(users)} texts", file=sys.stderr)


if __name__ == "__main__":
    main()
