"""The page of serve.py."""

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

from serve_loads import COMMON, LIMITS, MAX_MEMORY
from serve_peers import PEERS

# What is printed of each load: what it is, the figure that it needs, its text, and the bar.
FIGURES = [
    ("single", "the same call of the library, p50 and p99", "library p50", "{library p50:.2f}, {library p99:.2f} ms", ""),
    ("single", "p50 − that of the library", "single over", "{single over:+.2f} ms", "≤ 0.4 ms"),
    ("single", "p99 / p50", "single tail", "{single tail:.2f}", "≤ 2"),
    ("S", "texts/s / those of the best baseline", "S best", "{S best:.2f}", "≥ 1.5"),
    ("S", "texts/s / those of `sconce embed`", "S embed", "{S embed:.2f}", "≥ 0.85"),
    ("B", "texts/s / those of the best baseline", "B best", "{B best:.2f}", "≥ 1.2"),
    ("B", "texts/s / those of `sconce embed`", "B embed", "{B embed:.2f}", "≥ 0.95"),
    ("R", "documents/s / those of the best baseline", "R best", "{R best:.2f}", "≥ 1.3"),
    *(
        (f"L, {limit:,} tokens", what, f"L {limit} rate", text.replace("L ", f"L {limit} "), bar)
        for limit in LIMITS
        for what, text, bar in [
            ("p50 and p99 of texts of 18 tokens", "{L short p50:.1f}, {L short p99:.1f} ms", "p99 ≤ 100 ms"),
            (f"p99 of texts of {limit:,} tokens", "{L long p99:,.0f} ms", ""),
            ("answered / arrived per second", "{L rate:.3f}", "≥ 0.98"),
            ("capacity / texts/s of `sconce embed`", "{L / embed:.2f}", ""),
        ]
    ),
    ("X", "p50 and p99 of texts of 18 tokens", "X share", "{X p50:.1f}, {X p99:.1f} ms", "p99 ≤ 100 ms"),
    ("X", "texts/s of the other client, beside and alone", "X share", "{X bulk:,.0f}, {X bulk alone:,.0f}", ""),
    ("X", "of 70 % of what it gets alone", "X share", "{X share:.2f}", "≥ 0.9"),
    ("overload", "answered / rate of S before and after", "overload MB", "{overload goodput:.2f}", "≥ 0.95"),
    ("overload", "p99 of answers", "overload MB", "{overload p99:,.0f} ms", ""),
    ("overload", "refused with 429, p99", "overload MB", "{overload refused:.0%}, {overload refused p99:.1f} ms", "≤ 50 ms"),
    ("overload", "other statuses, broken connections", "overload MB", "{overload other:.0f}", "0"),
    ("overload", "p99 of /health", "overload MB", "{overload health p99:.1f} ms", "≤ 25 ms"),
    ("overload", "resident set before, peak", "overload MB", "{overload MB before:.0f}, {overload MB:.0f} MB", f"≤ {MAX_MEMORY[1]:,} MB"),
    *(
        (f"leave, {connections} connections", what, f"leave {connections} {key}", text.replace("leave ", f"leave {connections} "), bar)
        for connections in (64, 256)
        for what, key, text, bar in [
            ("requests left, texts taken from the queue", "left", "{leave left:.0f}, {leave cancelled:.0f}", ""),
            ("share of their tokens that was computed after that", "share", "{leave share:.1%}", "≤ 10 %"),
            ("share of their tokens that was computed, before or after that", "at most", "{leave at most:.1%}", ""),
        ]
    ),
    ("start", "start to ready, `sconce embed hello`", "start over", "{start serve:.0f}, {start embed:.0f} ms", ""),
    ("start", "difference", "start over", "{start over:+.0f} ms", "≤ 50 ms + warm-up of 250 ms"),
    ("soak", "resident set at minute 3, at the end", "soak growth", "{soak MB first:.1f}, {soak MB last:.1f} MB", ""),
    ("soak", "growth", "soak growth", "{soak growth:+.2%}", "≤ 1 %"),
    ("soak", "errors", "soak growth", "{soak errors:.0f}", "0"),
    ("soak", "different vectors of a text, answers", "soak growth", "{soak vectors:.0f}, {soak probes:,.0f}", "1"),
]


def machine():
    """What the figures were taken on."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    name = re.search(r"^model name\s*: (.*)$", first, re.MULTILINE)
    return f"{name.group(1) if name else platform.machine()}, {os.cpu_count()} cores"


def best(found, load):
    """Texts per second of the best baseline, or None."""
    return max((found[f"{name} {load} texts/s"] for name in PEERS if f"{name} {load} texts/s" in found), default=None)


def derive(found):
    """Adds the figures that compare others."""
    if "sconce single p50" in found:
        found["single tail"] = found["sconce single p99"] / found["sconce single p50"]
        if "library p50" in found:
            found["single over"] = found["sconce single p50"] - found["library p50"]
    for load in COMMON:
        rate, baseline = found.get(f"sconce {load} texts/s"), best(found, load)
        if rate and baseline:
            found[f"{load} best"] = rate / baseline
        if rate and load in ("S", "B"):
            found[f"{load} embed"] = rate / found["embed texts/s"]


def rates(found):
    """The table of the loads that the baselines get, too."""
    header = ["| load | server | texts/s, of R documents/s | p50 ms | p99 ms | CPU ms/text |", "|---|---|---:|---:|---:|---:|"]
    lines = []
    titles = {"sconce": "sconce serve"} | {name: peer.title for name, peer in PEERS.items()}
    for load in COMMON:
        for name, title in titles.items():
            if f"{name} {load} texts/s" not in found:
                continue
            rate, p50, p99, cpu = (found[f"{name} {load} {figure}"] for figure in ("texts/s", "p50", "p99", "cpu"))
            lines.append(f"| {load} | {title} | {rate:,.0f} | {p50:,.2f} | {p99:,.2f} | {cpu:.2f} |")
    return [*header, *lines, ""] if lines else []


def page(args, bench, found, missing, load_average):
    """The page of these figures; `missing` has the reason of each baseline that was not measured."""
    version = subprocess.run([args.sconce, "--version"], check=True, capture_output=True, text=True).stdout
    derive(found)
    embed = found["embed texts/s"]
    lines = [
        "# `sconce serve` under load", "",
        "Written by `scripts/bench/serve.py`, which says what is measured.", "",
        f"- {datetime.datetime.now():%Y-%m-%d %H:%M}, load average {load_average:.1f} at the start",
        f"- {machine()}; {', '.join(version.splitlines()[:2])}; all-MiniLM-L6-v2, f32",
        f"- median of {args.rounds} rounds of {args.seconds:g} s per load; texts of {bench.tokens_per_text:.1f} tokens on average",
        f"- the generator, alone: {found['generator']:,.0f} requests/s to /health/live",
        f"- `sconce embed` with the same texts: {embed:,.0f} texts/s, {embed * bench.tokens_per_text:,.0f} tokens/s",
        *(f"- {PEERS[name].title}: not measured: {reason}" for name, reason in missing.items()), "",
        *rates(found),
        "| load | figure | value | bar |", "|---|---|---:|---|",
    ]
    figures = (figure for figure in FIGURES if figure[2] in found)
    lines += [f"| {load} | {what} | {text.format_map(found)} | {bar} |" for load, what, _, text, bar in figures]
    if "soak rounds" in found:
        lines += ["", f"soak: {args.soak_minutes:g} minutes, {found['soak rounds']:.0f} times all loads; the resident set after each, in MB: {found['soak MB']}."]
    return "\n".join(lines) + "\n"
