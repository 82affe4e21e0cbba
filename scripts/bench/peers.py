#!/usr/bin/env python3
"""Benchmarks Sconce and its peers side by side on the same model and texts, and writes a Markdown page.

    scripts/bench/peers.sh [--sconce target/release/sconce] [--threads 2] [--rounds 3] --out PAGE.md

Call peers.sh, not this script: it creates the Python environment with the peers and builds candle_peer first.

Measured is the time from texts to vectors: tokenization, encoding, pooling and normalisation, without loading. Peers get batches of
32 texts of similar length. A peer is one process, which loads once and warms up once on the first texts of each file. In every round
each peer embeds each file, one peer after another, so that a slower phase of the machine affects all of them; the median of the rounds
is reported. Idle peers keep their memory. Sconce is its binary, from a text file to a .npy file, in a new process each time; its time
is `seconds - seconds_loading` of --stats.

After the files of a round each peer embeds single texts, the first of the short ones: one right after another, and with a pause before
each, as queries come. Peers take turns to be the first. The median over all calls is reported. Sconce is the child of its Python package
there, so that its times include pipes.

Vectors are compared with those of sentence-transformers in f32, which therefore always runs.

--limit-json names a file such as {"f32": 250, "bf16": 500, "int8": 1000}: the peak of the processor on --threads threads in
10^9 operations per second, as `cargo bench --bench limits -- --json` prints it. The page then has Sconce's share of the peak.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import queue
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from peer_models import CACHE, checksum, folder_of

ROOT = Path(__file__).resolve().parents[2]
PEERS = {
    "sconce": ["f32", "bf16x3", "bf16", "int8"],
    "sentence-transformers": ["f32", "bf16"],
    "onnxruntime": ["f32", "int8"],
    "ctranslate2": ["f32", "bf16", "int8"],
    "openvino": ["f32", "bf16"],
    "candle-transformers": ["f32"],
    "llama.cpp": ["f32", "bf16", "int8"],
}
# Those of this script; full_size_peers.py has its own.
DEFAULT = [name for name in PEERS if name != "llama.cpp"]
REFERENCE = ("sentence-transformers", "f32")
TEXTS = ["short", "mixed", "long"]
TYPES = ["f32", "bf16x3", "bf16", "int8"]
# The type of the peers to compare with, for types that no peer has.
NEAREST = {"bf16x3": "f32"}
# The mean cosine to the reference below which a peer is not compared with: it computes something else.
AGREES = {"f32": 0.9999, "bf16x3": 0.9999, "bf16": 0.99, "int8": 0.95}
BATCH = 32
# Single texts of a round, and seconds before each.
SINGLE_TEXTS = 32
PAUSES = {"one text, ms": 0, "one text after 50 ms, ms": 0.05}
INSTRUCTIONS = ["avx2", "fma", "avx_vnni", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"]


class Failed(Exception):
    """A peer that gave no figures; the message is the reason."""


def last_line(path):
    lines = [line.strip() for line in Path(path).read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


class Server:
    """A peer in a process that answers each line of its input with a line of JSON."""

    def __init__(self, command, environment, log, patience):
        self.log, self.patience = log, patience
        start = time.perf_counter()
        with open(log, "w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
            )
        self.lines = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()
        self.version = self.answer()["version"]
        self.load_seconds = time.perf_counter() - start

    def listen(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self):
        try:
            line = self.lines.get(timeout=self.patience)
        except queue.Empty:
            self.process.kill()
            raise Failed(f"ended after {self.patience:.0f} s") from None
        if line is None:
            raise Failed(last_line(self.log))
        return json.loads(line)

    def embed(self, source, target=None):
        try:
            self.process.stdin.write(f"{source}\t{target}\n" if target else f"{source}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(last_line(self.log)) from None
        return self.answer()["seconds"]

    embed_single = embed

    def peak_bytes(self):
        if self.process.poll() is None:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            self.peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
        return self.peak

    def close(self):
        if self.process.poll() is None:
            self.peak_bytes()
        self.process.kill()
        self.process.wait()


class Sconce:
    """The sconce binary, one process per file; for single texts, the Python package over it."""

    def __init__(self, binary, type, args, folder):
        self.package, self.start_package = None, lambda: start_process("sconce", type, args, folder)
        self.command = [binary, "embed", "--offline", "--quiet", "--model", args.model, "--threads", str(args.threads)]
        self.folder, self.patience, self.peak, self.loads = folder, args.patience, 0, []
        self.type = ["--dtype", type]
        self.whole = {}
        self.version = subprocess.check_output([binary, "--version"], text=True).splitlines()[0]
        known = subprocess.check_output([binary, "embed", "--help"], text=True)
        if "--dtype " not in known:
            if type != "f32":
                raise Failed("this binary has no --dtype")
            self.type = []

    def embed(self, source, target=None):
        stats = self.folder / "sconce.json"
        target = target or self.folder / "sconce.npy"
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [*self.command, *self.type, "--input", source, "--output", target, "--stats", stats],
                capture_output=True,
                text=True,
                timeout=self.patience,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"ended after {self.patience:.0f} s") from None
        whole = time.perf_counter() - start
        if done.returncode != 0:
            raise Failed((done.stderr.splitlines() or ["no message"])[0])
        found = json.loads(stats.read_text())
        seconds = found["seconds"] - found["seconds_loading"]
        self.peak = max(self.peak, found["peak_memory_bytes"])
        self.loads.append(whole - seconds)
        self.whole.setdefault(source.stem, []).append(whole)
        return seconds

    def embed_single(self, source):
        if self.package is None:
            self.package = self.start_package()
        return self.package.embed(source)

    @property
    def load_seconds(self):
        return statistics.median(self.loads)

    def peak_bytes(self):
        return self.peak

    def close(self):
        if self.package is not None:
            self.package.close()


def start(name, type, args, folder):
    if name == "sconce":
        return Sconce(args.sconce, type, args, folder)
    return start_process(name, type, args, folder)


def start_process(name, type, args, folder):
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, RAYON_NUM_THREADS=str(args.threads), PYTHONPATH=path, SCONCE_COMMAND=str(args.sconce))
    if name == "candle-transformers":
        command = [CACHE / "candle_peer/release/candle_peer", args.model, str(args.max_length), str(args.batch)]
        if not command[0].exists():
            raise Failed("candle_peer is not built; run scripts/bench/peers.sh")
    else:
        command = [sys.executable, ROOT / "scripts/bench/peer.py", name, type, "--model", args.model]
        command += ["--conversions", folder_of(args.model), "--threads", str(args.threads), "--batch", str(args.batch)]
        command += ["--pooling", args.pooling]
    return Server(command, environment, folder / f"{name}-{type}.log", args.patience)


def convert(model, *names):
    """Writes the files of these names, or those of the peers of BERT models."""
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, ROOT / "scripts/bench/peer_models.py", model, *names]
        if subprocess.run(command, stdout=log, stderr=log).returncode != 0:
            raise Failed(last_line(log.name))


def texts(args, folder):
    """The chosen files, cut to --part of their texts or to about args.tokens, with the number of tokens of each text; a file to warm up with:
    the first texts of each; and a file for each single text, with the number of its tokens."""
    whole = CACHE / "texts" / checksum(args.model / "tokenizer.json")
    if not all((whole / f"{name}.txt").exists() for name in TEXTS):
        command = [sys.executable, ROOT / "scripts/bench/bench_texts.py", whole, "--model", args.model]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(args.max_length)
    files, first = {}, []
    for name in args.texts:
        lines = (whole / f"{name}.txt").read_text().split("\n")[:-1]
        lines = lines[: max(BATCH, round(len(lines) * args.part))]
        counts = [len(encoding.ids) for encoding in tokenizer.encode_batch(lines)]
        if args.tokens is not None:
            enough = sum(before < args.tokens for before in itertools.accumulate(counts, initial=0))
            # Whole batches: a file has few texts.
            enough = -(-enough // args.batch) * args.batch
            lines, counts = lines[:enough], counts[:enough]
        first += lines[: args.warm_up]
        path = folder / f"{name}.txt"
        path.write_text("".join(line + "\n" for line in lines))
        files[path] = counts
    warm_up = folder / "warm-up.txt"
    warm_up.write_text("".join(line + "\n" for line in first))
    singles = {}
    for index, line in enumerate((whole / f"{TEXTS[0]}.txt").read_text().split("\n")[: args.single_texts]):
        path = folder / f"single-{index}.txt"
        path.write_text(line + "\n")
        singles[path] = len(tokenizer.encode(line).ids)
    return files, warm_up, singles


def measure(peers, files, warm_up, singles, args, folder):
    """Four dictionaries: the running peers; the seconds of every round, by peer and file; those of each single text, a list per round, by
    peer and pause; the reason of each peer that failed. A peer that took more than args.once seconds for a file does not repeat it."""
    warm_up_tokens = sum(sum(tokens[: args.warm_up]) for tokens in files.values())
    running, seconds, single, failed = {}, {}, {}, {}

    def attempt(peer, doing, what):
        try:
            return doing()
        except Failed as reason:
            failed[peer] = f"{reason} ({what})"
            if peer in running:
                running.pop(peer).close()

    def progress(line):
        print(f"peers: {line}", file=sys.stderr, flush=True)

    for peer in peers:
        found = attempt(peer, lambda: start(*peer, args, folder), "loading")
        if found is not None:
            running[peer] = found
            took = attempt(peer, lambda: found.embed(warm_up), f"warming up, {warm_up_tokens:,} tokens")
            if took is not None:
                progress(f"{' '.join(peer)}: loaded, warm-up {took:.1f} s")
    for round in range(args.rounds):
        for file in files:
            for peer in list(running):
                if max(seconds.get((peer, file), [0])) > args.once:
                    continue
                target = folder / f"{'-'.join(peer)}-{file.stem}.npy" if round == 0 else None
                took = attempt(peer, lambda: running[peer].embed(file, target), f"{file.stem}, round {round + 1}")
                if took is not None:
                    seconds.setdefault((peer, file), []).append(took)
                    progress(f"round {round + 1}, {file.stem}, {' '.join(peer)}: {sum(files[file]) / took:,.0f} tokens/s")
        order = list(running)
        for peer in order[round:] + order[:round]:
            what = f"single texts, round {round + 1}"
            try:
                # Only the second time counts.
                embed_singles(running[peer], singles, 0)
                for column, pause in args.pauses.items():
                    took = embed_singles(running[peer], singles, pause)
                    single.setdefault((peer, column), []).append(took)
                    progress(f"{what}, {' '.join(peer)}: {column} {1e3 * statistics.median(took):.2f}")
            except Failed as reason:
                failed[peer] = f"{reason} ({what})"
    return running, seconds, single, failed


def embed_singles(peer, texts, pause):
    """The seconds of each text."""
    took = []
    for text in texts:
        time.sleep(pause)
        took.append(peer.embed_single(text))
    return took


def nearest_neighbours(vectors, count=10):
    """For each row of vectors (N, D) with unit length, the set of its nearest other rows."""
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    return [set(row) for row in np.argpartition(-similar, count, axis=1)[:, :count]]


def compare(peer, files, folder):
    """Mean and minimum cosine to the reference over all texts, and the share of the ten nearest neighbours that agree, of at least 100
    mixed texts."""
    cosines, same = [], None
    for file in files:
        mine, reference = (np.load(folder / f"{'-'.join(who)}-{file.stem}.npy").astype(np.float64) for who in (peer, REFERENCE))
        norms = np.linalg.norm(mine, axis=1) * np.linalg.norm(reference, axis=1)
        cosines.append((mine * reference).sum(axis=1) / norms)
        if file.stem == "mixed" and len(mine) >= 100:
            same = statistics.mean(len(a & b) / 10 for a, b in zip(nearest_neighbours(mine), nearest_neighbours(reference)))
    cosines = np.concatenate(cosines)
    return cosines.mean(), cosines.min(), same


def operations(model, tokens):
    """Of the linear layers and of attention, an addition and a multiplication counted as two."""
    config = json.loads((model / "config.json").read_text())
    layers, width, inner = (config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    linear = 2 * (4 * width**2 + 2 * width * inner) * layers
    return sum(count * (linear + 4 * width * count * layers) for count in tokens)


def machine(command):
    """Lines of the page: the date, the processor and the command."""
    info = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line)
    info = {key.strip(): value.strip() for key, value in info.items()}
    flags = info["flags"].split()
    return [
        f"- {datetime.datetime.now():%Y-%m-%d %H:%M}, load average {os.getloadavg()[0]:.1f} before the start",
        f"- {info['model name']}, family {info['cpu family']}, model {info['model']}, {os.cpu_count()} cores: "
        + " ".join(name for name in INSTRUCTIONS if name in flags),
        f"- `{shlex.join(command)}`",
    ]


def speed(seconds, files, peer, file):
    return sum(files[file]) / statistics.median(seconds[peer, file])


def latency(single, peer, column):
    return 1e3 * statistics.median(sum(single[peer, column], []))


def ratios(running, seconds, single, files, cosines, args):
    """Sconce divided by the fastest peer that agrees with the reference: a dictionary of types, of dictionaries of columns, which are the
    names of files and of args.pauses, with pairs (ratio, name of the peer)."""
    found = {}
    for type in TYPES:
        nearest = NEAREST.get(type, type)
        sconce = ("sconce", type)
        others = [peer for peer in running if peer[1] == nearest and peer[0] != "sconce" and cosines[peer] >= AGREES[nearest]]
        if sconce not in running or not others:
            continue
        columns = found[type] = {}
        for file in files:
            best = max(others, key=lambda peer: speed(seconds, files, peer, file))
            columns[file.stem] = speed(seconds, files, sconce, file) / speed(seconds, files, best, file), best[0]
        for column in args.pauses:
            measured = [peer for peer in others if (peer, column) in single]
            if (sconce, column) in single and measured:
                best = min(measured, key=lambda peer: latency(single, peer, column))
                columns[column.removesuffix(", ms")] = latency(single, best, column) / latency(single, sconce, column), best[0]
    return found


def table(running, seconds, single, failed, files, args, folder):
    """The lines of the page for one model, and its ratios."""

    def ratio(peer, file):
        sconce = ("sconce", peer[1])
        if sconce not in running or peer[0] == "sconce":
            return ""
        return f"{speed(seconds, files, sconce, file) / speed(seconds, files, peer, file):.2f}"

    names = [file.stem for file in files]
    compared = {peer: compare(peer, files, folder) for peer in running}
    ranked = any(same is not None for _, _, same in compared.values())
    columns = ["peer", "type", *(f"{name}, tokens/s" for name in names), *(f"Sconce / peer, {name}" for name in names)]
    columns += [*args.pauses, "cosine, mean", "minimum", *["top 10"] * ranked, "peak MB", "load s"]
    lines = ["| " + " | ".join(columns) + " |", "|---|---|" + "---:|" * (len(columns) - 2)]
    for peer in sorted(running, key=lambda peer: (TYPES.index(peer[1]), list(PEERS).index(peer[0]))):
        mean, least, same = compared[peer]
        cells = [*peer, *(f"{speed(seconds, files, peer, file):,.0f}" for file in files), *(ratio(peer, file) for file in files)]
        cells += [f"{latency(single, peer, column):.2f}" if (peer, column) in single else "" for column in args.pauses]
        cells += [f"{mean:.6f}", f"{least:.6f}", *([f"{same:.4f}"] if ranked else [])]
        cells += [f"{running[peer].peak_bytes() / 1e6:,.0f}", f"{running[peer].load_seconds:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    cosines = {peer: mean for peer, (mean, _, _) in compared.items()}
    over = ratios(running, seconds, single, files, cosines, args)
    for type, columns in over.items():
        shown = ", ".join(f"{column} {ratio:.2f} ({peer})" for column, (ratio, peer) in columns.items())
        lines.append(f"- Sconce {type} / fastest peer in {NEAREST.get(type, type)}: {shown}")
    for peer, mean in cosines.items():
        if mean < AGREES[peer[1]]:
            lines.append(f"- Not counted, because its vectors differ: {' '.join(peer)}, mean cosine {mean:.4f}")
    limits = json.loads(args.limit_json.read_text()) if args.limit_json else {}
    for peer, found in running.items():
        if peer[0] != "sconce":
            continue
        whole = [f"{file.stem} {statistics.median(found.whole[file.stem]):.2f} s" for file in files]
        lines.append(f"- Sconce's whole process, {peer[1]}: {', '.join(whole)}")
        if peer[1] in limits:
            shares = []
            for file, tokens in files.items():
                rate = operations(args.model, tokens) / statistics.median(seconds[peer, file])
                shares.append(f"{file.stem} {100 * rate / limits[peer[1]] / 1e9:.0f} %")
            lines.append(f"- Share of the peak of {limits[peer[1]]:,.0f} GFLOP/s, {peer[1]}: {', '.join(shares)}")
    apart = {key: (max(took) - min(took)) / statistics.median(took) for key, took in seconds.items() if key[0] in running}
    peer, file = max(apart, key=apart.get)
    if args.rounds > 1:
        lines.append(
            f"- Spread between the slowest and the fastest round: {100 * statistics.median(apart.values()):.0f} % (median), "
            f"{100 * apart[peer, file]:.0f} % (maximum: {' '.join(peer)}, {file.stem})"
        )
        medians = [[statistics.median(took) for took in rounds] for rounds in single.values()]
        apart = [(max(rounds) - min(rounds)) / statistics.median(rounds) for rounds in medians] or [0]
        lines.append(f"- Spread of single texts: {100 * statistics.median(apart):.0f} % (median), {100 * max(apart):.0f} % (maximum)")
    lines += [f"- Failed: {' '.join(peer)}: {reason}" for peer, reason in failed.items()]
    return lines, over


def chosen(names):
    """Pairs (peer, type), parsed from names such as `openvino` (all its types) and `openvino:bf16`."""
    found = []
    for name in names:
        name, _, type = name.partition(":")
        if name not in PEERS or (type and type not in PEERS[name]):
            known = ", ".join(f"{peer}:{each}" for peer, types in PEERS.items() for each in types)
            sys.exit(f"unknown peer {name}{':' * bool(type)}{type}; choose from {known}")
        found += [(name, each) for each in ([type] if type else PEERS[name])]
    return found if REFERENCE in found else [REFERENCE, *found]


def main():
    comma = lambda value: value.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--model", type=Path, help="directory of the model [default: all-MiniLM-L6-v2 in the Hugging Face cache]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=comma, default=DEFAULT, help="for example sconce,openvino:bf16 [default: all]")
    parser.add_argument("--texts", type=comma, default=TEXTS, help="some of short,mixed,long [default: all]")
    parser.add_argument("--part", type=float, default=1.0, help="fraction of each file to use [default: 1]")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds after which a peer is killed [default: 120]")
    parser.add_argument("--limit-json", type=Path, help="peak of the processor, as `cargo bench --bench limits -- --json` prints it")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.pooling, args.tokens, args.batch, args.warm_up, args.once = "mean", None, BATCH, BATCH, float("inf")
    args.single_texts, args.pauses = SINGLE_TEXTS, PAUSES
    if unknown := set(args.texts) - set(TEXTS):
        parser.error(f"unknown texts {', '.join(sorted(unknown))}; choose from {', '.join(TEXTS)}")
    peers = chosen(args.peers)
    if args.model is None:
        command = [args.sconce, "download", "--offline", "sentence-transformers/all-MiniLM-L6-v2"]
        args.model = Path(subprocess.check_output(command, text=True).strip())
    args.max_length = json.loads((args.model / "sentence_bert_config.json").read_text())["max_seq_length"]
    try:
        convert(args.model)
    except Failed as reason:
        sys.exit(f"cannot convert the model for the peers: {reason}")
    head = machine(["scripts/bench/peers.sh", *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        # A copy: a build that finishes during the run must not replace the binary.
        args.sconce = Path(shutil.copy2(args.sconce, folder / "sconce"))
        files, warm_up, singles = texts(args, folder)
        running, seconds, single, failed = measure(peers, files, warm_up, singles, args, folder)
        try:
            if REFERENCE not in running:
                sys.exit(f"the reference, sentence-transformers in f32, failed: {failed[REFERENCE]}")
            head.append(f"- {', '.join(dict.fromkeys(found.version for found in running.values()))}; Python {platform.python_version()}")
            sizes = [f"{file.stem} {len(tokens):,} texts, {sum(tokens):,} tokens" for file, tokens in files.items()]
            head.append(f"- {args.threads} threads; median of {args.rounds} round{'s' * (args.rounds > 1)}; {'; '.join(sizes)}")
            head.append(
                f"- single texts: {len(singles)} of {sum(singles.values()):,} tokens in all; median of {len(singles) * args.rounds} calls; "
                "Sconce is the child of its Python package"
            )
            lines = [*head, "", *table(running, seconds, single, failed, files, args, folder)[0]]
        finally:
            for found in running.values():
                found.close()
    args.out.write_text("".join(line + "\n" for line in lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
