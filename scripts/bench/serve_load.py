"""Requests of serve.py: the load generator load.rs, and what its samples say."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WARM_UP = 1.0
MIN_GENERATOR_RATE = 3000
LEFT = 0


class LoadError(Exception):
    """A load with other statuses than expected, or a server that does not start."""


@dataclass
class Sample:
    """A request: which body, seconds from the start to its arrival, latency in seconds, status (LEFT: the client left)."""

    body: int
    arrival: float
    latency: float
    status: int


@dataclass
class Result:
    """The samples of a load, with those of the warm-up."""

    samples: list
    seconds: float

    def answered(self):
        return [sample for sample in self.samples if sample.status == 200]

    def rate(self):
        """Answers per second after the warm-up."""
        until = WARM_UP + self.seconds
        return sum(WARM_UP <= s.arrival + s.latency <= until for s in self.answered()) / self.seconds

    def arrivals(self):
        """Requests per second after the warm-up."""
        return sum(sample.arrival >= WARM_UP for sample in self.samples) / self.seconds

    def drained(self):
        """Answers per second until the last one. It does not depend on the order of the answers: long requests that wait count."""
        answered = self.answered()
        return len(answered) / max(sample.arrival + sample.latency for sample in answered)

    def percentile(self, percent, chosen=None, since=WARM_UP):
        """A latency in milliseconds, of the answers with arrival after so many seconds."""
        chosen = self.answered() if chosen is None else chosen
        latencies = sorted(sample.latency for sample in chosen if sample.arrival >= since)
        return 1000 * latencies[(len(latencies) - 1) * percent // 100] if latencies else float("nan")


class Generator:
    def __init__(self, folder, build):
        self.program, self.folder = build / "load", folder
        self.keep_going, self.unexpected = False, 0
        source = HERE / "load.rs"
        if not self.program.exists() or self.program.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["rustc", "--edition", "2024", "-O", "-o", self.program, source], check=True)

    def bodies(self, name, bodies):
        """A file of bodies, one per request."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
        return path

    def start(self, port, path, bodies, connections, seconds, rate="-", leave_ms=None):
        command = [self.program, f"127.0.0.1:{port}", path, bodies, connections, WARM_UP + seconds, rate]
        command += [] if leave_ms is None else [leave_ms]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        return process, seconds

    def finish(self, started, allowed=(200,)):
        """The result of a load. Statuses that are not allowed are an error, or are only counted in `unexpected`, with `keep_going`."""
        process, seconds = started
        lines = process.communicate()[0].splitlines()
        if process.returncode:
            sys.exit(f"the load generator ends with {process.returncode}")
        rows = (line.split() for line in lines)
        samples = [Sample(int(body), int(at) / 1e6, int(latency) / 1e6, int(status)) for body, at, latency, status in rows]
        unexpected = [sample.status for sample in samples if sample.status not in allowed]
        self.unexpected += len(unexpected)
        if not samples or (unexpected and not self.keep_going):
            raise LoadError(f"{len(unexpected)} of {len(samples)} requests had the statuses {sorted(set(unexpected))}")
        return Result(samples, seconds)

    def run(self, *args, allowed=(200,), **options):
        return self.finish(self.start(*args, **options), allowed)

    def check(self, port):
        """The generator's own limit."""
        rate = self.run(port, "/health/live", "-", 16, 2).rate()
        if rate < MIN_GENERATOR_RATE:
            sys.exit(f"only {rate:,.0f} requests per second to /health/live, under {MIN_GENERATOR_RATE:,}: the generator is too slow here")
        return rate
