"""The loads of serve.py: each runs against a server and returns figures by their names."""

import base64
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from serve_load import LEFT, WARM_UP, Generator
from serve_peers import INFINITY, TEI, Environments, Server, ask

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts/bench"
FOLDER = ROOT / "target/bench-serve"
# The loads that the baselines get, too.
COMMON = ["single", "S", "B", "R"]
LIMITS = (512, 8192)
MAX_MEMORY = ("1GB", 1000)
DOCUMENTS, DOCUMENT_TOKENS = 50, 128
START_RUNS = 10
SOAK_MINUTE = 3


class Bench:
    def __init__(self, args, folder):
        self.args, self.seconds, self.folder = args, args.seconds, folder
        self.model = subprocess.run([ROOT / "scripts/fetch_model.sh"], check=True, capture_output=True, text=True).stdout.strip()
        self.environments = Environments(FOLDER, args.python)
        self.made = self.environments.models(self.model)
        make = [args.python, HERE / "bench_texts.py", folder, "--model", self.model]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        self.load = Generator(folder, FOLDER)
        self.file = folder / "short.txt"
        self.texts = self.file.read_text().splitlines()
        passages = folder.joinpath("long.txt").read_text().splitlines()
        self.prepare_common(passages)
        self.mixed = {limit: self.prepare_mixed(passages, limit) for limit in LIMITS}

    def prepare_common(self, passages):
        """Bodies of the loads of COMMON, in the shape of each server."""
        texts = self.texts
        groups = lambda n: [[texts[(at + i) % len(texts)] for i in range(n)] for at in range(0, 32 * n, n)]
        documents = self.cut(passages, DOCUMENT_TOKENS)
        queries = [(texts[at], [documents[(at + i) % len(documents)] for i in range(DOCUMENTS)]) for at in range(32)]
        self.bodies = {}
        for shape in (TEI, INFINITY):
            one = self.load.bodies(f"{shape.name}-one", map(shape.embed, texts))
            self.bodies[shape.name] = {
                "single": one,
                "S": one,
                "B": self.load.bodies(f"{shape.name}-groups", map(shape.embed, groups(32))),
                "R": self.load.bodies(f"{shape.name}-rerank", [shape.rerank(*query) for query in queries]),
            }
        self.one = self.bodies[TEI.name]["S"]
        self.bulk = self.load.bodies("bulk", map(TEI.embed, groups(512)))

    def cut(self, passages, tokens):
        """Passages truncated to so many tokens, without special tokens."""
        program = (
            "import sys, json, tokenizers\n"
            "tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])\n"
            "tokenizer.no_padding()\n"
            "tokenizer.enable_truncation(int(sys.argv[2]))\n"
            "passages = json.load(sys.stdin)\n"
            "encodings = tokenizer.encode_batch(passages, add_special_tokens=False)\n"
            "json.dump([text[:found.offsets[-1][1]] for text, found in zip(passages, encodings)], sys.stdout)\n"
        )
        command = [self.args.python, "-c", program, Path(self.model, "tokenizer.json"), str(tokens)]
        found = subprocess.run(command, input=json.dumps(passages), check=True, capture_output=True, text=True)
        return json.loads(found.stdout)

    def prepare_mixed(self, passages, limit):
        """A file of texts of which one of twenty has more than `limit` tokens, and their bodies."""
        # Passages have more than 256 tokens.
        count = limit // 256
        long = [" ".join(passages[(at + i) % len(passages)] for i in range(count)) for at in range(0, len(passages), count)]
        texts = self.texts if limit == 512 else self.texts[:200]
        mixed = [long[index // 20 % len(long)] if self.is_long(index) else text for index, text in enumerate(texts)]
        path = self.folder / f"mixed-{limit}.txt"
        path.write_text("".join(text + "\n" for text in mixed))
        return path, self.load.bodies(f"mixed-{limit}", map(TEI.embed, mixed))

    @staticmethod
    def is_long(body):
        """Whether a body of L has a long text: one of twenty."""
        return body % 20 == 19

    def serve(self, *options, models=None):
        names = [f"--model={model}" for model in models or [self.model]]
        return Server([self.args.sconce, "serve", *names, "--port", "PORT", "--quiet", *options])

    def serve_both(self, *options):
        """A server with the embedder and the cross-encoder."""
        return self.serve(*options, models=[self.model, self.made / "reranker"])

    def embed(self, file=None, model=None, limit=None):
        """The stats of `sconce embed`, with its texts per second, without loading."""
        stats = self.folder / "stats.json"
        files = ["--input", file or self.file, "--output", self.folder / "out.npy", "--restart", "--stats", stats]
        options = ["--max-length", str(limit)] if limit else []
        command = [self.args.sconce, "embed", "--quiet", "--model", model or self.model, *files, *options]
        subprocess.run(command, check=True)
        found = json.loads(stats.read_text())
        return found | {"rate": found["texts"] / (found["seconds"] - found["seconds_loading"])}

    def embed_short(self):
        """Texts per second of `sconce embed` with the texts of S."""
        found = self.embed()
        self.tokens_per_text = found["tokens"] / found["texts"]
        return found["rate"]

    def library(self):
        """Milliseconds of the same call of the library."""
        command = ["cargo", "bench", "--quiet", "--locked", "--bench", "latency", "--"]
        command += [self.file, str(self.seconds), self.model]
        variables = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target")}
        found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=variables).stdout
        p50, p99 = found.split()[-2:]
        return {"library p50": int(p50) / 1000, "library p99": int(p99) / 1000}

    def common(self, load, server, name, shape=TEI):
        """A load that the baselines get, too."""
        connections, texts = {"single": (1, 1), "S": (64, 1), "B": (8, 32), "R": (4, DOCUMENTS)}[load]
        path = shape.rerank_path if load == "R" else shape.embed_path
        bodies = self.bodies[shape.name][load]
        self.load.run(server.port, path, bodies, 1, 0.1 - WARM_UP)
        before = server.cpu_seconds()
        result = self.load.run(server.port, path, bodies, connections, self.seconds)
        # Few requests of R are answered in this time, so none is left out.
        rate, since = (result.drained(), 0) if load == "R" else (result.rate(), WARM_UP)
        return {
            f"{name} {load} texts/s": texts * rate,
            f"{name} {load} cpu": 1000 * (server.cpu_seconds() - before) / (texts * len(result.samples)),
            f"{name} {load} p50": result.percentile(50, since=since),
            f"{name} {load} p99": result.percentile(99, since=since),
        }

    def long_texts(self, server, limit):
        """L. Connections and seconds are such that there are enough short texts, and the last long ones do not take minutes."""
        _, bodies = self.mixed[limit]
        connections, seconds = (64, self.seconds) if limit == 512 else (16, 3 * self.seconds)
        capacity = self.load.run(server.port, TEI.embed_path, bodies, connections, seconds).drained()
        result = self.load.run(server.port, TEI.embed_path, bodies, 256, seconds, 0.7 * capacity)
        short = [sample for sample in result.answered() if not self.is_long(sample.body)]
        long = [sample for sample in result.answered() if self.is_long(sample.body)]
        return {
            f"L {limit} capacity": capacity,
            f"L {limit} short p50": result.percentile(50, short),
            f"L {limit} short p99": result.percentile(99, short),
            f"L {limit} long p99": result.percentile(99, long),
            f"L {limit} rate": result.rate() / result.arrivals(),
        }

    def long_loads(self):
        """L with both limits, each beside `sconce embed` with the same texts."""
        found = {}
        for limit in LIMITS:
            model = self.model if limit == 512 else self.made / "long"
            before = self.embed(self.mixed[limit][0], model, limit)["rate"]
            with self.serve("--max-length", limit, models=[model]) as server:
                found |= self.long_texts(server, limit)
            after = self.embed(self.mixed[limit][0], model, limit)["rate"]
            found[f"L {limit} / embed"] = found[f"L {limit} capacity"] / statistics.mean([before, after])
        return found

    def capacity(self, server):
        """The rate of S, measured where it is needed, as the machine may be slower by then."""
        return self.load.run(server.port, TEI.embed_path, self.one, 64, self.seconds).rate()

    def encoded(self, server):
        """Texts that are encoded per second while a load runs that has just been started: answers with 512 texts are too rare to count."""
        time.sleep(WARM_UP)
        before = server.counter("batch_texts_total")
        time.sleep(self.seconds)
        return (server.counter("batch_texts_total") - before) / self.seconds

    def beside_bulk(self, server):
        capacity = self.capacity(server)
        bulk = (server.port, TEI.embed_path, self.bulk, 1, self.seconds)
        loads = [self.load.start(*bulk)]
        alone = self.encoded(server)
        self.load.finish(loads[0])
        loads = [
            self.load.start(*bulk),
            self.load.start(server.port, TEI.embed_path, self.one, 256, self.seconds, 0.3 * capacity),
        ]
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
        before = self.capacity(server)
        resident, peak, done = server.resident_mb(), [0.0], threading.Event()

        def watch():
            while not done.wait(0.1):
                peak[0] = max(peak[0], server.resident_mb())

        watcher = threading.Thread(target=watch)
        watcher.start()
        health = self.load.start(server.port, "/health", "-", 8, self.seconds, 20)
        result = self.load.run(server.port, TEI.embed_path, self.one, 1024, self.seconds, 2 * before, allowed=range(600))
        alive = self.load.finish(health)
        done.set()
        watcher.join()
        capacity = statistics.mean([before, self.capacity(server)])
        refused = [sample for sample in result.samples if sample.status == 429]
        others = sum(sample.status not in (200, 429) for sample in result.samples)
        self.load.unexpected += others
        return {
            "overload goodput": result.rate() / capacity,
            "overload p99": result.percentile(99),
            "overload refused": len(refused) / len(result.samples),
            "overload refused p99": result.percentile(99, refused),
            "overload other": others,
            "overload health p99": alive.percentile(99),
            "overload MB before": resident,
            "overload MB": peak[0],
        }

    def leave(self, server, connections):
        names = ("batch_tokens_total", "tokens_total", "cancelled_texts_total", "unclaimed_tokens_total")
        before = [server.counter(name) for name in names]
        path = TEI.embed_path
        result = self.load.run(server.port, path, self.one, connections, self.seconds, leave_ms=50, allowed=(200, LEFT))
        time.sleep(1)
        computed, answered, cancelled, unclaimed = (
            None if old is None else server.counter(name) - old for name, old in zip(names, before)
        )
        left = sum(sample.status == LEFT for sample in result.samples)
        tokens = max(left * self.tokens_per_text, 1)
        found = {f"leave {connections} left": left, f"leave {connections} cancelled": cancelled}
        if unclaimed is None:
            return found | {f"leave {connections} at most": (computed - answered) / tokens}
        return found | {f"leave {connections} share": unclaimed / tokens}

    def start(self):
        """Milliseconds from the start of a process to its answer, in turn."""
        serve, embed = [], []
        for _ in range(START_RUNS):
            with self.serve() as server:
                serve.append(1000 * server.seconds_to_ready)
            start = time.perf_counter()
            command = [self.args.sconce, "embed", "--quiet", "--model", self.model, "hello"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            embed.append(1000 * (time.perf_counter() - start))
        serve, embed = statistics.median(serve), statistics.median(embed)
        return {"start serve": serve, "start embed": embed, "start over": serve - embed}

    def soak(self):
        """All loads in turn, and a probe all along."""
        start, minutes = time.monotonic(), self.args.soak_minutes
        end, first_at = start + 60 * minutes, start + 60 * min(SOAK_MINUTE, minutes / 10)
        self.load.keep_going, self.load.unexpected = True, 0
        first, resident = None, []
        with self.serve_both("--max-length", 512) as server, Probe(server.port) as probe:
            while time.monotonic() < end:
                for load in COMMON:
                    self.common(load, server, "soak")
                self.long_texts(server, 512)
                self.beside_bulk(server)
                self.overload(server)
                self.leave(server, 64)
                resident.append(server.resident_mb())
                if first is None and time.monotonic() >= first_at:
                    first = resident[-1]
        self.load.keep_going = False
        return {
            "soak rounds": len(resident),
            "soak MB": ", ".join(f"{mb:.0f}" for mb in resident),
            "soak MB first": first or resident[-1],
            "soak MB last": resident[-1],
            "soak growth": resident[-1] / (first or resident[-1]) - 1,
            "soak errors": self.load.unexpected + probe.errors,
            "soak probes": probe.answers,
            "soak vectors": len(probe.vectors),
        }


class Probe(threading.Thread):
    """Asks for the bits of the vector of one text twice a second, until the end of a `with` block. Refusals are not errors."""

    BODY = json.dumps({"input": "The same text has the same bits.", "encoding_format": "base64"}).encode()

    def __init__(self, port):
        super().__init__()
        self.port, self.done = port, threading.Event()
        self.vectors, self.answers, self.errors = set(), 0, 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()

    def run(self):
        while not self.done.wait(0.5):
            try:
                answer = json.loads(ask(self.port, "/v1/embeddings", self.BODY))
                self.vectors.add(base64.b64decode(answer["data"][0]["embedding"]))
                self.answers += 1
            except (OSError, ValueError, KeyError) as error:
                if getattr(error, "code", None) != 429:
                    print(f"serve: the probe fails: {error!r}", file=sys.stderr)
                    self.errors += 1
