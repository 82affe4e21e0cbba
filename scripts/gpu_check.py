#!/usr/bin/env python3
"""Checks and measures Sconce on a GPU, beside its own CPU path and PyTorch, and writes a page of Markdown.

    scripts/gpu_check.sh --sconce target/gpu/sconce.xz --out PAGE.md [--json PAGE.json] [--parts states,memory,flow,speed]

states   The last hidden states of every token, --device cuda against --device cpu --dtype f32: every model in tests/fixtures, and
         configs of full size with random weights; texts of many lengths, one a batch and many. The figure is the largest
         difference of any element, divided by the largest absolute value of any element.
memory   A batch that is far too large, while another process holds most of the GPU's memory.
flow     From a text file to a .npy file: tokens a second of the whole process, and the part of the time that the GPU is busy.
speed    Tokens a second of encoders with random weights at given lengths and with a real mix of them, beside PyTorch.

One call has time for all parts, but perhaps not for all rounds of speed; `--parts speed` by itself has.

Exits with 1 where hidden states are too far off, where Sconce crashes or gives too few rows, or where a figure is missing.
Speeds are compared with bars on the page, but do not change the exit code.
--rehearse runs all of it on the CPU, with small shapes and few texts.
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

import bench_texts

logging.disable_progress_bar()
ROOT = Path(__file__).resolve().parent.parent
BOUNDS = {"f32": 1e-3, "f16": 2e-2, "bf16": 2e-2}
# The fixtures have weights so wide that rounding them to bf16 alone, sums in f32, takes some of them over the bound. So bf16 may
# also be this many times as far off as bf16 on the CPU is: on a GPU what runs between layers is rounded, too.
TIMES_CPU = 3
TORCH_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
WORDS = "the a of to in is on and light lamp candle wick flame burn attention head key query value".split()
# Those that have an attention kernel of their own, and one that has none.
HEAD_SIZES = [32, 64, 80, 96, 128]
LENGTHS = ["16", "128", "512", "mix"]
DISTINCT_TOKENS = 200_000
# What the project wants to reach: over PyTorch, over torch.compile, of the matrix rate; tokens a second; busy.
BARS = {"PyTorch": 1.5, "torch.compile": 1.1, "share 512": 0.5, "share mix": 0.35, "tokens/s": 1.5e6, "busy": 0.85}

REAL = dict(
    types=["f32", "f16", "bf16"], speed_types=["bf16", "f16"], matrix=8192, torch_batch=65536, most_tokens=4_000_000, seconds=1.0,
    configs=[
        "all-MiniLM-L6-v2", "bert-base-uncased", "modernbert-base", "nomic-embed-text-v1.5", "jina-embeddings-v2-small-en",
        "eurobert-210m", "gte-base-en-v1.5", "deberta-v3-base",
    ],
    longest=512, shapes=["bert-base-uncased", "all-MiniLM-L6-v2", "bert-large-uncased"], flow="all-MiniLM-L6-v2",
    flow_tokens=10_000_000, left_free=[0.3e9, 1e9, 3e9], memory_texts=4000, memory_batch=2_000_000,
)
REHEARSAL = dict(
    types=["f32", "bf16"], speed_types=["bf16"], matrix=256, torch_batch=512, most_tokens=1024, seconds=0.1,
    configs=["bert-mini", "jina-embeddings-v2-small-en"],
    longest=130, shapes=["bert-mini", "bert-tiny"], flow="bert-tiny",
    flow_tokens=50_000, left_free=[0], memory_texts=20, memory_batch=100_000,
)


class Failed(Exception):
    """Why there is no figure."""


class Report:
    """The page as far as it goes, and the same as JSON; written after each part, so that a run that is ended leaves something."""

    def __init__(self, args):
        self.args, self.lines, self.data, self.failures = args, [], {}, []

    def add(self, *lines):
        self.lines += lines
        print("\n".join(lines), flush=True)

    def fail(self, sentence):
        self.failures.append(sentence)
        print(f"gpu_check: {sentence}", file=sys.stderr, flush=True)

    def write(self):
        failures = [f"- FAILED: {each}" for each in self.failures] or ["Nothing failed."]
        if self.args.out:
            self.args.out.write_text("\n".join([*self.lines, "", "## Failures", "", *failures]) + "\n")
        if self.args.json:
            self.args.json.write_text(json.dumps({**self.data, "failures": self.failures}, indent=1) + "\n")


class Sconce:
    """The binary, a process a call."""

    def __init__(self, binary, device, folder):
        self.binary, self.device, self.folder, self.calls = str(binary), device, folder, 0
        # What the user has set must not choose another model.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SCONCE_", "HF_"))}
        done = subprocess.run([self.binary, "--version"], capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            sys.exit(f"gpu_check: {self.binary} does not start, {said(done)}")
        self.version = done.stdout.strip()

    def start(self, *options, device=None, patience=120):
        """The finished process. It is ended, and has the code 124, where it takes longer than `patience` seconds."""
        command = [self.binary, "embed", "--offline", "--no-progress", "--device", device or self.device, *map(str, options)]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=patience, env=self.environment)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"ended after {patience} s")

    def rows(self, *options, device=None):
        """The hidden states of every text."""
        done = self.start("--quiet", "--pooling", "none", "--no-normalize", *options, device=device)
        if done.returncode != 0:
            raise Failed(said(done))
        return [np.array(json.loads(line)["embeddings"], dtype=np.float32) for line in done.stdout.splitlines()]

    def file(self, texts, *options):
        """What --stats says of a run from a file of texts to vectors, with the start and the seconds of the whole process."""
        self.calls += 1
        stats, vectors = self.folder / f"stats-{self.calls}.json", self.folder / f"vectors-{self.calls}.npy"
        start = time.perf_counter()
        done = self.start("--quiet", "--input", texts, "--output", vectors, "--stats", stats, *options)
        whole = time.perf_counter() - start
        if done.returncode != 0:
            raise Failed(said(done))
        found = json.loads(stats.read_text())
        count = np.load(vectors, mmap_mode="r").shape[0]
        vectors.unlink()
        if count != found["rows"]:
            raise Failed(f"{count} rows are in the file, {found['rows']} in --stats")
        if self.device != "cpu" and str(found.get("device", "cpu")).lower().startswith("cpu"):
            raise Failed("it ran on the CPU")
        return {**found, "whole": whole, "start": start}


def said(done):
    """The last line of a process that failed, with its exit code."""
    lines = done.stderr.strip().splitlines() or ["it ended without a word"]
    return f"exit code {done.returncode}: {lines[-1]}"


def table(columns, rows):
    """Lines of Markdown; the first column is text, the others are numbers."""
    head = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return [*head, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


# Hidden states


def ragged_texts(path, lengths):
    """Pairs of texts of so many words. Every second pair has a short second text, the others an empty one."""
    rng = random.Random(1)
    with open(path, "w") as file:
        for i, count in enumerate(lengths):
            text = " ".join(rng.choice(WORDS) for _ in range(count))
            file.write(json.dumps({"text": text, "pair": "a lamp is on" if i % 2 else ""}) + "\n")
    return path


def difference(found, expected):
    """The largest difference, divided by the largest absolute value; infinite where anything is not a number or missing."""
    if [rows.shape for rows in found] != [rows.shape for rows in expected]:
        return math.inf
    worst = max(float(np.abs(a - b).max()) for a, b in zip(found, expected))
    largest = max(float(np.abs(rows).max()) for rows in expected)
    return worst / largest if math.isfinite(worst) and largest > 0 else math.inf


def compare(sconce, options, texts, types):
    """For one model: the difference of each type, with one text a batch and with many, and that of bf16 on the CPU."""
    options = [*options, "--input", texts, "--pair-field", "pair"]
    expected = sconce.rows(*options, "--dtype", "f32", "--threads", 4, device="cpu")
    found = {"bf16 CPU": difference(sconce.rows(*options, "--dtype", "bf16", "--threads", 4, device="cpu"), expected)}
    for type in types:
        for batch, tokens in (("one", 1), ("many", 4096)):
            rows = sconce.rows(*options, "--dtype", type, "--batch-tokens", tokens)
            found[f"{type} {batch}"] = difference(rows, expected)
    return found


def jobs(setup, folder):
    """Name, options and texts of every model: the fixtures, and full sizes of which texts are longer than a tile of any kernel."""
    short = ragged_texts(folder / "short.jsonl", range(64))
    edges = [1, 2, 7, 15, 16, 17, 30, 31, 32, 33, 61, 62, 63, 64, 65, 100, 126, 127, 128, 129, 130, 200, 255, 256, 257, 400, 512]
    long = ragged_texts(folder / "long.jsonl", [count for count in edges if count <= setup["longest"]])
    for weights in sorted((ROOT / "tests/fixtures").glob("*/model.safetensors")):
        if (weights.parent / "config.json").exists():
            yield weights.parent.name, ["--model", weights.parent], short
    model = ["--model", ROOT / "tests/fixtures/bert-tiny", "--max-length", setup["longest"], "--random-weights", 7]
    for name in setup["configs"]:
        yield f"{name}, full size", [*model, "--config", ROOT / f"configs/{name}.json"], long
    for size in HEAD_SIZES:
        fields = json.loads((ROOT / "configs/bert-mini.json").read_text())
        fields.update(num_attention_heads=4, hidden_size=4 * size, intermediate_size=16 * size)
        path = folder / f"heads-{size}.json"
        path.write_text(json.dumps(fields))
        yield f"bert-mini with heads of {size}", [*model, "--config", path], long


def allowed(key, cells):
    type = key.split()[0]
    return max(BOUNDS[type], TIMES_CPU * cells["bf16 CPU"] if type == "bf16" else 0)


def states(sconce, setup, report, texts, deadline):
    # The other parts get two thirds of the time.
    until = time.monotonic() + (deadline - time.monotonic()) / 3

    def attempt(job):
        try:
            if time.monotonic() > until:
                raise Failed("no time was left; more is --minutes")
            return job[0], compare(sconce, *job[1:], setup["types"])
        except Failed as reason:
            report.fail(f"hidden states of {job[0]}: {reason}")

    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2) // 2))) as pool:
        found = dict(filter(None, pool.map(attempt, jobs(setup, sconce.folder))))
    report.data["states"] = found
    columns = [f"{type} {batch}" for type in setup["types"] for batch in ("one", "many")]
    report.add("", "## Hidden states beside those of the CPU in f32", "")
    report.add(
        "The largest difference of any element, divided by the largest absolute value; one text a batch, and many in one. Bounds: "
        + ", ".join(f"{type} {BOUNDS[type]:g}" for type in setup["types"])
        + f", and for bf16 {TIMES_CPU} times the difference of bf16 on the CPU, where that is more. Products in f32 are f32 "
        "throughout: tf32 is off, as is candle's default.",
        "",
    )
    rows = [[name, *(f"{cells[key]:.1e}" for key in [*columns, "bf16 CPU"])] for name, cells in found.items()]
    report.add(*table(["model", *columns, "bf16 on the CPU"], rows))
    for key in columns:
        over = {name: cells[key] for name, cells in found.items() if not cells[key] <= allowed(key, cells)}
        if over:
            worst = max(over, key=over.get)
            report.fail(f"hidden states in {key}: {len(over)} over the bound, {worst} most with {over[worst]:.1e}")


# Models and texts


def learned(prose):
    """A tokenizer as BERT's, whose vocabulary is learned from the prose: no model's own has to be there."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(lowercase=True), BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=30522, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(prose, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


class Texts:
    """Prose as text files, with known counts of tokens."""

    def __init__(self, folder):
        prose = list(bench_texts.sentences())
        self.tokenizer, self.path, self.folder = learned(prose), folder / "tokenizer.json", folder
        self.tokenizer.save(str(self.path))
        self.count = bench_texts.Lengths(self.tokenizer)
        self.words = [word for sentence in prose for word in sentence.split()]
        passages, _ = bench_texts.mixed(prose, self.count, random.Random(1))
        self.passages = [(text, self.count(text.split()) + bench_texts.SPECIALS) for text in passages]

    def exactly(self, length):
        """Texts that have `length` tokens each, [CLS] and [SEP] included; the end is filled with a word of one token."""
        words = iter(itertools.cycle(self.words))
        while True:
            text, room = [], length - bench_texts.SPECIALS
            while room > 0:
                word = next(words)
                word = word if self.count([word]) <= room else "a"
                text.append(word)
                room -= self.count([word])
            yield " ".join(text), length

    def file(self, name, tokens):
        """A file of about so many tokens, and the count of each of its texts. A name is a length, or "mix" for passages of 5 to
        256 tokens. Texts come again in another order where there are not enough of them."""
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
    """A folder with a BERT of this config, random weights stored as f16, for Sconce and PyTorch alike."""
    target = folder / name
    if not target.exists():
        torch.manual_seed(1)
        config = BertConfig(**json.loads((ROOT / f"configs/{name}.json").read_text()))
        BertModel(config, add_pooling_layer=False).half().save_pretrained(target, max_shard_size="100GB")
        shutil.copy(tokenizer, target / "tokenizer.json")
    return target


def operations(name, counts):
    """Of the linear layers and of the two products of attention for texts of so many tokens; an addition and a multiplication
    are two operations, and padding is none:
    layers · (tokens · 2 (4 width² + 2 width · inner) + Σ 4 width · tokens of a text²)."""
    config = json.loads((ROOT / f"configs/{name}.json").read_text())
    layers, width, inner = (config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    return layers * sum(count * 2 * (4 * width**2 + 2 * width * inner) + 4 * width * count**2 for count in counts)


# PyTorch


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_rate(device, size):
    """Operations a second of a bf16 product of two square matrices of random numbers: the best of several times ten."""
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
    """Batches of texts of so many tokens, the longest first, each of at most `tokens` with its padding: token ids drawn at random,
    and a mask where it is not all ones."""
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
    """transformers with scaled_dot_product_attention; compiled or not."""

    def __init__(self, folder, type, device, compiled):
        options = dict(add_pooling_layer=False, attn_implementation="sdpa", dtype=TORCH_TYPES[type])
        model = BertModel.from_pretrained(folder, **options).eval().to(device)
        self.device, self.forward = device, torch.compile(model, dynamic=True) if compiled else model

    @torch.inference_mode()
    def seconds(self, batches):
        """From token ids in the CPU's memory to the mean vector of every text there."""
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


# Tokens a second


def shape_texts(name, setup, texts, rate, device):
    """The files of a shape, each of the tokens that take some time at 40 % of the matrix rate, and PyTorch's batches of them."""
    found = {}
    for length in LENGTHS:
        usual = 64 if length == "mix" else int(length)
        wanted = setup["seconds"] * 0.4 * rate / operations(name, [usual]) * usual
        path, counts = texts.file(length, int(max(512, min(setup["most_tokens"], wanted))))
        batches = sorted_batches(counts, setup["torch_batch"], device)
        found[length] = {"path": path, "counts": counts, "batches": batches, "idle": {}}
    return found


def warm(sconce, folder, types):
    """The driver compiles kernels at their first use, and keeps them for the next process."""
    for type in types:
        done = sconce.start("--quiet", "--model", folder, "--dtype", type, "a lamp in the window")
        if done.returncode != 0:
            raise Failed(said(done))


def contenders(sconce, setup, folder):
    """What takes part in a shape's rounds: name and type of each, and what gives its seconds for the texts of one length."""

    def run(type):
        def seconds(texts):
            found = sconce.file(texts["path"], "--model", folder, "--dtype", type, "--max-length", 512)
            if found["tokens"] != sum(texts["counts"]):
                raise Failed(f"{found['tokens']} tokens were encoded, and the texts have {sum(texts['counts'])}")
            texts["idle"].setdefault(type, []).append(found["idle"])
            return found["seconds_encoding"]

        return seconds

    found = {("Sconce", type): run(type) for type in setup["speed_types"]}
    peers = [("PyTorch", type) for type in setup["speed_types"]] + [("torch.compile", "bf16")]
    for peer in peers:
        model = Torch(folder, peer[1], sconce.device, compiled=peer[0] == "torch.compile")
        found[peer] = lambda texts, model=model: model.seconds(texts["batches"])
    return found


def measure(name, texts, peers, count, report, deadline):
    """The seconds of every round, by peer and length, until there are enough or time is over. PyTorch warms up with a batch."""
    seconds, broken = {}, set()
    for round in range(-1, count):
        for length, each in texts.items():
            for peer, doing in peers.items():
                # Sconce warms up in every process, or does not: its encoding counts from the first batch.
                if peer in broken or time.monotonic() > deadline or (round < 0 and peer[0] == "Sconce"):
                    continue
                try:
                    took = doing(each if round >= 0 else {**each, "batches": each["batches"][:1]})
                except Exception as reason:  # whatever a peer dies of, the others go on
                    broken.add(peer)
                    first = str(reason).strip().partition("\n")[0] or type(reason).__name__
                    report.fail(f"{name}, {' '.join(peer)}, texts of {length}: {first}")
                    continue
                if round >= 0:
                    seconds.setdefault((*peer, length), []).append(took)
    return seconds


def figures(name, texts, seconds, rate):
    """What the rounds of a shape say, a dictionary for each type and length."""
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
    columns += ["Sconce over PyTorch", "over torch.compile", "of the matrix rate", "idle", "rounds"]
    rows = []
    for each in found:
        cells = [each["shape"], each["texts"], each["type"], f"{each['tokens/s']:,.0f}"]
        cells += [f"{value:,.0f}" if value else "" for value in each["peers"].values()]
        cells += [f"{value:.2f}" if value else "" for value in each["over"].values()]
        rows.append([*cells, f"{100 * each['share']:.1f} %", f"{100 * each['idle']:.0f} %", each["rounds"]])
    return table(columns, rows)


def bar(what, value, wanted, shown):
    return f"- {what}: {shown(value)}, wanted {shown(wanted)}: {'reached' if value >= wanted else 'not reached'}"


def percent(value):
    return f"{100 * value:.0f} %"


def speed_bars(found):
    """bert-base's share of the matrix rate in bf16, and the least ratio to each peer."""
    lines = []
    for each in found:
        wanted = BARS.get(f"share {each['texts']}")
        if each["shape"] == "bert-base-uncased" and each["type"] == "bf16" and wanted:
            lines.append(bar(f"bert-base-uncased bf16, {each['texts']}, of the matrix rate", each["share"], wanted, percent))
    for peer in ("PyTorch", "torch.compile"):
        ratios = [each for each in found if each["over"][peer]]
        if ratios:
            least = min(ratios, key=lambda each: each["over"][peer])
            what = f"Sconce over {peer}, the least of {len(ratios)} ({least['shape']} {least['type']} {least['texts']})"
            lines.append(bar(what, least["over"][peer], BARS[peer], "{:.2f}".format))
    return lines


def speed(sconce, setup, report, texts, deadline):
    rate = matrix_rate(sconce.device, setup["matrix"])
    found = []
    for left, name in zip(range(len(setup["shapes"]), 0, -1), setup["shapes"]):
        # Every shape gets its part of the time that is left.
        until = time.monotonic() + (deadline - time.monotonic()) / left
        folder = make_model(name, texts.path, sconce.folder)
        warm(sconce, folder, setup["speed_types"])
        files = shape_texts(name, setup, texts, rate, sconce.device)
        seconds = measure(name, files, contenders(sconce, setup, folder), setup["rounds"], report, until)
        more = figures(name, files, seconds, rate)
        if len(more) < len(files) * len(setup["speed_types"]):
            report.fail(f"{name} has {len(more)} of {len(files) * len(setup['speed_types'])} figures; more time is --minutes")
        print(*speed_table(more)[2:], sep="\n", flush=True)
        found += more
        torch.compiler.reset()
        if sconce.device == "cuda":
            torch.cuda.empty_cache()
    report.data["speed"], report.data["matrix_rate"] = found, rate
    report.add("", "## Encoders beside PyTorch", "")
    report.add(
        "Random weights. Sconce: `tokens / seconds_encoding` of --stats, from text to vector, with tokenizing, pooling and waiting "
        "in it; idle is the part of that time in which it had nothing to compute. PyTorch: transformers "
        f"{transformers.__version__} with scaled_dot_product_attention, from token ids to mean vectors, texts of the same lengths, "
        f"sorted, in batches of {setup['torch_batch']:,} tokens with padding; compiled with torch.compile(dynamic=True), bf16 only. "
        f"Medians of interleaved rounds; where there are fewer than {setup['rounds']}, time was over. The matrix rate is that of a "
        f"bf16 product {setup['matrix']}³ in PyTorch, the best of 6 times 10: {rate / 1e12:.4g} TFLOP/s; the share counts the "
        "operations of linear layers and attention, without padding.",
        "",
        *speed_table(found),
        "",
        *speed_bars(found),
    )


# From a text file to vectors


def utilization():
    """The part of the last moment in which any kernel ran, in percent, as the driver counts it."""
    try:
        return torch.cuda.utilization(0)
    except Exception:  # without nvidia-ml-py, or where NVML does not answer
        card = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        command = ["nvidia-smi", "-i", card, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        return int(subprocess.check_output(command, text=True))


@contextlib.contextmanager
def sampled(device):
    """Samples of the utilization, every 100 ms, as pairs of a time and a percentage; none on the CPU."""
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


def flow(sconce, setup, report, texts, deadline):
    folder = make_model(setup["flow"], texts.path, sconce.folder)
    warm(sconce, folder, ["bf16"])
    path, counts = texts.file("mix", setup["flow_tokens"])
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
    report.data["flow"] = runs
    rate, tokens = run["tokens"] / run["whole"], run["tokens"]
    report.add("", f"## From a text file to a .npy file, {setup['flow']}, bf16", "")
    report.add(
        f"{len(counts):,} texts of 5 to 256 tokens, {tokens:,} tokens in all; the median of {len(runs)} runs: {run['whole']:.1f} s "
        f"for the whole process, {run['seconds_loading']:.1f} s of it until the model was ready, {run['seconds_encoding']:.1f} s from "
        f"the first batch to the end of the last, idle for {percent(run['idle'])} of them; peak memory "
        f"{run['peak_memory_bytes'] / 1e6:,.0f} MB.",
        "",
        bar("tokens a second of the whole process", rate, BARS["tokens/s"], "{:,.0f}".format),
    )
    if run["busy"] is not None:
        report.add(bar("the GPU is busy while texts are encoded", run["busy"], BARS["busy"], percent))
        report.add(f"- the GPU is busy over the whole process: {percent(run['busy_whole'])}")
        report.add("- busy is NVML's utilization, the part of time in which any kernel runs, sampled every 100 ms, the mean")
    elif sconce.device == "cuda":
        report.fail("the GPU's utilization could not be read")


# Little memory

HOLD = """
import sys, torch
torch.zeros(1, device="cuda")
held = torch.empty(max(0, torch.cuda.mem_get_info()[0] - int(float(sys.argv[1]))), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def others_hold_all_but(bytes, device):
    """Another process takes the GPU's memory meanwhile, all but so many bytes; on the CPU nobody does."""
    if device == "cpu":
        yield
        return
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if holder.stdout.readline().strip() != "held":
            raise Failed("no other process could take the memory")
        yield
    finally:
        holder.stdin.close()
        holder.wait()


def outcome(done, vectors, texts):
    """Whether a run with too little memory ended as it should, and a sentence on how it ended."""
    errors = [line for line in done.stderr.splitlines() if not line.startswith("sconce: warning: ")]
    if done.returncode == 0:
        rows = np.load(vectors, mmap_mode="r").shape[0]
        return rows == texts, f"{rows:,} rows of {texts:,}"
    sentence = done.returncode == 1 and len(errors) == 1 and errors[0].startswith("sconce: error: ")
    return sentence and not vectors.exists(), " ".join(errors)[:300] or "it ended without a word"


def memory(sconce, setup, report, texts, deadline):
    folder = make_model(setup["flow"], texts.path, sconce.folder)
    path, counts = texts.file("512", 512 * setup["memory_texts"])
    rows = []
    for left in setup["left_free"]:
        vectors = sconce.folder / "little-memory.npy"
        with others_hold_all_but(left, sconce.device):
            options = ["--model", folder, "--dtype", "bf16", "--max-length", 512, "--batch-tokens", setup["memory_batch"]]
            done = sconce.start("--quiet", "--input", path, "--output", vectors, *options, patience=120)
        good, how = outcome(done, vectors, len(counts))
        rows.append([f"{left / 1e9:.1f} GB", done.returncode, how])
        if not good:
            report.fail(f"with {left / 1e9:.1f} GB of memory: exit code {done.returncode}, {how}")
        vectors.unlink(missing_ok=True)
    report.data["memory"] = rows
    report.add("", f"## Little memory, {setup['flow']}, bf16, --batch-tokens {setup['memory_batch']}", "")
    report.add(*table(["left free by another process", "exit code", "how it ended"], rows))


# The page


def head(args, sconce):
    if args.rehearse:
        lines = ["# Rehearsal on the CPU: nothing here was measured on a GPU", ""]
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
        f"- {datetime.datetime.now():%Y-%m-%d %H:%M}, `{shlex.join(['scripts/gpu_check.sh', *sys.argv[1:]])}`",
        f"- {card}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the start",
        f"- {sconce.version}; PyTorch {torch.__version__}, transformers {transformers.__version__}, Python {sys.version.split()[0]}",
    ]


def unpacked(path, folder):
    """A copy of the binary, so that a build that ends meanwhile does not change what is measured."""
    target = folder / "sconce"
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as source, open(target, "wb") as copy:
        shutil.copyfileobj(source, copy)
    target.chmod(0o755)
    return target


PARTS = {"states": states, "memory": memory, "flow": flow, "speed": speed}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, help="the binary, or packed as .xz [default: target/gpu/sconce]")
    parser.add_argument("--out", type=Path, help="the page")
    parser.add_argument("--json", type=Path, help="its figures")
    parser.add_argument("--parts", type=lambda value: value.split(","), default=list(PARTS), help="of states,memory,flow,speed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no further round begins")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no parts {', '.join(sorted(unknown))}")
    if not args.rehearse and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; --rehearse runs on the CPU")
    args.sconce = args.sconce or ROOT / ("target/release/sconce" if args.rehearse else "target/gpu/sconce")
    if not args.sconce.exists():
        parser.error(f"{args.sconce} is not there; scripts/build_cuda.sh makes one for GPUs")
    return args


def main():
    deadline = time.monotonic()
    args = options()
    deadline += 60 * args.minutes
    setup = {**(REHEARSAL if args.rehearse else REAL), "rounds": args.rounds}
    report = Report(args)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        sconce = Sconce(unpacked(args.sconce, folder), "cpu" if args.rehearse else "cuda", folder)
        report.add(*head(args, sconce))
        texts = Texts(folder)
        for name in args.parts:
            start = time.monotonic()
            try:
                PARTS[name](sconce, setup, report, texts, deadline)
            except Exception as reason:  # the other parts go on, and the page is written
                traceback.print_exc()
                report.fail(f"{name}: {reason}")
            print(f"gpu_check: {name} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
            report.write()
    for each in report.failures:
        print(f"FAILED: {each}")
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    main()
