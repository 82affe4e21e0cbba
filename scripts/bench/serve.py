#!/usr/bin/env python3
"""Benchmarks `sconce serve` under load and writes a Markdown page.

    scripts/bench/serve.py [--sconce target/release/sconce] [--python .venv/bin/python] [--seconds 10] [--rounds 3] [--only LOAD...]
                           [--no-peer] [--no-library] [--out benches/serve.md]

The model is all-MiniLM-L6-v2 (scripts/fetch_model.sh) with f32, the texts are those of bench_texts.py; requests are POST /embed, generated
by load.rs, which rustc compiles and which shares the machine with the server. --python is an interpreter with sentence-transformers
(scripts/fixtures/requirements-reference.txt); the environment of the baseline is created below target/bench-serve.

- single: one connection, one text of 18 tokens on average; beside the same call of the library (benches/latency.rs, built with cargo)
- S: 64 connections, one text of 18 tokens on average, each the next one when it has its answer
- B: 8 connections, 32 texts of 18 tokens
- L: 95 % texts of 18 tokens and 5 % of 512, which arrive at random at 70 % of the rate of 64 connections; the server with --max-length 512
- X: texts of 18 tokens that arrive at random at 30 % of the rate of S, beside one connection with 512 texts in each request
- overload: texts of 18 tokens that arrive at random at twice the rate of S, with 1,024 connections; beside it GET /health, 20 per second
- leave: S, but every second connection closes after 50 ms without an answer; the tokens that were computed for those, as a share of all of
  theirs. Those that were computed before they left count, too, so it is an upper limit of what was computed afterwards

The baseline (sentence-transformers, FastAPI, uvicorn: serve_peer.py) gets single, S and B. In every round it is measured after the server,
and `sconce embed` with the texts of S from a file before it; a slower phase of the machine affects all of them. The median of the rounds
is reported. "CPU ms/text" is the time of the server's process on all cores, which other processes change less than latencies. The first
second of a load is not measured.
"""

import argparse
import datetime
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts/bench"
FOLDER = ROOT / "target/bench-serve"
LOADS = ["single", "S", "B", "L", "X", "overload", "leave"]
WARM_UP = 1.0
MIN_GENERATOR_RATE = 3000


@dataclass
class Sample:
    """A request: which body, seconds from the start to its arrival, latency in seconds, status (0: the client left)."""

    body: int
    arrival: float
    latency: float
    status: int


@dataclass
class Result:
    """The samples of a load, without those of the warm-up."""

    samples: list
    seconds: float

    def answered(self):
        return [sample for sample in self.samples if sample.status == 200]

    def rate(self, weight=lambda sample: 1):
        """Answers per second."""
        until = WARM_UP + self.seconds
        done = [s for s in self.answered() if WARM_UP <= s.arrival + s.latency <= until]
        return sum(map(weight, done)) / self.seconds

    def percentile(self, percent, chosen=None):
        """A latency in milliseconds, of the answers with arrival after the warm-up."""
        chosen = self.answered() if chosen is None else chosen
        latencies = sorted(sample.latency for sample in chosen if sample.arrival >= WARM_UP)
        return 1000 * latencies[(len(latencies) - 1) * percent // 100] if latencies else float("nan")


class Generator:
    def __init__(self, folder):
        self.program, self.folder = FOLDER / "load", folder
        source = HERE / "load.rs"
        if not self.program.exists() or self.program.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["rustc", "--edition", "2024", "-O", "-o", self.program, source], check=True)

    def bodies(self, name, groups):
        """A file of bodies: each the texts of one request."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"inputs": texts}) + "\n" for texts in groups))
        return path

    def start(self, port, bodies, connections, seconds, rate="-", leave_ms=None, path="/embed"):
        command = [self.program, f"127.0.0.1:{port}", path, bodies, connections, WARM_UP + seconds, rate]
        command += [] if leave_ms is None else [leave_ms]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        return process, seconds

    def finish(self, started, may_fail=False):
        process, seconds = started
        lines = process.communicate()[0].splitlines()
        if process.returncode:
            sys.exit(f"the load generator ends with {process.returncode}")
        rows = (line.split() for line in lines)
        samples = [Sample(int(body), int(at) / 1e6, int(latency) / 1e6, int(status)) for body, at, latency, status in rows]
        unexpected = {sample.status for sample in samples} - {200} if not may_fail else set()
        if unexpected or not samples:
            sys.exit(f"{len(samples)} requests, with the statuses {unexpected} beside 200")
        return Result(samples, seconds)

    def run(self, *args, may_fail=False, **options):
        return self.finish(self.start(*args, **options), may_fail)

    def check(self, port):
        """The generator's own limit."""
        rate = self.run(port, "-", 16, 2, path="/health/live").rate()
        if rate < MIN_GENERATOR_RATE:
            sys.exit(f"only {rate:,.0f} requests per second to /health/live, under {MIN_GENERATOR_RATE:,}: the generator is too slow here")
        return rate


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.read().decode()


class Server:
    """A process that listens on `port`, until the end of a `with` block."""

    def __init__(self, command, **options):
        self.port = free_port()
        self.command = [str(part).replace("PORT", str(self.port)) for part in command]
        self.options = options

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        with open(self.log.name, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, **self.options)
        until = time.monotonic() + 300
        while True:
            try:
                get(self.port, "/health")
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    sys.exit(f"{' '.join(self.command)} does not start: {Path(self.log.name).read_text()}")
                time.sleep(0.1)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def resident_mb(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1000

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def counter(self, name):
        return float(re.search(rf"^sconce_{name} (\S+)$", get(self.port, "/metrics"), re.MULTILINE).group(1))


class Bench:
    def __init__(self, args, folder):
        self.args, self.seconds = args, args.seconds
        self.model = subprocess.run([ROOT / "scripts/fetch_model.sh"], check=True, capture_output=True, text=True).stdout.strip()
        make = [args.python, HERE / "bench_texts.py", folder, "--model", self.model]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        self.file = folder / "short.txt"
        texts = self.file.read_text().splitlines()
        passages = folder.joinpath("long.txt").read_text().splitlines()
        # Passages have more than 256 tokens: two of them are truncated to 512.
        long = [" ".join(passages[at : at + 2]) for at in range(0, len(passages) - 1, 2)]
        self.load = Generator(folder)
        self.one = self.load.bodies("one", texts)
        groups = lambda n: [[texts[(at + i) % len(texts)] for i in range(n)] for at in range(0, 32 * n, n)]
        self.many = {n: self.load.bodies(f"groups-{n}", groups(n)) for n in (32, 512)}
        mixed = [long[index // 20 % len(long)] if self.is_long(index) else text for index, text in enumerate(texts)]
        self.mixed = self.load.bodies("mixed", mixed)
        self.folder = folder

    @staticmethod
    def is_long(body):
        """Whether a body of L has a long text: one of twenty."""
        return body % 20 == 19

    def serve(self, *options):
        return Server([self.args.sconce, "serve", "--model", self.model, "--port", "PORT", "--quiet", *options])

    def peer(self):
        """The baseline, in an environment that sees the packages of --python."""
        environment = FOLDER / "venv"
        if not (environment / "complete").exists():
            subprocess.run([self.args.python, "-m", "venv", "--clear", environment], check=True)
            where = "import sysconfig; print(sysconfig.get_path('purelib'))"
            own, packages = (
                subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
                for python in (environment / "bin/python", self.args.python)
            )
            Path(own, "packages.pth").write_text(packages + "\n")
            pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "-r", HERE / "requirements-serve.txt"], check=True)
            (environment / "complete").touch()
        command = [environment / "bin/python", "-m", "uvicorn", "serve_peer:app", "--port", "PORT", "--log-level", "warning"]
        # Idle threads of OpenMP would spin while the other server is measured.
        variables = {"SERVE_PEER_MODEL": self.model, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
        return Server(command, cwd=HERE, env={**os.environ, **variables})

    def embed(self):
        """Texts and tokens per second of `sconce embed`, without loading."""
        stats = self.folder / "stats.json"
        files = ["--input", self.file, "--output", self.folder / "out.npy", "--restart", "--stats", stats]
        subprocess.run([self.args.sconce, "embed", "--quiet", "--model", self.model, *files], check=True)
        found = json.loads(stats.read_text())
        seconds = found["seconds"] - found["seconds_loading"]
        self.tokens_per_text = found["tokens"] / found["texts"]
        return {"embed texts/s": found["texts"] / seconds, "embed tokens/s": found["tokens"] / seconds}

    def library(self):
        """Milliseconds of the same call of the library."""
        command = ["cargo", "bench", "--quiet", "--locked", "--bench", "latency", "--"]
        command += [self.file, str(self.seconds), self.model]
        variables = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target")}
        found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=variables).stdout
        p50, p99 = found.split()[-2:]
        return {"library p50": int(p50) / 1000, "library p99": int(p99) / 1000}

    def common(self, load, server, name):
        """A load that the baseline gets, too."""
        bodies, connections, texts = {"single": (self.one, 1, 1), "S": (self.one, 64, 1), "B": (self.many[32], 8, 32)}[load]
        before = server.cpu_seconds()
        result = self.load.run(server.port, bodies, connections, self.seconds)
        return {
            f"{name} {load} texts/s": texts * result.rate(),
            f"{name} {load} cpu": 1000 * (server.cpu_seconds() - before) / (texts * len(result.samples)),
            f"{name} {load} p50": result.percentile(50),
            f"{name} {load} p99": result.percentile(99),
        }

    def long_texts(self, server):
        capacity = self.load.run(server.port, self.mixed, 64, self.seconds).rate()
        result = self.load.run(server.port, self.mixed, 256, self.seconds, 0.7 * capacity)
        short = [sample for sample in result.answered() if not self.is_long(sample.body)]
        long = [sample for sample in result.answered() if self.is_long(sample.body)]
        return {
            "L capacity": capacity,
            "L short p50": result.percentile(50, short),
            "L short p99": result.percentile(99, short),
            "L long p99": result.percentile(99, long),
            "L rate": result.rate() / (0.7 * capacity),
        }

    def capacity(self, server):
        """The rate of S, measured where it is needed, as the machine may be slower by then."""
        return self.load.run(server.port, self.one, 64, self.seconds).rate()

    def encoded(self, server):
        """Texts that are encoded per second while a load runs that has just been started: answers with 512 texts are too rare to count."""
        time.sleep(WARM_UP)
        before = server.counter("batch_texts_total")
        time.sleep(self.seconds)
        return (server.counter("batch_texts_total") - before) / self.seconds

    def beside_bulk(self, server):
        capacity = self.capacity(server)
        bulk = (server.port, self.many[512], 1, self.seconds)
        loads = [self.load.start(*bulk)]
        alone = self.encoded(server)
        self.load.finish(loads[0])
        loads = [self.load.start(*bulk), self.load.start(server.port, self.one, 256, self.seconds, 0.3 * capacity)]
        both = self.encoded(server)
        _, result = map(self.load.finish, loads)
        beside = both - result.rate()
        return {
            "X p50": result.percentile(50),
            "X p99": result.percentile(99),
            "X bulk alone": alone,
            "X bulk": beside,
            "X share": beside / (0.7 * alone),
        }

    def overload(self, server):
        capacity = self.capacity(server)
        before, peak, done = server.resident_mb(), [0.0], threading.Event()

        def watch():
            while not done.wait(0.1):
                peak[0] = max(peak[0], server.resident_mb())

        watcher = threading.Thread(target=watch)
        watcher.start()
        health = self.load.start(server.port, "-", 8, self.seconds, 20, path="/health")
        result = self.load.run(server.port, self.one, 1024, self.seconds, 2 * capacity, may_fail=True)
        alive = self.load.finish(health)
        done.set()
        watcher.join()
        refused = [sample for sample in result.samples if sample.status == 429]
        others = sum(sample.status not in (200, 429) for sample in result.samples)
        return {
            "overload goodput": result.rate() / capacity,
            "overload p99": result.percentile(99),
            "overload refused": len(refused) / len(result.samples),
            "overload refused p99": result.percentile(99, refused),
            "overload other": others,
            "overload health p99": alive.percentile(99),
            "overload MB before": before,
            "overload MB": peak[0],
        }

    def leave(self, server):
        names = ("batch_tokens_total", "tokens_total", "cancelled_texts_total")
        before = [server.counter(name) for name in names]
        result = self.load.run(server.port, self.one, 64, self.seconds, leave_ms=50, may_fail=True)
        time.sleep(1)
        computed, answered, cancelled = (server.counter(name) - old for name, old in zip(names, before))
        left = sum(sample.status == 0 for sample in result.samples)
        return {
            "leave left": left,
            "leave cancelled": cancelled,
            "leave share": (computed - answered) / max(left * self.tokens_per_text, 1),
        }

    def round(self, server, long_server, peer):
        """The figures of one round."""
        chosen, found = self.args.only, self.embed()
        for load in ("single", "S", "B"):
            for name, each in (("sconce", server), ("peer", peer)):
                if each and load in chosen:
                    found |= self.common(load, each, name)
        if "single" in chosen and not self.args.no_library:
            found |= self.library()
        loads = {
            "L": lambda: self.long_texts(long_server),
            "X": lambda: self.beside_bulk(server),
            "overload": lambda: self.overload(server),
            "leave": lambda: self.leave(server),
        }
        for load, run in loads.items():
            if load in chosen:
                found |= run()
        return found

    def measure(self):
        """The figures of all rounds, by their names."""
        with ExitStack() as servers:
            server = servers.enter_context(self.serve())
            generator = self.load.check(server.port)
            long_server = servers.enter_context(self.serve("--max-length", 512)) if "L" in self.args.only else None
            peer = None if self.args.no_peer else servers.enter_context(self.peer())
            rounds = [self.round(server, long_server, peer) for _ in range(self.args.rounds)]
        median = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
        return {"generator": generator, **median}


# What is printed of each load: what it is, the figure that it needs, its text, and the bar.
FIGURES = [
    ("single", "the same call of the library, p50 and p99", "library p50", "{library p50:.2f}, {library p99:.2f} ms", ""),
    ("single", "p50 − that of the library", "library p50", "{single over:+.2f} ms", "≤ 0.4 ms"),
    ("single", "p99 / p50", "single tail", "{single tail:.2f}", "≤ 2"),
    ("L", "p50 and p99 of texts of 18 tokens", "L rate", "{L short p50:.1f}, {L short p99:.1f} ms", "p99 ≤ 100 ms"),
    ("L", "p99 of texts of 512 tokens", "L rate", "{L long p99:.1f} ms", ""),
    ("L", "answered / arrived per second", "L rate", "{L rate:.3f}", ""),
    ("X", "p50 and p99 of texts of 18 tokens", "X share", "{X p50:.1f}, {X p99:.1f} ms", "p99 ≤ 100 ms"),
    ("X", "texts/s of the other client, beside and alone", "X share", "{X bulk:,.0f}, {X bulk alone:,.0f}", ""),
    ("X", "of 70 % of what it gets alone", "X share", "{X share:.2f}", "≥ 0.9"),
    ("overload", "answered / rate of S", "overload MB", "{overload goodput:.2f}", "≥ 0.95"),
    ("overload", "p99 of answers", "overload MB", "{overload p99:,.0f} ms", ""),
    ("overload", "refused with 429, p99", "overload MB", "{overload refused:.0%}, {overload refused p99:.1f} ms", "≤ 50 ms"),
    ("overload", "other statuses, broken connections", "overload MB", "{overload other:.0f}", "0"),
    ("overload", "p99 of /health", "overload MB", "{overload health p99:.1f} ms", "≤ 25 ms"),
    ("overload", "resident set before, peak", "overload MB", "{overload MB before:.0f}, {overload MB:.0f} MB", ""),
    ("leave", "requests left, texts taken from the queue", "leave share", "{leave left:.0f}, {leave cancelled:.0f}", ""),
    ("leave", "share of their tokens that was computed", "leave share", "{leave share:.1%}", "≤ 10 %"),
]


def machine():
    """What the figures were taken on."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    name = re.search(r"^model name\s*: (.*)$", first, re.MULTILINE)
    return f"{name.group(1) if name else platform.machine()}, {os.cpu_count()} cores"


def rates(found):
    """The table of the loads that the baseline gets, too."""
    header = [
        "| load | server | texts/s | p50 ms | p99 ms | CPU ms/text | / baseline | / `sconce embed` |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines = []
    for load in ("single", "S", "B"):
        for name, title in (("sconce", "sconce serve"), ("peer", "sentence-transformers, FastAPI")):
            rate = found.get(f"{name} {load} texts/s")
            if rate is None:
                continue
            p50, p99, cpu = (found[f"{name} {load} {figure}"] for figure in ("p50", "p99", "cpu"))
            baseline = found.get(f"peer {load} texts/s")
            beside = f"{rate / baseline:.2f}" if baseline else ""
            cells = [load, title, f"{rate:,.0f}", f"{p50:,.2f}", f"{p99:,.2f}", f"{cpu:.2f}", beside]
            lines.append(f"| {' | '.join(cells)} | {rate / found['embed texts/s']:.2f} |")
    return [*header, *lines, ""] if lines else []


def page(args, bench, found, load_average):
    version = subprocess.run([args.sconce, "--version"], check=True, capture_output=True, text=True).stdout
    if "sconce single p50" in found:
        found["single tail"] = found["sconce single p99"] / found["sconce single p50"]
    if "library p50" in found:
        found["single over"] = found["sconce single p50"] - found["library p50"]
    lines = [
        "# `sconce serve` under load", "",
        "Written by `scripts/bench/serve.py`, which says what is measured.", "",
        f"- {datetime.datetime.now():%Y-%m-%d %H:%M}, load average {load_average:.1f} at the start",
        f"- {machine()}; {', '.join(version.splitlines()[:2])}; all-MiniLM-L6-v2, f32",
        f"- median of {args.rounds} rounds of {args.seconds:g} s per load; texts of {bench.tokens_per_text:.1f} tokens on average",
        f"- the generator, alone: {found['generator']:,.0f} requests/s to /health/live",
        f"- `sconce embed` with the same texts: {found['embed texts/s']:,.0f} texts/s, {found['embed tokens/s']:,.0f} tokens/s", "",
        *rates(found),
        "| load | figure | value | bar |", "|---|---|---:|---|",
    ]
    figures = (figure for figure in FIGURES if figure[2] in found)
    lines += [f"| {load} | {what} | {text.format_map(found)} | {bar} |" for load, what, _, text, bar in figures]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target/release/sconce")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=LOADS, default=LOADS, metavar="LOAD")
    parser.add_argument("--no-peer", action="store_true", help="without the baseline")
    parser.add_argument("--no-library", action="store_true", help="without the call of the library, which cargo has to build")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        found = bench.measure()
    text = page(args, bench, found, load_average)
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
