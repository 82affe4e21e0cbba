"""The servers of serve.py: `sconce serve`, and the baselines with their environments, routes and bodies."""

import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from serve_load import LoadError

HERE = Path(__file__).resolve().parent


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ask(port, path, body=None):
    """The answer to a GET, or to a POST of a JSON body."""
    address, headers = f"http://127.0.0.1:{port}{path}", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=60) as answer:
        return answer.read().decode()


def last_line(messages):
    """The last line of what a program printed, without directories of this machine."""
    return re.sub(r"(/[^\s/:]+)+/", "", (messages.strip().splitlines() or ["no message"])[-1])


class Server:
    """A process that listens on `port`, until the end of a `with` block."""

    def __init__(self, command, **options):
        self.port = free_port()
        self.command = [str(part).replace("PORT", str(self.port)) for part in command]
        self.options = options

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        start = time.perf_counter()
        with open(self.log.name, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, **self.options)
        while True:
            try:
                ask(self.port, "/health")
                self.seconds_to_ready = time.perf_counter() - start
                return self
            except OSError:
                elapsed = time.perf_counter() - start
                if self.process.poll() is not None or elapsed > 300:
                    self.__exit__()
                    raise LoadError(f"does not start: {last_line(Path(self.log.name).read_text())}") from None
                time.sleep(0.002 if elapsed < 2 else 0.1)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def resident_mb(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024 / 1e6

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def counter(self, name):
        """A counter of `sconce serve`, or None if it has none of this name."""
        found = re.search(rf"^sconce_{name} (\S+)$", ask(self.port, "/metrics"), re.MULTILINE)
        return float(found.group(1)) if found else None


@dataclass(frozen=True)
class Shape:
    """Routes of a server and the bodies that it wants."""

    name: str
    embed_path: str
    embed: Callable
    rerank: Callable
    rerank_path: str = "/rerank"


TEI = Shape(
    "tei",
    "/embed",
    lambda texts: {"inputs": texts},
    lambda query, documents: {"query": query, "texts": documents},
)
INFINITY = Shape(
    "infinity",
    "/embeddings",
    lambda texts: {"model": "embedder", "input": texts},
    lambda query, documents: {"model": "reranker", "query": query, "documents": documents},
)


@dataclass
class Peer:
    """A baseline: its command, and its environment."""

    title: str
    command: list
    environment: str
    shape: Shape = TEI
    variables: dict = field(default_factory=dict)


UVICORN = ["python", "-m", "uvicorn", "--port", "PORT", "--log-level", "warning"]
INFINITY_COMMAND = [
    "infinity_emb", "v2", "--host", "127.0.0.1", "--port", "PORT", "--device", "cpu", "--engine", "torch", "--log-level", "warning",
    "--model-id", "EMBEDDER", "--served-model-name", "embedder", "--model-id", "RERANKER", "--served-model-name", "reranker",
]
PEERS = {
    "sentence-transformers": Peer("sentence-transformers, FastAPI", [*UVICORN, "serve_peer:app"], "serve"),
    "onnxruntime": Peer("ONNX Runtime, FastAPI, batches", [*UVICORN, "serve_peer_onnx:app"], "serve"),
    "infinity": Peer(
        "infinity-emb, torch", INFINITY_COMMAND, "infinity", INFINITY, {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    ),
}


class Environments:
    """Virtual environments below `folder`, each of a file requirements-NAME.txt, made once."""

    def __init__(self, folder, python):
        self.folder, self.python = folder, python

    def path(self, name):
        """The directory of an environment. That of "serve" sees the packages of `python`, too."""
        environment, requirements = self.folder / f"venv-{name}", HERE / f"requirements-{name}.txt"
        complete = environment / "complete"
        if complete.exists() and complete.read_text() == requirements.read_text():
            return environment
        subprocess.run([self.python, "-m", "venv", "--clear", environment], check=True)
        if name == "serve":
            where = "import sysconfig; print(sysconfig.get_path('purelib'))"
            own, packages = (
                subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
                for python in (environment / "bin/python", self.python)
            )
            Path(own, "packages.pth").write_text(packages + "\n")
        pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        installed = subprocess.run(pip, capture_output=True, text=True)
        if installed.returncode:
            raise LoadError(f"cannot be installed: {last_line(installed.stderr)}")
        complete.write_text(requirements.read_text())
        return environment

    def models(self, model):
        """The directory of the models that serve_models.py makes of `model`."""
        made = self.folder / "models"
        command = [self.path("serve") / "bin/python", HERE / "serve_models.py", model, made]
        finished = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
        if finished.returncode:
            raise LoadError(f"serve_models.py fails: {last_line(finished.stderr)}")
        return made

    def start(self, peer, model, made):
        """The server of a baseline, with the embedder `model` and the reranker in `made`."""
        program, *arguments = peer.command
        names = {"EMBEDDER": model, "RERANKER": made / "reranker"}
        command = [self.path(peer.environment) / "bin" / program, *(names.get(argument, argument) for argument in arguments)]
        variables = {"SERVE_PEER_MODEL": model, "SERVE_PEER_MODELS": str(made), "HF_HUB_OFFLINE": "1", **peer.variables}
        return Server(command, cwd=HERE, env={**os.environ, **variables})
