#!/usr/bin/env python3
"""Prints the Homebrew formula of a release, from the archives that scripts/release/archive.sh has made and their SHA-256.

    python3 scripts/release/homebrew.py URL ARCHIVE... > sconce.rb

URL is where the archives can be downloaded from, such as https://github.com/OWNER/sconce/releases/download/v0.1.0.
"""

import pathlib
import re
import sys

# The parts of a target triple, and the blocks of a formula for them.
SYSTEMS = {"apple-darwin": "on_macos", "unknown-linux-gnu": "on_linux"}
PROCESSORS = {"x86_64": "on_intel", "aarch64": "on_arm"}


def block(url, path):
    """The download of an archive, as (block of the system, block of the processor, url and sha256)."""
    version, processor, system = re.fullmatch(r"sconce-([^-]+)-([^-]+)-(.+)\.tar\.gz", path.name).groups()
    sha256 = path.with_name(path.name + ".sha256").read_text().split()[0]
    return version, SYSTEMS[system], PROCESSORS[processor], f'url "{url.rstrip("/")}/{path.name}"\n      sha256 "{sha256}"'


def main():
    if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    url, *paths = sys.argv[1:]
    blocks = [block(url, pathlib.Path(path)) for path in paths]
    (version,) = {version for version, *_ in blocks}
    downloads = "\n".join(f"  {system} do\n    {processor} do\n      {source}\n    end\n  end" for _, system, processor, source in blocks)
    print(f'''class Sconce < Formula
  desc "Text into vectors with BERT-style encoders, from one binary"
  version "{version}"
  license any_of: ["Apache-2.0", "MIT"]

{downloads}

  def install
    bin.install "sconce"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/sconce.bash" => "sconce"
    zsh_completion.install "completions/_sconce"
    fish_completion.install "completions/sconce.fish"
    doc.install "THIRD-PARTY-LICENSES.txt"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/sconce --version")
  end
end''')


if __name__ == "__main__":
    main()
