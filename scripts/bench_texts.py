#!/usr/bin/env python3
"""Makes three files of real English to measure with, one text a line, from what comes with every Python.

    python scripts/bench_texts.py OUT_DIR --model DIR

The prose is that of the language reference (pydoc_data.topics) and of the docstrings of the standard library, without
code, grammar and repeated sentences. Lengths are in tokens of the model's tokenizer, [CLS] and [SEP] included:

    short.txt   about 20,000 tokens   single sentences, 18 tokens on average
    mixed.txt   about 60,000 tokens   from 5 up to 256 tokens, 45 on average
    long.txt    about 60,000 tokens   passages of more than 256 tokens: each is cut to 256

No sentence stands twice in one file. The same Python and tokenizer make the same bytes; another Python has other prose.
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

SHORTEST, LIMIT = 5, 256
SPECIALS = 2


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
    """Sentences of at least three words, in the order of the documents, each once."""
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
    """The tokens of words. BERT's tokenizer splits at blanks first, so that a text has the tokens of its words."""

    def __init__(self, tokenizer):
        self.tokenizer, self.known = tokenizer, {}

    def __call__(self, words):
        for word in words:
            if word not in self.known:
                self.known[word] = len(self.tokenizer.encode(word, add_special_tokens=False).ids)
        return sum(self.known[word] for word in words)


def short(prose, length, rng):
    found = [sentence for sentence in prose if 8 <= length(sentence.split()) + SPECIALS <= 32]
    rng.shuffle(found)
    return found, 20_000


def passages(prose, length, target):
    """Sentences one after another till they have target() tokens, over and over; the last passage is left out if it falls short."""
    passage, wanted = [], target()
    for sentence in prose:
        passage = passage + sentence.split()
        if length(passage) + SPECIALS >= wanted:
            yield passage, wanted
            passage, wanted = [], target()


def mixed(prose, length, rng):
    """Passages cut, at a word, to lengths of which many are small and few large: log-normal."""
    found = []
    for passage, wanted in passages(prose, length, lambda: min(max(rng.lognormvariate(math.log(33), 0.9), 8), LIMIT)):
        while length(passage) + SPECIALS > wanted and length(passage[:-1]) + SPECIALS >= SHORTEST:
            passage.pop()
        found.append(" ".join(passage))
    rng.shuffle(found)
    return found, 60_000


def long(prose, length, rng):
    found = [" ".join(passage) for passage, _ in passages(prose, length, lambda: LIMIT + 1)]
    rng.shuffle(found)
    return found, 60_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--model", type=Path, required=True, help="folder with the tokenizer.json that counts")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    length = Lengths(tokenizer)
    prose = list(sentences())
    args.out.mkdir(parents=True, exist_ok=True)
    for make in (short, mixed, long):
        found, wanted = make(prose, length, random.Random(20261121))
        tokens = itertools.accumulate(min(length(text.split()) + SPECIALS, LIMIT) for text in found)
        texts = [text for text, before in zip(found, itertools.chain([0], tokens)) if before < wanted]
        counts = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
        cut = [min(count, LIMIT) for count in counts]
        if sum(cut) < wanted:
            sys.exit(f"this Python has prose for {sum(cut)} of {wanted} tokens of {make.__name__}.txt")
        data = "".join(text + "\n" for text in texts).encode()
        (args.out / f"{make.__name__}.txt").write_bytes(data)
        print(
            f"{make.__name__}.txt: {len(texts)} texts, {sum(cut)} tokens, {statistics.mean(cut):.1f} a text, {min(counts)} to "
            f"{max(counts)}, sha256 {hashlib.sha256(data).hexdigest()[:16]}"
        )


if __name__ == "__main__":
    main()
