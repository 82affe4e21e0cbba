#!/usr/bin/env python3
"""Benchmarks `sconce rerank`, `classify`, `answer` and `fill` beside the reference implementations, and writes a Markdown page.

    pip install -r scripts/fixtures/requirements-reference.txt
    scripts/bench/heads.py --model MODEL_DIR [--sconce target/release/sconce] [--threads 2] [--rounds 5] --out benches/heads.md

MODEL_DIR is all-MiniLM-L6-v2 (scripts/fetch_model.sh prints it). The models with heads have its config and tokenizer, which are those of
cross-encoder/ms-marco-MiniLM-L6-v2, and random weights, which all of them share but for the heads.

Measured is the time without loading: that of Sconce is `seconds - seconds_loading` of --stats, in a new process each time, from a file to a
file; that of a reference is the time of its call, after a call to warm up. In every round all of these run one after another, so that a slower
phase of the machine affects all of them; the median of the rounds is reported.

- rerank: one query and PASSAGES texts beside CrossEncoder.predict of sentence-transformers, batches of 32, scores compared
- answer: one question and the same texts beside AutoModelForQuestionAnswering of transformers: tokenizer and forward passes over batches
  of 32 sorted by length, without the search for spans
- classify and fill beside `sconce embed` of the same encoder and texts; `fill` with one mask per text
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

# Idle threads of OpenMP would spin while another process is measured.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder
from transformers import AutoConfig, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
PASSAGES, BATCH = 1000, 32
QUERY = "how do lamps of the first lighthouses work in a storm"
HEADS = {
    "cross-encoder": ("AutoModelForSequenceClassification", {"num_labels": 1}),
    "classifier": ("AutoModelForSequenceClassification", {"num_labels": 3}),
    "answers": ("AutoModelForQuestionAnswering", {}),
    "masks": ("AutoModelForMaskedLM", {}),
}


def make_models(model, folder):
    """Models with the config of `model` and random weights: those of one encoder."""
    encoder = None
    for name, (kind, fields) in HEADS.items():
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(model, **fields)
        made = getattr(transformers, kind).from_config(config).eval()
        encoder = encoder or made.bert.state_dict()
        made.bert.load_state_dict(encoder, strict=False)
        made.save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(model).save_pretrained(folder / name)


def write_texts(path):
    """Passages of 8 to 50 words, as jsonl with and without a mask in the middle."""
    words = (ROOT / "README.md").read_text().split()
    rng = np.random.default_rng(7)
    texts = [" ".join(rng.choice(words, size=rng.integers(8, 51))) for _ in range(PASSAGES)]
    texts = ["".join(c if c.isalnum() or c == " " else " " for c in text) for text in texts]
    masked = [text.split() for text in texts]
    masked = [" ".join([*text[: len(text) // 2], "[MASK]", *text[len(text) // 2 :]]) for text in masked]
    for name, lines in (("texts", texts), ("masked", masked)):
        path.joinpath(name + ".jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return texts


class Sconce:
    """Runs of the binary into files of one folder."""

    def __init__(self, binary, threads, folder):
        self.binary, self.threads, self.folder = binary, threads, folder

    def run(self, command, model, texts, *more):
        """Seconds without loading, tokens, and rows."""
        output, stats = self.folder / "rows.jsonl", self.folder / "stats.json"
        arguments = [command, "-m", self.folder / model, "-i", self.folder / texts, "-o", output, "--stats", stats]
        arguments += ["--restart", "--offline", "--dtype", "f32", "--threads", self.threads, "-q", *more]
        subprocess.run([self.binary, *map(str, arguments)], check=True)
        stats = json.loads(stats.read_text())
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        return stats["seconds"] - stats["seconds_loading"], stats["tokens"], rows


def timed(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def answers(model, tokenizer, texts):
    """The logits of all texts, by the tokenizer and forward passes of transformers."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with torch.inference_mode():
        for start in range(0, len(order), BATCH):
            part = [texts[i] for i in order[start : start + BATCH]]
            batch = tokenizer([QUERY] * len(part), part, truncation="only_second", padding=True, return_tensors="pt")
            model(**batch)


def measure(args, folder):
    """The seconds of every round of each, the tokens of Sconce's runs, and the largest difference of scores."""
    texts = write_texts(folder)
    make_models(args.model, folder)
    sconce = Sconce(args.sconce, args.threads, folder)
    cross_encoder = CrossEncoder(str(folder / "cross-encoder"), device="cpu", max_length=512)
    reader = transformers.AutoModelForQuestionAnswering.from_pretrained(folder / "answers").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "answers")
    pairs = [(QUERY, text) for text in texts]
    predict = lambda pairs: cross_encoder.predict(pairs, batch_size=BATCH, show_progress_bar=False)
    limit = ["--max-length", "512"]
    # A masked-LM checkpoint is also one of vectors: the same encoder and file for all.
    runs = {
        "rerank": lambda: sconce.run("rerank", "cross-encoder", "texts.jsonl", "--query", QUERY, *limit),
        "CrossEncoder": lambda: timed(lambda: predict(pairs)),
        "answer": lambda: sconce.run("answer", "answers", "texts.jsonl", "--question", QUERY, *limit),
        "transformers": lambda: timed(lambda: answers(reader, tokenizer, texts)),
        "embed": lambda: sconce.run("embed", "masks", "texts.jsonl", *limit),
        "classify": lambda: sconce.run("classify", "classifier", "texts.jsonl", *limit),
        "embed, masks": lambda: sconce.run("embed", "masks", "masked.jsonl", *limit),
        "fill": lambda: sconce.run("fill", "masks", "masked.jsonl", *limit),
    }
    predict(pairs[:BATCH])
    answers(reader, tokenizer, texts[:BATCH])
    seconds, last = {name: [] for name in runs}, {}
    for _ in range(args.rounds):
        for name, run in runs.items():
            last[name] = run()
            seconds[name].append(last[name][0])
    scores = np.array([row["score"] for row in last["rerank"][2]])
    difference = float(np.abs(scores - last["CrossEncoder"][1]).max())
    tokens = {name: result[1] for name, result in last.items() if len(result) == 3}
    return {name: statistics.median(times) for name, times in seconds.items()}, tokens, difference


def table(title, rows, seconds, tokens, column):
    """Rows of (what, name), the first of which the others are compared with."""
    first = seconds[rows[0][1]]
    lines = [f"## {title}", "", f"| what | ms | tokens/s | {column} |", "|---|---:|---:|---:|"]
    for what, name in rows:
        rate = f"{tokens[name] / seconds[name]:,.0f}" if name in tokens else ""
        lines.append(f"| {what} | {1000 * seconds[name]:,.0f} | {rate} | {first / seconds[name]:.2f} |")
    return [*lines, ""]


def page(args, seconds, tokens, difference):
    versions = f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.processor())
    lines = [
        "# Task heads beside the reference implementations",
        "",
        "Written by `scripts/bench/heads.py`, which says what is measured.",
        "",
        f"- {datetime.datetime.now():%Y-%m-%d %H:%M}, load average {os.getloadavg()[0]:.1f} at the end",
        f"- {cpu}, {os.cpu_count()} cores; f32",
        f"- {versions}; Python {platform.python_version()}",
        f"- {args.threads} threads; median of {args.rounds} rounds; {PASSAGES:,} texts, {tokens['embed']:,} tokens",
        "",
    ]
    beside = "speed / first row"
    lines += table("rerank: 1 query, 1,000 passages", [("CrossEncoder.predict", "CrossEncoder"), ("sconce rerank", "rerank")], seconds, tokens, beside)
    lines += [f"- scores differ by at most {difference:.1e}", ""]
    lines += table("answer: 1 question, 1,000 contexts", [("transformers, without spans", "transformers"), ("sconce answer", "answer")], seconds, tokens, beside)
    lines += table("classify: 3 labels", [("sconce embed", "embed"), ("sconce classify", "classify")], seconds, tokens, beside)
    rate = (tokens["classify"] / seconds["classify"]) / (tokens["embed"] / seconds["embed"])
    lines += [f"- token rate of classify / embed: {rate:.3f}", ""]
    lines += table("fill: 1 mask per text", [("sconce embed", "embed, masks"), ("sconce fill", "fill")], seconds, tokens, beside)
    per_mask = (seconds["fill"] - seconds["embed, masks"]) / PASSAGES
    lines += [f"- {1e6 * per_mask:.0f} µs per mask: a row of the decoder, the softmax and the best tokens of a vocabulary of 30,522"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sconce", default=ROOT / "target/release/sconce")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        seconds, tokens, difference = measure(args, Path(folder))
    text = page(args, seconds, tokens, difference)
    Path(args.out).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
