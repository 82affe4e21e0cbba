#!/usr/bin/env python3
"""Benchmarks static embeddings, from file to file, beside the tokenizer alone and beside model2vec, and writes a Markdown page.

    pip install -r scripts/fixtures/requirements-reference.txt model2vec
    scripts/bench/static.py --tokenizer DIR [--sconce target/release/sconce] [--rounds 5] [--texts 100000] --out benches/static.md

The model has the tokenizer of DIR and a table of 256 columns with random values. The texts are English prose from the documentation
that comes with Python, a sentence or several each. In every round all of these run one after another, so that a slower phase of the
machine affects all of them; the median of the rounds is reported, and ratios are of medians.

- tokenizer: `encode_batch_fast` of the tokenizers library on all cores, without special tokens, over texts in memory: the loading of
  the tokenizer and reading the file are left out
- model2vec: `StaticModel.encode` with its defaults, from the lines of a file to a npy file; loading the model is left out
- sconce: the whole process, from the lines of a file to a npy file, less a process that embeds one text
"""

import argparse
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_texts import documents
from model2vec import StaticModel
from tokenizers import Tokenizer


def texts(count):
    sentences = [s.strip() for text in documents() for s in text.replace("\n", " ").split(". ") if len(s) > 20]
    r = random.Random(1)
    return [". ".join(r.choices(sentences, k=r.randint(1, 3)))[:2000] for _ in range(count)]


def timed(run):
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--sconce", default="target/release/sconce")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        fast = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
        fast.no_padding()
        fast.no_truncation()
        rows = fast.get_vocab_size()
        table = np.random.default_rng(1).normal(size=(rows, 256)).astype(np.float32)
        config = {"model_type": "model2vec", "normalize": True}
        StaticModel(table, fast, config=config, normalize=True).save_pretrained(folder / "model")
        lines = texts(args.texts)
        (folder / "texts.txt").write_text("\n".join(lines) + "\n")
        (folder / "one.txt").write_text("one text\n")
        model = StaticModel.from_pretrained(folder / "model")

        def sconce(file):
            out = folder / f"{file}.npy"
            out.unlink(missing_ok=True)
            command = [args.sconce, "embed", "-q", "-m", folder / "model", "-i", folder / file, "-o", out]
            subprocess.run(list(map(str, command)), check=True)
            return out

        def reference():
            read = (folder / "texts.txt").read_text().splitlines()
            np.save(folder / "reference.npy", model.encode(read))

        seconds = {"tokenizer": [], "model2vec": [], "sconce": []}
        for _ in range(args.rounds):
            os.environ["TOKENIZERS_PARALLELISM"] = "true"
            seconds["tokenizer"].append(timed(lambda: fast.encode_batch_fast(lines, add_special_tokens=False))[0])
            seconds["model2vec"].append(timed(reference)[0])
            start = timed(lambda: sconce("one.txt"))[0]
            seconds["sconce"].append(timed(lambda: sconce("texts.txt"))[0] - start)
        difference = np.abs(np.load(folder / "texts.txt.npy") - np.load(folder / "reference.npy")).max()
        tokens = sum(len(encoding) for encoding in fast.encode_batch_fast(lines, add_special_tokens=False))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    page = [
        "# Static embeddings beside the tokenizer and model2vec", "",
        "Written by `scripts/bench/static.py`, which says what is measured.", "",
        f"- {args.texts:,} texts, {tokens:,} tokens; a table of {rows:,} × 256 in f32; {os.cpu_count()} threads; "
        f"median of {args.rounds} rounds; Python {platform.python_version()}",
        f"- largest difference from model2vec: {difference:.1e}", "",
        "| what | s | texts/s | tokens/s | / tokenizer | model2vec / this |", "|---|---:|---:|---:|---:|---:|",
    ]
    for name, value in median.items():
        page.append(
            f"| {name} | {value:.2f} | {args.texts / value:,.0f} | {tokens / value:,.0f} | "
            f"{value / median['tokenizer']:.2f} | {median['model2vec'] / value:.2f} |"
        )
    page = "\n".join(page) + "\n"
    print(page)
    if args.out:
        args.out.write_text(page)


if __name__ == "__main__":
    main()
