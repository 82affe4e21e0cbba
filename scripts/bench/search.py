#!/usr/bin/env python3
"""Benchmarks `sconce search` and `sconce pairs` beside faiss and sentence-transformers, and writes a Markdown page.

    pip install -r scripts/bench/requirements-search.txt
    scripts/bench/search.py [--sconce target/release/sconce] [--threads 2] [--rounds 5] [--rows 1000000] --out benches/search.md

Vectors are normal, of unit length, 384 dimensions, f32. In every round all of these run one after another, so that a slower phase of
the machine affects all of them; the median of the rounds is reported, and ratios are of medians.

- memory: the time that numpy takes to sum the vectors in memory, on the same number of threads: what reading them costs
- faiss: IndexFlatIP.search on vectors in memory, k = 10, with the loading of the file left out
- sconce: the whole process, from the files on the command line to the rows in a file, with the vector file in the page cache;
  and the same less a process that searches a file of one row
- formats: sconce's whole process for one query, beside the time of reading the bytes of the file from the page cache with pread, in
  blocks of 384 KB into one buffer per thread
- pairs: sconce's whole process beside paraphrase_mining_embeddings on a tensor in memory

Indices are compared with faiss: the share of queries with the same ten rows in the same order.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Idle threads of OpenMP would spin while another process is measured.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sentence_transformers
import torch
from sentence_transformers.util import paraphrase_mining_embeddings

ROOT = Path(__file__).resolve().parents[2]
DIMENSIONS, K = 384, 10
INSTRUCTIONS = ["avx2", "fma", "avx_vnni", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"]


def unit_vectors(rows, seed, duplicates=0):
    rng = np.random.default_rng(seed)
    x = np.empty((rows, DIMENSIONS), dtype=np.float32)
    for start in range(0, rows, 1 << 16):
        part = x[start : start + (1 << 16)]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    if duplicates:
        copies = rng.permutation(rows)[: 2 * duplicates]
        noise = rng.uniform(0, 0.8, size=(duplicates, 1)) * rng.standard_normal((duplicates, DIMENSIONS))
        x[copies[:duplicates]] = x[copies[duplicates:]] + noise
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


def timed(run):
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def process(command):
    seconds, done = timed(lambda: subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return seconds


def read_memory(x, threads):
    """Sums all elements on all threads."""
    parts = np.array_split(x.reshape(-1), threads)
    with ThreadPoolExecutor(threads) as pool:
        return timed(lambda: sum(pool.map(np.sum, parts)))[0]


class Search:
    """The nearest rows of a number of queries."""

    def __init__(self, args, folder, x, index, queries):
        self.args, self.x, self.index = args, x, index
        self.queries = unit_vectors(queries, 2)
        self.name = f"{queries:,} quer{'y' if queries == 1 else 'ies'}"
        self.out = folder / f"found-{queries}.jsonl"
        np.save(folder / f"queries-{queries}.npy", self.queries)
        command = [args.sconce, "search", folder / "vectors.npy", "--query-vectors", folder / f"queries-{queries}.npy"]
        options = ["-k", str(K), "--metric", "dot", "--threads", str(args.threads), "-o", self.out]
        self.command = [*command, *options]
        self.empty = [args.sconce, "search", folder / "one.npy", *command[3:], *options]
        self.seconds = {"memory": [], "faiss": [], "sconce": [], "sconce, search alone": []}

    def round(self):
        self.seconds["memory"].append(read_memory(self.x, self.args.threads))
        seconds, (_, self.found) = timed(lambda: self.index.search(self.queries, K))
        self.seconds["faiss"].append(seconds)
        empty = process(self.empty)
        whole = process(self.command)
        self.seconds["sconce"].append(whole)
        self.seconds["sconce, search alone"].append(whole - empty)

    def agreement(self):
        rows = [json.loads(line) for line in self.out.read_text().splitlines()]
        ours = np.full_like(self.found, -1)
        for row in rows:
            ours[row["query"], row["rank"]] = row["index"]
        return float((ours == self.found).all(axis=1).mean())

    def lines(self):
        median = {name: statistics.median(seconds) for name, seconds in self.seconds.items()}
        work = 2 * len(self.queries) * self.x.size
        for name, seconds in median.items():
            rate = "" if name == "memory" else f"{work / seconds / 1e9:,.0f}"
            yield (
                f"| {self.name} | {name} | {seconds * 1e3:,.0f} | {rate} | {seconds / median['memory']:.2f} "
                f"| {median['faiss'] / seconds:.2f} |"
            )


class Formats:
    """One query among the same vectors in other formats and types."""

    CHUNK, BLOCK = 10_000, 384 << 10

    def __init__(self, args, folder, x):
        self.args, self.files = args, {"f32.npy": folder / "vectors.npy"}
        self.query, self.out = folder / "queries-1.npy", folder / "found.jsonl"
        np.save(self.query, unit_vectors(1, 2))
        scale = np.abs(x).max(1, keepdims=True) / 127
        for name, part, dtype, width in [
            ("f16.npy", lambda i, x: x, np.float16, DIMENSIONS),
            ("int8.npy", lambda i, x: np.rint(x / scale[i : i + len(x)]), np.int8, DIMENSIONS),
            ("binary.npy", lambda i, x: np.packbits(x > 0, axis=1).astype(np.int16) - 128, np.int8, DIMENSIONS // 8),
        ]:
            self.files[name] = folder / name
            array = np.lib.format.open_memmap(folder / name, "w+", dtype, (len(x), width))
            for i in range(0, len(x), self.CHUNK):
                array[i : i + self.CHUNK] = part(i, x[i : i + self.CHUNK])
        (folder / "binary.npy.meta.json").write_text('{"output_dtype": "binary"}')
        item = pa.field("item", pa.float32(), False)
        schema = pa.schema([pa.field("embedding", pa.list_(item, DIMENSIONS), False)])
        self.files |= {name: folder / name for name in ["f32.arrow", "f32.parquet"]}
        arrow = pa.ipc.new_file(str(folder / "f32.arrow"), schema)
        parquet = pq.ParquetWriter(folder / "f32.parquet", schema, compression="none", use_dictionary=False)
        for i in range(0, len(x), self.CHUNK):
            values = pa.array(x[i : i + self.CHUNK].ravel())
            batch = pa.record_batch([pa.FixedSizeListArray.from_arrays(values, type=schema.field(0).type)], schema)
            arrow.write_batch(batch)
            parquet.write_batch(batch)
        arrow.close()
        parquet.close()
        self.seconds = {name: ([], []) for name in self.files}

    def read(self, path):
        file, threads = os.open(path, os.O_RDONLY), self.args.threads

        def part(thread):
            buffer = bytearray(self.BLOCK)
            for offset in range(thread * self.BLOCK, os.path.getsize(path), threads * self.BLOCK):
                os.preadv(file, [buffer], offset)

        with ThreadPoolExecutor(threads) as pool:
            seconds, _ = timed(lambda: list(pool.map(part, range(threads))))
        os.close(file)
        return seconds

    def round(self):
        for name, path in self.files.items():
            options = ["-k", str(K), "--threads", str(self.args.threads), "-o", self.out]
            read, search = self.seconds[name]
            read.append(self.read(path))
            search.append(process([self.args.sconce, "search", path, "--query-vectors", self.query, *options]))

    def lines(self):
        for name, seconds in self.seconds.items():
            read, search = (statistics.median(times) * 1e3 for times in seconds)
            size = os.path.getsize(self.files[name]) / 1e6
            yield f"| {name} | {size:,.0f} | {read:,.0f} | {search:,.0f} | {search / read:.2f} |"


class Pairs:
    """The best pairs of vectors, a hundredth of which are noisy copies of others."""

    def __init__(self, args, folder):
        self.args, self.x = args, unit_vectors(args.pair_rows, 3, args.pair_rows // 100)
        self.out = folder / "pairs.jsonl"
        np.save(folder / "pairs.npy", self.x)
        self.command = [args.sconce, "pairs", folder / "pairs.npy", "--threads", str(args.threads), "-q", "-o", self.out]
        self.seconds = {"sentence-transformers": [], "sconce": []}

    def round(self):
        tensor = torch.from_numpy(self.x)
        seconds, self.found = timed(lambda: paraphrase_mining_embeddings(tensor))
        self.seconds["sentence-transformers"].append(seconds)
        self.seconds["sconce"].append(process(self.command))

    def agreement(self):
        """The number of pairs, of those with a score above the last one that only one of both has, and the greatest difference."""
        ours = {}
        for line in self.out.read_text().splitlines():
            row = json.loads(line)
            ours[row["a"], row["b"]] = row["score"]
        theirs = {(i, j): score for score, i, j in self.found}
        last = min(theirs.values()) + 1e-6
        only = sum(score > last for pair, score in theirs.items() if pair not in ours)
        only += sum(score > last for pair, score in ours.items() if pair not in theirs)
        difference = max(abs(score - ours[pair]) for pair, score in theirs.items() if pair in ours)
        return len(ours), only, difference

    def lines(self):
        median = {name: statistics.median(seconds) for name, seconds in self.seconds.items()}
        for name, seconds in median.items():
            yield f"| {name} | {seconds:.2f} | {median['sentence-transformers'] / seconds:.2f} |"


def machine():
    flags = Path("/proc/cpuinfo").read_text()
    value = lambda key: next(line.split(":")[1].strip() for line in flags.splitlines() if line.startswith(key))
    found = " ".join(flag for flag in INSTRUCTIONS if flag in value("flags").split())
    return f"{value('model name')}, family {value('cpu family')}, model {value('model')}, {os.cpu_count()} cores: {found}"


def page(args, searches, formats, pairs):
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    parts = ["search beside faiss"] * bool(searches) + ["pairs beside sentence-transformers"] * bool(pairs)
    yield f"# {' and '.join(parts).capitalize()}\n"
    yield "Written by `scripts/bench/search.py`, which says what is measured.\n"
    yield f"- {now}, load average {os.getloadavg()[0]:.1f} at the end"
    yield f"- {machine()}"
    yield (
        f"- faiss {faiss.__version__}, sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}, "
        f"numpy {np.__version__}; Python {platform.python_version()}"
    )
    yield f"- {args.threads} threads; median of {args.rounds} round{'s' * (args.rounds > 1)}\n"
    if searches:
        yield f"## search: {args.rows:,} × {DIMENSIONS} in f32, k = {K}\n"
        yield "| queries | what | ms | GFLOP/s | / memory | faiss / this |\n|---|---|---:|---:|---:|---:|"
        for search in searches:
            yield from search.lines()
        yield ""
        for search in searches:
            yield f"- {search.name}: {search.agreement():.1%} have the rows of faiss in the same order"
        yield ""
    if formats:
        yield f"## formats: {args.rows:,} × {DIMENSIONS}, 1 query by cosine, k = {K}\n"
        yield "| file | MB | reading, ms | search, ms | search / reading |\n|---|---:|---:|---:|---:|"
        yield from formats.lines()
        yield ""
    if pairs:
        yield f"## pairs: {args.pair_rows:,} × {DIMENSIONS} in f32, up to 100 neighbours per row, 500,000 pairs\n"
        yield "| what | seconds | sentence-transformers / this |\n|---|---:|---:|"
        yield from pairs.lines()
        count, only, difference = pairs.agreement()
        yield f"\n- {count:,} pairs; {only} that only one of both found; scores differ by at most {difference:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target/release/sconce", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, nargs="*", default=[1, 1000])
    parser.add_argument("--pair-rows", type=int, default=100_000, help="0: no pairs")
    parser.add_argument("--formats", action="store_true", help="measure the formats, too; needs --queries")
    parser.add_argument("--out", type=Path, help="the Markdown page [default: standard output]")
    args = parser.parse_args()
    faiss.omp_set_num_threads(args.threads)
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        searches, formats, pairs = [], None, None
        if args.queries:
            x = unit_vectors(args.rows, 1)
            np.save(folder / "vectors.npy", x)
            np.save(folder / "one.npy", x[:1])
            index = faiss.IndexFlatIP(DIMENSIONS)
            index.add(x)
            searches = [Search(args, folder, x, index, queries) for queries in args.queries]
            if args.formats:
                formats = Formats(args, folder, x)
        if args.pair_rows:
            pairs = Pairs(args, folder)
        for _ in range(args.rounds):
            for bench in [*searches, formats, pairs]:
                if bench:
                    bench.round()
        text = "\n".join(page(args, searches, formats, pairs)) + "\n"
    args.out.write_text(text) if args.out else print(text, end="")


if __name__ == "__main__":
    main()
