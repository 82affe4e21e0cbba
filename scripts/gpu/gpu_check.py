#!/usr/bin/env python3
"""Checks and benchmarks Sconce on a GPU against its CPU path and PyTorch, and writes a Markdown page.

    scripts/gpu/gpu_check.sh --sconce target/gpu/sconce.xz --out PAGE.md [--json PAGE.json] [--parts kernels,states,memory,pipeline,speed]

kernels    Sconce's own check of its CUDA kernels, kernel by kernel, for every type.
states     Last hidden states of every token, --device cuda against --device cpu --dtype f32: every model in tests/fixtures, and
           full-size configs with random weights; texts of many lengths, one and many per batch. Reports the maximum absolute
           difference divided by the maximum absolute value.
memory     An oversized batch while another process holds most of the GPU's memory.
pipeline   From a text file to a .npy file: tokens per second of the whole process, and the utilization of the GPU.
speed      Tokens per second of encoders with random weights, for fixed lengths and for a mix of lengths, next to PyTorch.

The default of --minutes suffices for all parts, but not always for all rounds of speed; for those, run `--parts speed` alone.

Exits with 1 if a kernel differs from its reference, if hidden states exceed their bound, if Sconce crashes or writes too few rows, or if a figure is missing. The page
compares speeds with targets, which do not affect the exit code. --rehearse runs everything on the CPU with small sizes.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import lzma
import math
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from transformers import BertConfig, BertModel, logging

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
import bench_texts  # noqa: E402

logging.disable_progress_bar()
BOUNDS = {"f32": 1e-3, "f16": 2e-2, "bf16": 2e-2}
# The weights of the fixtures have a large variance: rounding them to bf16, with accumulation in f32, already exceeds the bound for some
# models. So the difference of bf16 may also be up to this multiple of the difference of bf16 on the CPU, where activations between layers
# are not rounded.
MAX_TIMES_CPU = 3
TORCH_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
WORDS = "the a of to in is on and light lamp candle wick flame burn attention head key query value".split()
# All head dims with a fused attention kernel, and one without (80).
HEAD_DIMS = [32, 64, 80, 96, 128]
LENGTHS = ["16", "128", "512", "mix"]
DISTINCT_TOKENS = 200_000
# Targets: speedup over PyTorch and torch.compile, share of the matmul rate, tokens per second, GPU utilization.
TARGETS = {"PyTorch": 1.5, "torch.compile": 1.1, "share 512": 0.5, "share mix": 0.35, "tokens/s": 1.5e6, "busy": 0.85}

REAL = dict(
    types=["f32", "f16", "bf16"], speed_types=["bf16", "f16"], matrix=8192, torch_batch=65536, max_tokens=4_000_000, seconds=1.0,
    configs=[
        "all-MiniLM-L6-v2", "bert-base-uncased", "modernbert-base", "nomic-embed-text-v1.5", "jina-embeddings-v2-small-en",
        "eurobert-210m", "gte-base-en-v1.5", "deberta-v3-base",
    ],
    longest=512, shapes=["bert-base-uncased", "all-MiniLM-L6-v2", "bert-large-uncased"], pipeline_model="all-MiniLM-L6-v2",
    pipeline_tokens=10_000_000, left_free=[0.3e9, 1e9, 3e9], memory_texts=4000, memory_batch=2_000_000,
)
REHEARSAL = dict(
    types=["f32", "bf16"], speed_types=["bf16"], matrix=256, torch_batch=512, max_tokens=1024, seconds=0.1,
    configs=["bert-mini", "jina-embeddings-v2-small-en"],
    longest=130, shapes=["bert-mini", "bert-tiny"], pipeline_model="bert-tiny",
    pipeline_tokens=50_000, left_free=[0], memory_texts=20, memory_batch=100_000,
)


class Failed(Exception):
    """A figure that could not be measured; the message is the reason."""


class Report:
    """The page and its figures as JSON. Written after each part, so that an interrupted run leaves the parts that are done."""

    def __init__(self, args):
        self.args, self.lines, self.data, self.failures = args, [], {}, []

    def add(self, *lines):
        self.lines += lines
        print("\n".join(lines), flush=True)

    def fail(self, sentence):
        self.failures.append(sentence)
        print(f"gpu_check: {sentence}", file=sys.stderr, flush=True)

    def write(self):
        failures = [f"- FAILED: {each}" for each in self.failures] or ["None."]
        if self.args.out:
            self.args.out.write_text("\n".join([*self.lines, "", "## Failures", "", *failures]) + "\n")
        if self.args.json:
            self.args.json.write_text(json.dumps({**self.data, "failures": self.failures}, indent=1) + "\n")


class Sconce:
    """The sconce binary, one process per call."""

    def __init__(self, binary, device, folder, deadline):
        self.binary, self.device, self.folder, self.deadline, self.calls = str(binary), device, folder, deadline, 0
        # Without the user's settings, which could select another model.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SCONCE_", "HF_"))}
        # Without the outcomes of earlier runs, which have checked the kernels.
        self.environment["SCONCE_CACHE"] = str(folder / "cache")
        done = subprocess.run([self.binary, "--version"], capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            sys.exit(f"gpu_check: {self.binary} does not start, {failure(done)}")
        self.version = ", ".join(done.stdout.strip().splitlines())

    def start(self, *options, device=None, timeout_s=120):
        """The finished process; killed after `timeout_s` seconds or a little after the deadline, with the exit code 124."""
        timeout_s = min(timeout_s, max(10, self.deadline - time.monotonic()))
        command = [self.binary, "embed", "--offline", "--no-progress", "--device", device or self.device, *map(str, options)]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=self.environment)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"killed after {timeout_s} s")

    def rows(self, *options, device=None):
        """The hidden states (T, H) of every text."""
        done = self.start("--quiet", "--pooling", "none", "--no-normalize", *options, device=device)
        if done.returncode != 0:
            raise Failed(failure(done))
        return [np.array(json.loads(line)["embeddings"], dtype=np.float32) for line in done.stdout.splitlines()]

    def file(self, texts, *options):
        """The --stats of a run from a text file to vectors, with the start time and the seconds of the whole process."""
        self.calls += 1
        stats, vectors = self.folder / f"stats-{self.calls}.json", self.folder / f"vectors-{self.calls}.npy"
        start = time.perf_counter()
        done = self.start("--quiet", "--input", texts, "--output", vectors, "--stats", stats, *options)
        whole = time.perf_counter() - start
        if done.returncode != 0:
            raise Failed(failure(done))
        found = json.loads(stats.read_text())
        count = np.load(vectors, mmap_mode="r").shape[0]
        vectors.unlink()
        if count != found["rows"]:
            raise Failed(f"the file has {count} rows, --stats reports {found['rows']}")
        if self.device != "cpu" and str(found.get("device", "cpu")).lower().startswith("cpu"):
            raise Failed("it ran on the CPU")
        return {**found, "whole": whole, "start": start}


def failure(done):
    """The exit code and the last message of a process that failed."""
    lines = done.stderr.strip().splitlines() or ["no message"]
    return f"exit code {done.returncode}: {lines[-1]}"


def table(columns, rows):
    """The lines of a Markdown table; all columns but the first are right-aligned."""
    head = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return [*head, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


# Kernels


def kernels(sconce, setup, report, texts, deadline):
    rows = []
    for type in setup["types"]:
        options = ["--verbose", "--model", ROOT / "tests/fixtures/bert-tiny", "--dtype", type, "a lamp in the window"]
        done = sconce.start(*options)
        # A kernel that fails may stop the process; the next one does without it.
        while done.returncode != 0 and "; run again" in done.stderr and time.monotonic() < deadline:
            report.fail(f"kernels for {type}: {failure(done)}")
            done = sconce.start(*options)
        if done.returncode != 0:
            raise Failed(f"kernels for {type}: {failure(done)}")
        found = [re.fullmatch(r"sconce: CUDA kernel (\S+) (.*)", line) for line in done.stderr.splitlines()]
        found = [match.groups() for match in found if match]
        if not found and sconce.device != "cpu":
            raise Failed(f"kernels for {type}: no kernel was checked")
        for kernel, outcome in found:
            rows.append([kernel, outcome])
            if outcome != "matches its reference":
                report.fail(f"CUDA kernel {kernel} {outcome}")
    report.data["kernels"] = dict(rows)
    report.add("", "## CUDA kernels compared with candle's operations on the CPU", "")
    report.add(*(table(["kernel", "outcome"], rows) if rows else ["The CPU has none."]))


# Hidden states


def ragged_texts(path, lengths):
    """Writes jsonl: texts with the given numbers of words; every second one has a pair, the others an empty pair."""
    rng = random.Random(1)
    with open(path, "w") as file:
        for i, count in enumerate(lengths):
            text = " ".join(rng.choice(WORDS) for _ in range(count))
            file.write(json.dumps({"text": text, "pair": "a lamp is on" if i % 2 else ""}) + "\n")
    return path


def difference(found, expected):
    """The maximum absolute difference divided by the maximum absolute value; infinite if shapes differ or a value is NaN."""
    if [rows.shape for rows in found] != [rows.shape for rows in expected]:
        return math.inf
    worst = max(float(np.abs(a - b).max()) for a, b in zip(found, expected))
    largest = max(float(np.abs(rows).max()) for rows in expected)
    return worst / largest if math.isfinite(worst) and largest > 0 else math.inf


def compare(sconce, options, texts, types):
    """For one model: the difference of each type with one and with many texts per batch, and of bf16 on the CPU."""
    options = [*options, "--input", texts, "--pair-field", "pair"]
    expected = sconce.rows(*options, "--dtype", "f32", "--threads", 4, device="cpu")
    found = {"bf16 CPU": difference(sconce.rows(*options, "--dtype", "bf16", "--threads", 4, device="cpu"), expected)}
    for type in types:
        for batch, tokens in (("one", 1), ("many", 4096)):
            rows = sconce.rows(*options, "--dtype", type, "--batch-tokens", tokens)
            found[f"{type} {batch}"] = difference(rows, expected)
    return found


def jobs(setup, folder):
    """Yields name, options and texts of every model: the fixtures with short texts, full-size configs with texts longer than a tile of
    any kernel."""
    short = ragged_texts(folder / "short.jsonl", range(64))
    edges = [1, 2, 7, 15, 16, 17, 30, 31, 32, 33, 61, 62, 63, 64, 65, 100, 126, 127, 128, 129, 130, 200, 255, 256, 257, 400, 512]
    long = ragged_texts(folder / "long.jsonl", [count for count in edges if count <= setup["longest"]])
    for weights in sorted((ROOT / "tests/fixtures").glob("*/model.safetensors")):
        if (weights.parent / "config.json").exists():
            yield weights.parent.name, ["--model", weights.parent], short
    model = ["--model", ROOT / "tests/fixtures/bert-tiny", "--max-length", setup["longest"], "--random-weights", 7]
    for name in setup["configs"]:
        yield f"{name}, full size", [*model, "--config", ROOT / f"configs/{name}.json"], long
    for size in HEAD_DIMS:
        fields = json.loads((ROOT / "configs/bert-mini.json").read_text())
        fields.update(num_attention_heads=4, hidden_size=4 * size, intermediate_size=16 * size)
        path = folder / f"heads-{size}.json"
        path.write_text(json.dumps(fields))
        yield f"bert-mini, head dim {size}", [*model, "--config", path], long


def allowed(key, cells):
    type = key.split()[0]
    return max(BOUNDS[type], MAX_TIMES_CPU * cells["bf16 CPU"] if type == "bf16" else 0)


def states(sconce, setup, report, texts, deadline):
    # A third of the time; the rest is for the other parts.
    until = time.monotonic() + (deadline - time.monotonic()) / 3

    def attempt(job):
        try:
            if time.monotonic() > until:
                raise Failed("no time left; raise --minutes")
            return job[0], compare(sconce, *job[1:], setup["types"])
        except Failed as reason:
            report.fail(f"hidden states of {job[0]}: {reason}")

    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2) // 2))) as pool:
        found = dict(filter(None, pool.map(attempt, jobs(setup, sconce.folder))))
    report.data["states"] = found
    columns = [f"{type} {batch}" for type in setup["types"] for batch in ("one", "many")]
    report.add("", "## Hidden states compared with f32 on the CPU", "")
    report.add(
        "Maximum absolute difference divided by the maximum absolute value, with one and with many texts per batch. Bounds: "
        + ", ".join(f"{type} {BOUNDS[type]:g}" for type in setup["types"])
        + f"; for bf16 also {MAX_TIMES_CPU} times the difference of bf16 on the CPU, if that is larger. Matmuls in f32 do not use "
        "TF32, which is candle's default.",
        "",
    )
    rows = [[name, *(f"{cells[key]:.1e}" for key in [*columns, "bf16 CPU"])] for name, cells in found.items()]
    report.add(*table(["model", *columns, "bf16 on the CPU"], rows))
    for key in columns:
        over = {name: cells[key] for name, cells in found.items() if not cells[key] <= allowed(key, cells)}
        if over:
            worst = max(over, key=over.get)
            report.fail(f"hidden states in {key}: {len(over)} models exceed the bound, the worst is {worst} with {over[worst]:.1e}")


# Models and texts


def train_tokenizer(prose):
    """A WordPiece tokenizer in the manner of BERT, trained on the prose, so that no checkpoint is needed."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(lowercase=True), BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=30522, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(prose, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


class Texts:
    """Text files of prose with known numbers of tokens."""

    def __init__(self, folder):
        prose = list(bench_texts.sentences())
        self.tokenizer, self.path, self.folder = train_tokenizer(prose), folder / "tokenizer.json", folder
        self.tokenizer.save(str(self.path))
        self.count = bench_texts.Lengths(self.tokenizer)
        self.words = [word for sentence in prose for word in sentence.split()]
        passages, _ = bench_texts.mixed(prose, self.count, random.Random(1))
        self.passages = [(text, self.count(text.split()) + bench_texts.SPECIAL_TOKENS) for text in passages]

    def exactly(self, length):
        """Yields texts of `length` tokens each, including [CLS] and [SEP], filled up with a word of one token."""
        words = iter(itertools.cycle(self.words))
        while True:
            text, room = [], length - bench_texts.SPECIAL_TOKENS
            while room > 0:
                word = next(words)
                word = word if self.count([word]) <= room else "a"
                text.append(word)
                room -= self.count([word])
            yield " ".join(text), length

    def file(self, name, tokens):
        """Writes a file of about `tokens` tokens; returns its path and the tokens of each text. `name` is a length, or "mix" for passages
        of 5 to 256 tokens. Texts are repeated in another order if there are too few."""
        if name == "mix":
            known = self.passages
        else:
            known = list(itertools.islice(self.exactly(int(name)), max(1, min(tokens, DISTINCT_TOKENS) // int(name))))
        rng, found, left = random.Random(2), [], tokens
        while left > 0:
            for text, count in rng.sample(known, len(known)):
                if left > 0:
                    found.append((text, count))
                    left -= count
        path = self.folder / f"{name}-{tokens}.txt"
        path.write_text("".join(text + "\n" for text, _ in found))
        return path, [count for _, count in found]


def make_model(name, tokenizer, folder):
    """Saves a BERT of this config with random f16 weights, for Sconce and PyTorch; returns its directory."""
    target = folder / name
    if not target.exists():
        torch.manual_seed(1)
        config = BertConfig(**json.loads((ROOT / f"configs/{name}.json").read_text()))
        BertModel(config, add_pooling_layer=False).half().save_pretrained(target, max_shard_size="100GB")
        shutil.copy(tokenizer, target / "tokenizer.json")
    return target


def operations(name, counts):
    """Floating-point operations of the linear layers and the two matmuls of attention for texts with the given numbers of tokens, without
    padding; a multiplication and an addition are two operations:
    layers · (2 · Σ tokens · (4 width² + 2 width · inner) + 4 width · Σ tokens²)."""
    config = json.loads((ROOT / f"configs/{name}.json").read_text())
    layers, width, inner = (config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    return layers * sum(count * 2 * (4 * width**2 + 2 * width * inner) + 4 * width * count**2 for count in counts)


# PyTorch


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_rate(device, size):
    """Operations per second of a square bf16 matmul of random values: the best of 6 measurements of 10 matmuls."""
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    best = math.inf
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(10):
            a @ b
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 10 * 2 * size**3 / best


def sorted_batches(counts, tokens, device):
    """Batches [ids (B, T), mask or None] of random token ids for texts with the given numbers of tokens, the longest first. A batch has at
    most `tokens` tokens with padding; the mask is None if nothing is padded."""
    generator, counts, found, at = torch.Generator().manual_seed(1), torch.tensor(sorted(counts, reverse=True)), [], 0
    while at < len(counts):
        longest = int(counts[at])
        lengths = counts[at : at + max(1, tokens // longest)]
        ids = torch.randint(1000, 30000, (len(lengths), longest), generator=generator)
        mask = (torch.arange(longest) < lengths[:, None]).long()
        tensors = [ids, None if mask.all() else mask]
        found.append([each.pin_memory() if device == "cuda" and each is not None else each for each in tensors])
        at += len(lengths)
    return found


class Torch:
    """A transformers model with scaled_dot_product_attention, optionally compiled."""

    def __init__(self, folder, type, device, compiled):
        options = dict(add_pooling_layer=False, attn_implementation="sdpa", dtype=TORCH_TYPES[type])
        model = BertModel.from_pretrained(folder, **options).eval().to(device)
        self.device, self.forward = device, torch.compile(model, dynamic=True) if compiled else model

    @torch.inference_mode()
    def seconds(self, batches):
        """Seconds from token ids to mean-pooled vectors, both in the CPU's memory."""
        synchronize(self.device)
        start, vectors = time.perf_counter(), []
        for batch in batches:
            ids, mask = (each if each is None else each.to(self.device, non_blocking=True) for each in batch)
            hidden = self.forward(input_ids=ids, attention_mask=mask).last_hidden_state
            if mask is None:
                vectors.append(hidden.mean(1))
            else:
                vectors.append((hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))
        torch.cat(vectors).float().cpu()
        return time.perf_counter() - start


# Tokens per second


def shape_texts(name, setup, texts, rate, device):
    """The text files of a shape and PyTorch's batches of them; each has the tokens that take `seconds` at 40 % of the matmul rate."""
    found = {}
    for length in LENGTHS:
        usual = 64 if length == "mix" else int(length)
        wanted = setup["seconds"] * 0.4 * rate / operations(name, [usual]) * usual
        path, counts = texts.file(length, int(max(512, min(setup["max_tokens"], wanted))))
        batches = sorted_batches(counts, setup["torch_batch"], device)
        found[length] = {"path": path, "counts": counts, "batches": batches, "idle": {}}
    return found


def warm(sconce, folder, types):
    """Runs every type once: the driver compiles kernels at first use and caches them for later processes."""
    for type in types:
        done = sconce.start("--quiet", "--model", folder, "--dtype", type, "a lamp in the window")
        if done.returncode != 0:
            raise Failed(failure(done))


def contenders(sconce, setup, folder):
    """The contenders of a shape: a function from the texts of one length to seconds, by name and type."""

    def run(type):
        def seconds(texts):
            found = sconce.file(texts["path"], "--model", folder, "--dtype", type, "--max-length", 512)
            if found["tokens"] != sum(texts["counts"]):
                raise Failed(f"encoded {found['tokens']} tokens, but the texts have {sum(texts['counts'])}")
            texts["idle"].setdefault(type, []).append(found["idle"])
            return found["seconds_encoding"]

        return seconds

    found = {("Sconce", type): run(type) for type in setup["speed_types"]}
    peers = [("PyTorch", type) for type in setup["speed_types"]] + [("torch.compile", "bf16")]
    for peer in peers:
        model = Torch(folder, peer[1], sconce.device, compiled=peer[0] == "torch.compile")
        found[peer] = lambda texts, model=model: model.seconds(texts["batches"])
    return found


def measure(name, texts, peers, rounds, report, deadline):
    """The seconds of every round, by peer and length, until all rounds are done or the deadline. PyTorch warms up with one batch."""
    seconds, broken = {}, set()
    for round in range(-1, rounds):
        for length, each in texts.items():
            for peer, run in peers.items():
                # No warm-up for Sconce: every round is a new process, measured from its first batch.
                if peer in broken or time.monotonic() > deadline or (round < 0 and peer[0] == "Sconce"):
                    continue
                try:
                    took = run(each if round >= 0 else {**each, "batches": each["batches"][:1]})
                except Exception as reason:  # the other peers continue, whatever the exception
                    broken.add(peer)
                    first = str(reason).strip().partition("\n")[0] or type(reason).__name__
                    report.fail(f"{name}, {' '.join(peer)}, texts of {length}: {first}")
                    continue
                if round >= 0:
                    seconds.setdefault((*peer, length), []).append(took)
    return seconds


def figures(name, texts, seconds, rate):
    """The figures of a shape: one dictionary per type and length."""
    medians, found = {key: statistics.median(took) for key, took in seconds.items()}, []
    for (peer, type, length), mine in medians.items():
        if peer != "Sconce":
            continue
        counts = texts[length]["counts"]
        others = {other: medians.get((other, type, length)) for other in ("PyTorch", "torch.compile")}
        found.append({
            "shape": name, "texts": length, "type": type, "tokens": sum(counts), "rounds": len(seconds[peer, type, length]),
            "tokens/s": sum(counts) / mine,
            "peers": {other: took and sum(counts) / took for other, took in others.items()},
            "over": {other: took and took / mine for other, took in others.items()},
            "share": operations(name, counts) / mine / rate, "idle": statistics.median(texts[length]["idle"][type]),
        })  # fmt: skip
    return found


def speed_table(found):
    columns = ["shape", "texts", "type", "Sconce, tokens/s", "PyTorch", "torch.compile"]
    columns += ["Sconce / PyTorch", "Sconce / torch.compile", "share of the matmul rate", "idle", "rounds"]
    rows = []
    for each in found:
        cells = [each["shape"], each["texts"], each["type"], f"{each['tokens/s']:,.0f}"]
        cells += [f"{value:,.0f}" if value else "" for value in each["peers"].values()]
        cells += [f"{value:.2f}" if value else "" for value in each["over"].values()]
        rows.append([*cells, f"{100 * each['share']:.1f} %", f"{100 * each['idle']:.0f} %", each["rounds"]])
    return table(columns, rows)


def target(what, value, wanted, shown):
    return f"- {what}: {shown(value)}, target {shown(wanted)}: {'reached' if value >= wanted else 'not reached'}"


def percent(value):
    return f"{100 * value:.0f} %"


def speed_targets(found):
    """Lines with the share of the matmul rate of bert-base in bf16, and the smallest speedup over each peer."""
    lines = []
    for each in found:
        wanted = TARGETS.get(f"share {each['texts']}")
        if each["shape"] == "bert-base-uncased" and each["type"] == "bf16" and wanted:
            lines.append(target(f"bert-base-uncased bf16, {each['texts']}, share of the matmul rate", each["share"], wanted, percent))
    for peer in ("PyTorch", "torch.compile"):
        ratios = [each for each in found if each["over"][peer]]
        if ratios:
            least = min(ratios, key=lambda each: each["over"][peer])
            what = f"Sconce / {peer}, minimum of {len(ratios)} ({least['shape']} {least['type']} {least['texts']})"
            lines.append(target(what, least["over"][peer], TARGETS[peer], "{:.2f}".format))
    return lines


def speed(sconce, setup, report, texts, deadline):
    rate = matrix_rate(sconce.device, setup["matrix"])
    found = []
    for left, name in zip(range(len(setup["shapes"]), 0, -1), setup["shapes"]):
        # Every shape gets an equal share of the time left.
        until = time.monotonic() + (deadline - time.monotonic()) / left
        folder = make_model(name, texts.path, sconce.folder)
        warm(sconce, folder, setup["speed_types"])
        files = shape_texts(name, setup, texts, rate, sconce.device)
        seconds = measure(name, files, contenders(sconce, setup, folder), setup["rounds"], report, until)
        more = figures(name, files, seconds, rate)
        if len(more) < len(files) * len(setup["speed_types"]):
            report.fail(f"{name} has {len(more)} of {len(files) * len(setup['speed_types'])} figures; raise --minutes")
        print(*speed_table(more)[2:], sep="\n", flush=True)
        found += more
        torch.compiler.reset()
        if sconce.device == "cuda":
            torch.cuda.empty_cache()
    report.data["speed"], report.data["matrix_rate"] = found, rate
    report.add("", "## Encoders next to PyTorch", "")
    report.add(
        "Random weights. Sconce: `tokens / seconds_encoding` of --stats, from text to vector, including tokenization, pooling and waiting; "
        "idle is the share of that time in which the encoder waited for input. PyTorch: transformers "
        f"{transformers.__version__} with scaled_dot_product_attention, from token ids to mean-pooled vectors, for texts of the same "
        f"lengths, sorted, in batches of {setup['torch_batch']:,} tokens with padding; torch.compile(dynamic=True) in bf16 only. Medians of "
        f"interleaved rounds, fewer than {setup['rounds']} if time ran out. The matmul rate is that of a bf16 matmul of {setup['matrix']}³ in "
        f"PyTorch, the best of 6 measurements of 10: {rate / 1e12:.4g} TFLOP/s. The share counts the operations of linear layers and "
        "attention, without padding.",
        "",
        *speed_table(found),
        "",
        *speed_targets(found),
    )


# From a text file to vectors


def utilization():
    """The GPU's utilization in percent: the share of the last sampling period in which any kernel ran, from NVML."""
    try:
        return torch.cuda.utilization(0)
    except Exception:  # without nvidia-ml-py, or where NVML does not answer
        card = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        command = ["nvidia-smi", "-i", card, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        return int(subprocess.check_output(command, text=True))


@contextlib.contextmanager
def sampled(device):
    """Samples the utilization every 100 ms as (time, percent); no samples on the CPU."""
    samples, over = [], threading.Event()

    def sample():
        while not over.wait(0.1):
            samples.append((time.perf_counter(), utilization()))

    thread = threading.Thread(target=sample, daemon=True)
    if device == "cuda":
        thread.start()
    yield samples
    over.set()
    if device == "cuda":
        thread.join()


def busy_share(samples, start, end):
    within = [percent for moment, percent in samples if start <= moment <= end]
    return statistics.mean(within) / 100 if within else None


def pipeline(sconce, setup, report, texts, deadline):
    folder = make_model(setup["pipeline_model"], texts.path, sconce.folder)
    warm(sconce, folder, ["bf16"])
    path, counts = texts.file("mix", setup["pipeline_tokens"])
    runs = []
    for _ in range(setup["rounds"]):
        with sampled(sconce.device) as samples:
            found = sconce.file(path, "--model", folder, "--dtype", "bf16", "--max-length", 512)
        first = found["start"] + found["seconds_loading"]
        found["busy"] = busy_share(samples, first, first + found["seconds_encoding"])
        found["busy_whole"] = busy_share(samples, found["start"], found["start"] + found["whole"])
        runs.append(found)
    path.unlink()
    run = sorted(runs, key=lambda run: run["whole"])[len(runs) // 2]
    report.data["pipeline"] = runs
    rate, tokens = run["tokens"] / run["whole"], run["tokens"]
    report.add("", f"## From a text file to a .npy file, {setup['pipeline_model']}, bf16", "")
    report.add(
        f"{len(counts):,} texts of 5 to 256 tokens, {tokens:,} tokens; median of {len(runs)} runs: {run['whole']:.1f} s for the whole "
        f"process, of which {run['seconds_loading']:.1f} s until the model was loaded and {run['seconds_encoding']:.1f} s from the first batch "
        f"to the end of the last, with the encoder idle for {percent(run['idle'])}; peak memory "
        f"{run['peak_memory_bytes'] / 1e6:,.0f} MB.",
        "",
        target("tokens per second of the whole process", rate, TARGETS["tokens/s"], "{:,.0f}".format),
    )
    if run["busy"] is not None:
        report.add(target("GPU utilization while encoding", run["busy"], TARGETS["busy"], percent))
        report.add(f"- GPU utilization over the whole process: {percent(run['busy_whole'])}")
        report.add("- utilization is the share of time in which any kernel runs, from NVML: the mean of samples every 100 ms")
    elif sconce.device == "cuda":
        report.fail("cannot read the GPU's utilization")


# Low memory

HOLD = """
import sys, torch
torch.zeros(1, device="cuda")
held = torch.empty(max(0, torch.cuda.mem_get_info()[0] - int(float(sys.argv[1]))), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def leave_free(bytes, device):
    """Lets another process allocate all but `bytes` of the GPU's memory; does nothing on the CPU."""
    if device == "cpu":
        yield
        return
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if holder.stdout.readline().strip() != "held":
            raise Failed("the other process could not allocate memory")
        yield
    finally:
        holder.stdin.close()
        holder.wait()


def outcome(done, vectors, texts):
    """Whether a run with too little memory has written all rows, or has ended with exit code 1 and one error; and its outcome as text."""
    errors = [line for line in done.stderr.splitlines() if not line.startswith("sconce: warning: ")]
    if done.returncode == 0:
        rows = np.load(vectors, mmap_mode="r").shape[0]
        return rows == texts, f"{rows:,} rows of {texts:,}"
    sentence = done.returncode == 1 and len(errors) == 1 and errors[0].startswith("sconce: error: ")
    return sentence and not vectors.exists(), " ".join(errors)[:300] or "no message"


def memory(sconce, setup, report, texts, deadline):
    folder = make_model(setup["pipeline_model"], texts.path, sconce.folder)
    path, counts = texts.file("512", 512 * setup["memory_texts"])
    rows = []
    for left in setup["left_free"]:
        vectors = sconce.folder / "low-memory.npy"
        with leave_free(left, sconce.device):
            options = ["--model", folder, "--dtype", "bf16", "--max-length", 512, "--batch-tokens", setup["memory_batch"]]
            done = sconce.start("--quiet", "--input", path, "--output", vectors, *options, timeout_s=120)
        good, how = outcome(done, vectors, len(counts))
        rows.append([f"{left / 1e9:.1f} GB", done.returncode, how])
        if not good:
            report.fail(f"with {left / 1e9:.1f} GB of memory: exit code {done.returncode}, {how}")
        vectors.unlink(missing_ok=True)
    report.data["memory"] = rows
    report.add("", f"## Low memory, {setup['pipeline_model']}, bf16, --batch-tokens {setup['memory_batch']}", "")
    report.add(*table(["left free by another process", "exit code", "outcome"], rows))


# The page


def head(args, sconce):
    if args.rehearse:
        lines = ["# Rehearsal on the CPU: no figure is from a GPU", ""]
        card = "no GPU"
    else:
        lines = ["# Sconce on a GPU", ""]
        found = torch.cuda.get_device_properties(0)
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            driver = subprocess.check_output(query, text=True).split()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            driver = "unknown"
        capability = f"compute capability {found.major}.{found.minor}"
        card = f"{found.name}, {found.total_memory / 1e9:.0f} GB, {capability}, driver {driver}, CUDA {torch.version.cuda}"
    return [
        *lines,
        f"- {datetime.datetime.now():%Y-%m-%d %H:%M}, `{shlex.join(['scripts/gpu/gpu_check.sh', *sys.argv[1:]])}`",
        f"- {card}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the start",
        f"- {sconce.version}; PyTorch {torch.__version__}, transformers {transformers.__version__}, Python {sys.version.split()[0]}",
    ]


def decompressed(path, folder):
    """A copy of the binary, decompressed, so that a build that finishes during the run does not replace it."""
    target = folder / "sconce"
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as source, open(target, "wb") as copy:
        shutil.copyfileobj(source, copy)
    target.chmod(0o755)
    return target


PARTS = {"kernels": kernels, "states": states, "memory": memory, "pipeline": pipeline, "speed": speed}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, help="the binary, or the binary compressed as .xz [default: target/gpu/sconce]")
    parser.add_argument("--out", type=Path, help="Markdown page to write")
    parser.add_argument("--json", type=Path, help="JSON file to write with all figures")
    parts = "some of kernels,states,memory,pipeline,speed [default: all]"
    parser.add_argument("--parts", type=lambda value: value.split(","), default=list(PARTS), help=parts)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8.0, help="start no further round after this time [default: 8]")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU with small sizes")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    if not args.rehearse and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; use --rehearse to run on the CPU")
    args.sconce = args.sconce or ROOT / ("target/release/sconce" if args.rehearse else "target/gpu/sconce")
    if not args.sconce.exists():
        parser.error(f"{args.sconce} not found; build it with scripts/gpu/build_cuda.sh")
    return args


def main():
    deadline = time.monotonic()
    args = options()
    deadline += 60 * args.minutes
    setup = {**(REHEARSAL if args.rehearse else REAL), "rounds": args.rounds}
    report = Report(args)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        sconce = Sconce(decompressed(args.sconce, folder), "cpu" if args.rehearse else "cuda", folder, deadline)
        report.add(*head(args, sconce))
        texts = Texts(folder)
        for name in args.parts:
            start = time.monotonic()
            try:
                if start > deadline:
                    raise Failed("no time left; raise --minutes")
                PARTS[name](sconce, setup, report, texts, deadline)
            except Exception as reason:  # the other parts continue, and the page is written
                traceback.print_exc()
                report.fail(f"{name}: {reason}")
            print(f"gpu_check: {name} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
            report.write()
    for each in report.failures:
        print(f"FAILED: {each}")
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    main()
