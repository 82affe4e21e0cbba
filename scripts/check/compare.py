#!/usr/bin/env python3
"""Compares Sconce with the reference implementation: 1,000 varied texts, all-MiniLM-L6-v2.

    pip install -r scripts/fixtures/requirements-reference.txt
    python scripts/check/compare.py [--sconce target/release/sconce] [--model DIR] [--words 40000]

Bounds on the maximum absolute difference over all elements of all vectors:

    1e-6   normalised sentence vectors against SentenceTransformer.encode
    1e-5   CLS vectors, not normalised, against the last hidden states of the same pass
    1e-6   one long text with `--on-long mean`, against the same chunks encoded by transformers

Exits with 1 if a difference exceeds its bound.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "fixtures"))
from sample_texts import EMPTY_ISH, SENTENCES  # noqa: E402


def texts(count=1000):
    rng = random.Random(20261120)
    words = [word for sentence in SENTENCES for word in sentence.split()]
    out = EMPTY_ISH + SENTENCES
    while len(out) < count:
        kind = rng.randrange(6)
        if kind == 0:  # short
            out.append(" ".join(rng.choices(words, k=rng.randint(1, 6))))
        elif kind == 1:  # ordinary
            out.append(" ".join(rng.choices(words, k=rng.randint(7, 60))))
        elif kind == 2:  # around the limit of 256 tokens, and far above it
            out.append(" ".join(rng.choices(words, k=rng.choice([150, 180, 200, 250, 600, 3000]))))
        elif kind == 3:  # sentences in several scripts
            out.append(" ".join(rng.sample(SENTENCES, rng.randint(1, 4))))
        elif kind == 4:  # random characters: many unknown and rare word pieces
            out.append("".join(chr(rng.choice([rng.randint(33, 126), rng.randint(160, 0x2FFF)])) for _ in range(rng.randint(1, 80))))
        else:  # one word repeated, with and without spaces
            word = rng.choice(words)
            out.append(rng.choice([" ".join([word] * rng.randint(1, 90)), word * rng.randint(1, 60)]))
    return out[:count]


def run(sconce, model, lines, *options):
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "texts.txt"), Path(folder, "vectors.npy")
        source.write_bytes("".join(line + "\n" for line in lines).encode())
        subprocess.run([sconce, "embed", "-m", model, "-i", source, "-o", target, *options], check=True)
        return np.load(target)


def reference_vectors(reference, lines):
    """The sentence vectors and the CLS vectors of one pass, each (N, H)."""
    rows = reference.encode(lines, batch_size=32, output_value=None)
    return np.stack([row["sentence_embedding"] for row in rows]), np.stack([row["token_embeddings"][0] for row in rows])


@torch.no_grad()
def mean_over_chunks(model, text, limit):
    """The mean of the chunk vectors of a text, weighted by their tokens and normalised, (1, H); and the tokens of the text.

    A chunk has `limit` tokens, special tokens included. Its vector is the mean of its last hidden states.
    """
    tokens, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    ids = tokens(text, add_special_tokens=False, verbose=False)["input_ids"]
    parts = [ids[start : start + limit - 2] for start in range(0, len(ids), limit - 2)]
    total, count = np.zeros(encoder.config.hidden_size), 0
    for part in parts:
        chunk = torch.tensor([[tokens.cls_token_id, *part, tokens.sep_token_id]])
        vector = encoder(input_ids=chunk).last_hidden_state[0].mean(0).double().numpy()
        total, count = total + vector * chunk.shape[1], count + chunk.shape[1]
    return (total / count / np.linalg.norm(total / count))[None], len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--model", help="directory of the model [default: all-MiniLM-L6-v2 in the Hugging Face cache]")
    parser.add_argument("--words", type=int, default=40_000, help="words of the long text, of which each has several tokens")
    args = parser.parse_args()
    model = args.model or subprocess.check_output(
        [args.sconce, "download", "--offline", "sentence-transformers/all-MiniLM-L6-v2"], text=True
    ).strip()
    lines = texts()
    reference = SentenceTransformer(model, device="cpu")
    failed = False
    long = " ".join(random.Random(7).choices(" ".join(lines).split(), k=args.words))
    from_chunks, tokens = mean_over_chunks(model, long, reference.max_seq_length)
    assert tokens >= 2.5 * args.words, tokens
    sentences, cls = reference_vectors(reference, lines)
    for what, lines, bound, expected, options in [
        ("normalised sentence vectors", lines, 1e-6, sentences, []),
        ("CLS vectors, not normalised", lines, 1e-5, cls, ["--pooling", "cls", "--no-normalize"]),
        (f"a text of {tokens} tokens, mean over chunks", [long], 1e-6, from_chunks, ["--on-long", "mean"]),
    ]:
        found = run(args.sconce, model, lines, *options)
        assert found.shape == expected.shape, (found.shape, expected.shape)
        difference = np.abs(found.astype(np.float64) - expected).max(axis=1)
        worst = int(difference.argmax())
        ok = bool(difference.max() <= bound)
        failed |= not ok
        print(
            f"{what}: {len(lines)} texts, maximum difference {difference.max():.2e} (text {worst}), "
            f"bound {bound:.0e}: {'ok' if ok else 'EXCEEDED'}"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
