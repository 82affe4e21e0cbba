#!/usr/bin/env python3
"""Writes reference vectors for `sconce verify`, computed by sentence-transformers in f32 on the CPU.

    pip install sentence-transformers
    python scripts/reference_vectors.py --model sentence-transformers/all-MiniLM-L6-v2 texts.txt reference.jsonl
    sconce verify --model sentence-transformers/all-MiniLM-L6-v2 --against reference.jsonl

TEXTS has one text per line, or with the extension .jsonl an object with a field "text" per line. OUTPUT has a line per text,
{"text": …, "embedding": […]}; with the extension .npy it is the array alone, to be verified with `--input TEXTS`.
Twelve texts or more are needed to compare nearest neighbours; a few hundred of those that will be embedded are better.
"""

import argparse
import json
from pathlib import Path


def read(path):
    # Lines end at \n only: str.splitlines would also split at other characters.
    lines = path.read_bytes().decode().split("\n")
    lines = [line.removesuffix("\r") for line in lines[: -1 if lines[-1] == "" else None]]
    return [json.loads(line)["text"] for line in lines] if path.suffix == ".jsonl" else lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, metavar="TEXTS")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2", help="directory or id on the Hub [default: %(default)s]")
    parser.add_argument("--revision", help="revision on the Hub")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="prompt before each text, as sconce's --prompt")
    prompt.add_argument("--prompt-name", help="name of a prompt of the model, as sconce's --prompt-name")
    parser.add_argument("--max-length", type=int, help="maximum tokens per text, as sconce's --max-length")
    args = parser.parse_args()

    import numpy as np
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(args.model, revision=args.revision, device="cpu", model_kwargs={"dtype": "float32"})
    if args.max_length:
        model.max_seq_length = args.max_length
    texts = read(args.texts)
    vectors = model.encode(texts, prompt=args.prompt, prompt_name=args.prompt_name, show_progress_bar=True)
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if args.output.suffix == ".npy":
        np.save(args.output, vectors)
        return
    with open(args.output, "w", encoding="utf-8", newline="\n") as output:
        for text, vector in zip(texts, vectors.tolist()):
            print(json.dumps({"text": text, "embedding": vector}, ensure_ascii=False), file=output)


if __name__ == "__main__":
    main()
