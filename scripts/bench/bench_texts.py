#!/usr/bin/env python3
"""Writes three files of English prose for benchmarks, one text per line, from the documentation that comes with Python.

    python scripts/bench/bench_texts.py OUT_DIR --model DIR

The prose is the language reference (pydoc_data.topics) and the docstrings of the standard library, without code, grammar rules and
repeated sentences. Lengths are in tokens of the model's tokenizer, including [CLS] and [SEP]:

    short.txt   about 20,000 tokens   single sentences, 18 tokens on average
    mixed.txt   about 60,000 tokens   from 5 up to 256 tokens, 45 on average
    long.txt    about 60,000 tokens   passages of more than 256 tokens, which the model truncates to 256

No sentence occurs twice in a file. The same version of Python and the same tokenizer give the same bytes.
"""

import argparse
import ast
import hashlib
import itertools
import math
import random
import re
import statistics
import sys
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer

MIN_TOKENS, MAX_TOKENS = 5, 256
SPECIAL_TOKENS = 2


def documents():
    yield from (topics[name] for name in sorted(topics))
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if {"test", "tests", "idlelib", "lib2to3", "site-packages", "pydoc_data"}.intersection(path.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield ast.get_docstring(node) or ""


def sentences():
    """Yields sentences of at least three words in the order of the documents, without repetition."""
    seen = set()
    for document in documents():
        for paragraph in re.split(r"\n\s*\n", document):
            if ">>>" in paragraph or "::=" in paragraph:
                continue
            text = " ".join(paragraph.replace("*", "").replace('"', "").replace("``", "").replace("`", "").split())
            for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", text):
                words = sentence.split()
                plain = sum(re.fullmatch(r"[(]?[A-Za-z][a-z'-]*[),.;:!?]*", word) is not None for word in words)
                prose = len(words) >= 3 and plain >= 0.85 * len(words)
                if prose and re.fullmatch(r"[A-Z].*[.!?]", sentence) and sentence not in seen:
                    seen.add(sentence)
                    yield sentence


class Lengths:
    """Counts tokens, word by word and cached: BERT's tokenizer splits at white space first, so a text has the tokens of its words."""

    def __init__(self, tokenizer):
        self.tokenizer, self.known = tokenizer, {}

    def __call__(self, words):
        for word in words:
            if word not in self.known:
                self.known[word] = len(self.tokenizer.encode(word, add_special_tokens=False).ids)
        return sum(self.known[word] for word in words)


def short(prose, length, rng):
    found = [sentence for sentence in prose if 8 <= length(sentence.split()) + SPECIAL_TOKENS <= 32]
    rng.shuffle(found)
    return found, 20_000


def passages(prose, length, target):
    """Yields (words, target): consecutive sentences until they have target() tokens. Drops an incomplete last passage."""
    passage, wanted = [], target()
    for sentence in prose:
        passage = passage + sentence.split()
        if length(passage) + SPECIAL_TOKENS >= wanted:
            yield passage, wanted
            passage, wanted = [], target()


def mixed(prose, length, rng):
    """Passages with log-normally distributed lengths, truncated at word boundaries."""
    found = []
    for passage, wanted in passages(prose, length, lambda: min(max(rng.lognormvariate(math.log(33), 0.9), 8), MAX_TOKENS)):
        while length(passage) + SPECIAL_TOKENS > wanted and length(passage[:-1]) + SPECIAL_TOKENS >= MIN_TOKENS:
            passage.pop()
        found.append(" ".join(passage))
    rng.shuffle(found)
    return found, 60_000


def long(prose, length, rng):
    found = [" ".join(passage) for passage, _ in passages(prose, length, lambda: MAX_TOKENS + 1)]
    rng.shuffle(found)
    return found, 60_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--model", type=Path, required=True, help="directory of the model whose tokenizer.json counts tokens")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    length = Lengths(tokenizer)
    prose = list(sentences())
    args.out.mkdir(parents=True, exist_ok=True)
    for make in (short, mixed, long):
        found, wanted = make(prose, length, random.Random(20261121))
        tokens = itertools.accumulate(min(length(text.split()) + SPECIAL_TOKENS, MAX_TOKENS) for text in found)
        texts = [text for text, before in zip(found, itertools.chain([0], tokens)) if before < wanted]
        counts = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
        truncated = [min(count, MAX_TOKENS) for count in counts]
        if sum(truncated) < wanted:
            sys.exit(f"{make.__name__}.txt needs {wanted} tokens, but the documentation of this Python has only {sum(truncated)}")
        data = "".join(text + "\n" for text in texts).encode()
        (args.out / f"{make.__name__}.txt").write_bytes(data)
        print(
            f"{make.__name__}.txt: {len(texts)} texts, {sum(truncated)} tokens, {statistics.mean(truncated):.1f} per text, "
            f"{min(counts)} to {max(counts)}, sha256 {hashlib.sha256(data).hexdigest()[:16]}"
        )


if __name__ == "__main__":
    main()
