#!/usr/bin/env python3
"""Runs each script of examples/ over 100,000 texts with a tiny model, kills a worker in the middle, and checks the rows.

    python scripts/check/engines.py [--sconce target/release/sconce] [--rows 100000] [--only NAME …] [--page docs/engines.md]

The engines are imported by the Python that runs this script; scripts/check/engines.sh installs them. Each engine runs with two workers
of one thread. When a sconce has written a third of what one of two workers writes, its worker (its parent process) is killed with SIGKILL; in
the runs "child killed", the sconce itself is. Afterwards each id has to be there once, with the bits that one `sconce embed` over
all texts gives, and the number of threads of every sconce must have been that of the engine's CPUs per task. --page writes the
results between the marks of a page. Exits with 1 if a check fails.
"""

import argparse
import importlib.metadata
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MODEL = ROOT / "tests" / "fixtures" / "bert-tiny"
FILES = 16
WORDS = "a lamp in the window burns all night and left on for someone light key door stairs rain".split()
# Words of a text.
LENGTHS = (1, 3)


def commands(source, output):
    """The command line of each run: (name, package, what is killed, arguments)."""
    python, model = sys.executable, ["--model", MODEL]
    spark = [pathlib.Path(python).parent / "spark-submit", "--master", "local[2,4]"]
    spark += ["--conf", "spark.sql.files.maxPartitionBytes=1m", "--conf", "spark.sql.files.openCostInBytes=512k"]
    rows = [
        ("Ray Data", "ray", [python, EXAMPLES / "ray_data.py", source, output, *model, "--actors", "1"]),
        ("Spark", "pyspark", [*spark, EXAMPLES / "spark.py", source, output, MODEL]),
        ("Daft", "daft", [python, EXAMPLES / "daft_class.py", source, output, *model]),
        ("Dask", "dask", [python, EXAMPLES / "dask_frame.py", source, output, *model]),
        ("xargs", None, [EXAMPLES / "shards.sh", source, output / "all.parquet", "8", "2", *model]),
    ]
    return {name: (package, [str(part) for part in command]) for name, package, command in rows}


def make_input(folder, rows):
    """Parquet files of ids and texts."""
    drawn = random.Random(0)
    folder.mkdir()
    for file in range(FILES):
        ids = range(file * rows // FILES, (file + 1) * rows // FILES)
        texts = [" ".join(drawn.choices(WORDS, k=drawn.randint(*LENGTHS))) for _ in ids]
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": texts})
        pq.write_table(table, folder / f"{file:02}.parquet", row_group_size=2048)


def embed_at_once(sconce, source, output):
    """The bits of the vectors by id."""
    command = [sconce, "embed", "--quiet", "-m", MODEL, "-i", *sorted(source.iterdir()), "-o", output]
    subprocess.run(command, check=True)
    return [bits(vector) for vector in vectors_of(pq.read_table(output, columns=["embedding"]))]


def vectors_of(table):
    """The vectors of a table as float32 numpy arrays."""
    column = table["embedding"].combine_chunks().cast(pa.list_(pa.float32()))
    return [vector.values.to_numpy() for vector in column]


def bits(vector):
    return vector.tobytes()


def children(sconce):
    """The process ids of the running copies of sconce."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "exe") == str(sconce):
                found.append(int(process.name))
        except OSError:
            pass
    return found


def written(pid):
    """The bytes that a running `sconce embed` or `sconce serve` has written, and the number of threads that it was given; otherwise 0."""
    folder = pathlib.Path("/proc") / str(pid)
    try:
        sizes = re.search(r"wchar: (\d+)", (folder / "io").read_text())
        line = (folder / "cmdline").read_text().replace("\0", " ")
        threads = re.search(r"--threads[= ](\d+)", line)
        return (int(sizes[1]), threads and int(threads[1])) if " embed " in line or " serve " in line else (0, None)
    except (OSError, TypeError):
        return 0, None


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


class Run:
    """A run of an engine, in which a process is killed."""

    def __init__(self, command, environment, sconce, log):
        self.command, self.environment, self.sconce, self.log = command, environment, sconce, log
        self.threads, self.killed, self.attempts = set(), None, 0

    def go(self, kill_child, threshold):
        """Runs to the end and returns the seconds. A command that fails after the kill runs once more, as a scheduler would do."""
        start = time.monotonic()
        with self.log.open("w") as log:
            for self.attempts in (1, 2):
                process = subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
                while process.poll() is None:
                    self.watch(process.pid, kill_child, threshold)
                    time.sleep(0.01)
                if process.returncode == 0 or self.killed is None:
                    break
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {self.log.read_text()[-3000:]}")
        return time.monotonic() - start

    def watch(self, driver, kill_child, threshold):
        for pid in children(self.sconce):
            size, threads = written(pid)
            if size == 0:
                continue
            self.threads.add(threads)
            if self.killed is None and size > threshold:
                worker = pid if kill_child else parent(pid)
                # Where the engine has no process of its own for a worker, sconce is the worker.
                self.killed = "sconce" if worker in (pid, driver) else "worker"
                os.kill(pid if worker == driver else worker, signal.SIGKILL)


def check_rows(output, expected):
    """Compares the rows of the Parquet files with the vectors by id. Returns a sentence on what is wrong."""
    files = sorted(output.rglob("*.parquet"))
    tables = [pq.read_table(file) for file in files]
    found = {}
    for table in tables:
        key = "id" if "id" in table.schema.names else "index"
        for number, vector in zip(table[key].to_pylist(), vectors_of(table)):
            if number in found:
                return f"row {number} is there twice"
            found[number] = bits(vector)
    if len(found) != len(expected):
        return f"{len(expected) - len(found)} rows are lost"
    different = sum(found[number] != vector for number, vector in enumerate(expected))
    return f"{different} vectors differ" if different else None


def check(name, kill_child, work, sconce, expected, size):
    """Runs an engine and returns a row of the table, and whether all is right."""
    output = work / "output"
    shutil.rmtree(output, ignore_errors=True)
    if name == "xargs":
        output.mkdir()
    package, command = commands(work / "input", output)[name]
    environment = dict(os.environ, SCONCE_COMMAND=str(sconce), PATH=f"{sconce.parent}:{os.environ['PATH']}")
    environment["PYTHONPATH"] = f"{ROOT / 'python'}:{environment.get('PYTHONPATH', '')}"
    environment.update(PYSPARK_PYTHON=sys.executable, RAY_DATA_DISABLE_PROGRESS_BARS="1")
    run = Run(command, environment, sconce, work / "log")
    # Vectors of all rows, over two workers and FILES files or eight shards.
    seconds = run.go(kill_child, size // 3 // (8 if name in ("xargs", "Spark") else 2))
    wrong = check_rows(output, expected)
    if wrong is None and run.killed is None:
        wrong = "nothing was killed"
    if wrong is None and run.threads != {1}:
        wrong = f"sconce had {run.threads} threads"
    version = importlib.metadata.version(package) if package else ""
    again = "the same command again" if run.attempts > 1 else "the engine"
    return f"| {name} {version} | {run.killed} | {again} | {wrong or len(expected)} | {seconds:.1f} s |", wrong is None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", default=ROOT / "target" / "release" / "sconce", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--page", type=pathlib.Path)
    args = parser.parse_args()
    lines = ["| engine | killed | went on by | rows with the right bits | time |", "|---|---|---|---:|---:|"]
    right = True
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name).resolve()
        # A copy, by whose path its processes are found.
        (work / "bin").mkdir()
        sconce = pathlib.Path(shutil.copy(args.sconce, work / "bin" / "sconce"))
        make_input(work / "input", args.rows)
        expected = embed_at_once(sconce, work / "input", work / "expected.parquet")
        size = sum(map(len, expected))
        for engine in args.only or commands(work, work):
            # The worker of xargs is sconce.
            for kill_child in (False, True) if engine != "xargs" else (True,):
                line, passed = check(engine, kill_child, work, sconce, expected, size)
                print(line, flush=True)
                right &= passed
                lines.append(line)
    if args.page and right:
        page = args.page.read_text()
        marks = r"(<!-- engines -->\n).*(<!-- /engines -->)"
        args.page.write_text(re.sub(marks, lambda match: match[1] + "\n".join(lines) + "\n" + match[2], page, flags=re.S))
    sys.exit(not right)


if __name__ == "__main__":
    main()
