#!/usr/bin/env python3
"""Benchmarks Sconce and its peers side by side on models of full size with random weights, and writes a Markdown page.

    scripts/bench/peers.sh full-size [--sconce target/release/sconce] [--threads 2] [--rounds 3] --out benches/full-size-peers.md

The models have the shapes of configs/*.json and, so that their tokens are the same, the tokenizer of all-MiniLM-L6-v2, which has to be in
the Hugging Face cache. The measurement is that of peers.py, with these differences:

- only peers of the same type are loaded and take turns with Sconce, one type after another, which bounds the memory
- a pass has the first texts of a file, for --work operations of the linear layers, and peers get batches of 8: with 32, texts of all
  lengths would be padded to the longest
- five single texts, one right after another
- a peer that takes more than 8 s for a file embeds it in the first round only

A peer whose vectors differ from those of sentence-transformers in f32 is listed, and not compared with. Models, their conversions and
Sconce's packed weights are deleted after each model. --keep keeps models and conversions in ~/.cache/sconce-peers; --prepare makes them
for a later run and measures nothing. The page is written after every model. --layers 2 is a trial with small models.
"""

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from safetensors import safe_open

from peer_models import CACHE, folder_of
from peers import AGREES, REFERENCE, ROOT, TEXTS, Failed, convert, last_line, machine, measure, table, texts

# Configs, with the pooling of the models that are known for it.
MODELS = {
    "bert-base-uncased": "mean",
    "bert-large-uncased": "mean",
    "bge-m3": "cls",
    "all-mpnet-base-v2": "mean",
    "modernbert-base": "mean",
    "nomic-embed-text-v1.5": "mean",
    "Qwen3-Embedding-0.6B": "lasttoken",
}
TITLES = {"bge-m3": "bge-m3 (XLM-RoBERTa large)", "all-mpnet-base-v2": "all-mpnet-base-v2 (MPNet base)"}
PEERS = {
    "sconce": ["f32", "bf16", "int8"],
    "sentence-transformers": ["f32", "bf16"],
    "onnxruntime": ["f32", "int8"],
    "openvino": ["f32", "bf16"],
    "llama.cpp": ["f32", "bf16", "int8"],
}
TYPES = ["f32", "bf16", "int8"]
# The file of peer_models.py that a peer loads, and the files that it is made of.
FILES = {
    ("onnxruntime", "f32"): ["f32.onnx", "fused.onnx"],
    ("onnxruntime", "int8"): ["f32.onnx", "int8.onnx"],
    ("openvino", "f32"): ["f32.onnx"],
    ("openvino", "bf16"): ["f32.onnx"],
    **{("llama.cpp", type): [f"{type}.gguf"] for type in TYPES},
}
ONE_TEXT = "one text, ms"
SINGLE_TEXTS, WARM_UP, ONCE = 5, 2, 8
# Texts of a batch of the peers.
BATCH = 8


def progress(line):
    print(f"{datetime.datetime.now():%H:%M:%S} {line}", file=sys.stderr, flush=True)


def operations(model):
    """Of the matrices of a model for one token, an addition and a multiplication counted as two, without embedding tables."""
    with safe_open(model / "model.safetensors", "np") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}
    others = ("embed", "pooler", "bias")
    return 2 * sum(math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and not any(word in name for word in others))


def make(name, args):
    """The directory of a model, which exists after the first run with --keep."""
    folder = CACHE / "full-size" / (name if args.layers is None else f"{name}-{args.layers}")
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        command = [sys.executable, ROOT / "scripts/bench/full_size_models.py", ROOT / "configs" / f"{name}.json", MODELS[name], args.base, work]
        command += [str(args.layers)] * (args.layers is not None)
        with open(args.folder / "make.log", "w") as log:
            if subprocess.run(command, stdout=log, stderr=log).returncode != 0:
                raise Failed(last_line(log.name))
        Path(work).rename(folder)
    return folder


def prepare(peers, model):
    """Converts the model; the peers that can run, and the reasons of those that cannot."""
    found, failed, reasons = [], {}, {}
    for peer in peers:
        for name in FILES.get(peer, []):
            if name not in reasons:
                progress(f"{model.name}: converting, {name}")
                try:
                    reasons[name] = convert(model, name)
                except Failed as reason:
                    reasons[name] = reason
            if reasons[name]:
                failed[peer] = f"{reasons[name]} (converting, {name})"
                break
        else:
            found.append(peer)
    return found, failed


def run(name, args):
    """The lines of one model, its ratios, and the versions of the peers."""
    start, folder = time.perf_counter(), Path(tempfile.mkdtemp(dir=args.folder))
    model = make(name, args)
    work = operations(model)
    # What measure() and table() of peers.py read.
    args = SimpleNamespace(**vars(args) | dict(
        model=model, max_length=256, part=1.0, tokens=max(64, round(args.work * 1e9 / work)), warm_up=WARM_UP, once=ONCE, batch=BATCH,
        single_texts=SINGLE_TEXTS, pauses={ONE_TEXT: 0}, pooling=MODELS[name], limit_json=None,
    ))
    try:
        peers, failed = prepare([peer for peer in args.peers if peer[0] != "llama.cpp" or name.startswith("Qwen3")], model)
        progress(f"{name}: {work / 1e9:.2f} GFLOP per token, made and converted in {time.perf_counter() - start:.0f} s")
        if args.prepare:
            return [f"- Failed: {' '.join(peer)}: {reason}" for peer, reason in failed.items()], {}, []
        files, warm_up, singles = texts(args, folder)
        running, seconds, single = {}, {}, {}
        for type in args.types:
            of_type = [peer for peer in peers if peer[1] == type]
            found, *measured, reasons = measure(of_type, files, warm_up, singles, args, folder)
            for server in found.values():
                server.close()
            running.update(found)
            seconds.update(measured[0])
            single.update(measured[1])
            failed.update(reasons)
            if type == REFERENCE[1] and REFERENCE not in running:
                raise Failed(f"the reference, sentence-transformers in f32, failed: {failed[REFERENCE]}")
        lines, ratios = table(running, seconds, single, failed, files, args, folder)
        if (operators := folder_of(model) / "fused.json").exists() and ("onnxruntime", "f32") in running:
            fused = ", ".join(f"{count} {name}" for name, count in json.loads(operators.read_text()).items())
            lines.append(f"- ONNX Runtime's optimizer fused: {fused or 'nothing'}")
    finally:
        if not (args.keep or args.prepare):
            shutil.rmtree(folder_of(model), ignore_errors=True)
            shutil.rmtree(model)
        shutil.rmtree(args.folder / "cache", ignore_errors=True)
        shutil.rmtree(folder)
    sizes = [f"{file.stem} {len(tokens):,} texts, {sum(tokens):,} tokens" for file, tokens in files.items()]
    size = f"- {work / 1e9:.2f} GFLOP per token without attention's products; pooling {MODELS[name]}; {'; '.join(sizes)}"
    return [size, "", *lines], ratios, [found.version for found in running.values()]


def summary(ratios, names, args):
    columns = [*args.texts, ONE_TEXT.removesuffix(", ms")]
    lines = ["| model | type | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for name in names:
        for type, found in ratios.get(name, {}).items():
            cells = [f"{found[column][0]:.2f} ({found[column][1]})" if column in found else "" for column in columns]
            lines.append(f"| {TITLES.get(name, name)} | {type} | " + " | ".join(cells) + " |")
    all_ratios = [over for models in ratios.values() for found in models.values() for over, _ in found.values()]
    if all_ratios:
        lines += ["", f"- {len(all_ratios)} ratios: median {statistics.median(all_ratios):.2f}, minimum {min(all_ratios):.2f}"]
    return lines


PAGE = """# Sconce and its peers at full size

Models with random weights and the shapes of `configs`, from texts to vectors, written by `scripts/bench/peers.sh full-size`;
`scripts/bench/full_size_peers.py` says what is measured. A ratio is the speed of Sconce divided by that of the fastest peer of the same
type: token rates, and texts per second of one text. A peer counts if the mean cosine to sentence-transformers in f32 is at least
{limits}.

ONNX Runtime has the graph of its own optimizer in f32; what that does not recognise stays as PyTorch exports it. Its int8 is the exported
graph, quantised dynamically. OpenVINO's int8, whose weights another package has to compress, is not measured. llama.cpp runs Qwen3 only;
its int8 is Q8_0, and it also computes the logits of every token, as it does for any decoder. Sconce's peak memory in int8 is that of the
first use of a checkpoint, which compares it with f32.
"""


def page(head, sections, ratios, versions, args):
    rounds = f"median of {args.rounds} round{'s' * (args.rounds > 1)}"
    return [
        *PAGE.format(limits=", ".join(f"{AGREES[type]} in {type}" for type in args.types)).splitlines(), "", *head,
        f"- {', '.join(dict.fromkeys(versions))}; Python {platform.python_version()}",
        f"- {args.threads} threads; {rounds}; one text: median of {SINGLE_TEXTS * args.rounds} calls",
        *[f"- a trial, with {args.layers} layers"] * (args.layers is not None),
        "", "## Sconce / fastest peer", "", *summary(ratios, sections, args),
        *[line for name, lines in sections.items() for line in ["", f"## {TITLES.get(name, name)}", "", *lines]],
    ]


def main():
    comma = lambda value: value.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--models", type=comma, default=list(MODELS), help=f"some of {','.join(MODELS)} [default: all]")
    parser.add_argument("--peers", type=comma, default=list(PEERS), help=f"some of {','.join(PEERS)} [default: all]")
    parser.add_argument("--types", type=comma, default=TYPES, help="some of f32,bf16,int8, of which f32 always runs [default: all]")
    parser.add_argument("--texts", type=comma, default=TEXTS, help="some of short,mixed,long [default: all]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=float, default=600, help="10^9 operations of a pass over a file [default: 600]")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds after which a peer is killed [default: 120]")
    parser.add_argument("--layers", type=int, help="layers of each model, for a trial")
    parser.add_argument("--keep", action="store_true", help="keep models and conversions")
    parser.add_argument("--prepare", action="store_true", help="only make and convert the models, and keep them")
    parser.add_argument("--out", type=Path, help="page to write; required without --prepare")
    args = parser.parse_args()
    if args.out is None and not args.prepare:
        parser.error("--out is required")
    for option, known in (("models", MODELS), ("peers", PEERS), ("types", TYPES), ("texts", TEXTS)):
        if unknown := set(getattr(args, option)) - set(known):
            parser.error(f"unknown {option} {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    args.types = [type for type in TYPES if type == REFERENCE[1] or type in args.types]
    names = {"sconce", REFERENCE[0], *args.peers}
    args.peers = [(name, type) for name, types in PEERS.items() if name in names for type in types]
    command = [args.sconce, "download", "--offline", "sentence-transformers/all-MiniLM-L6-v2"]
    args.base = Path(subprocess.check_output(command, text=True).strip())
    head, start = machine(["scripts/bench/peers.sh", "full-size", *sys.argv[1:]]), time.perf_counter()
    sections, ratios, versions = {}, {}, []
    with tempfile.TemporaryDirectory(prefix="full-size-") as folder:
        args.folder = Path(folder)
        # A copy: a build that finishes during the run must not replace the binary.
        args.sconce = Path(shutil.copy2(args.sconce, args.folder / "sconce"))
        # Packed weights go there, and are deleted with each model.
        os.environ["SCONCE_CACHE"] = str(args.folder / "cache")
        for name in args.models:
            try:
                sections[name], ratios[name], found = run(name, args)
                versions += found
            except Failed as reason:
                sections[name] = [f"- Not measured: {reason}"]
            if args.prepare:
                print(*sections[name], sep="\n")
                continue
            took = f"- written {(time.perf_counter() - start) / 60:.0f} minutes after the start"
            args.out.write_text("".join(line + "\n" for line in page([*head, took], sections, ratios, versions, args)))
    if not args.prepare:
        print(args.out.read_text())


if __name__ == "__main__":
    main()
