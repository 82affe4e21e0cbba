#!/usr/bin/env python3
"""schemathesis asks `sconce serve` what its /openapi.json describes: no status of 5xx, and no answer outside the document.

    scripts/check/openapi.py [--sconce target/release/sconce] [--examples 40] [--seed 1]

Starts two servers on free ports with models of tests/fixtures: one with a model of each kind, and one with a classifier alone, whose task
is that of the routes / and /invocations. The examples of the document have to be answered with 200. schemathesis is installed below
target/openapi. Prints what it prints, and exits with 1 if something is wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from clients import CLASSIFIER, CROSS_ENCODER, HERE, ROOT, SPARSE, Server

FIXTURES = ROOT / "tests/fixtures"
TOKEN_HEADS = FIXTURES / "token-heads"
MODELS = [
    FIXTURES / "bert-tiny",
    CROSS_ENCODER,
    CLASSIFIER,
    SPARSE,
    TOKEN_HEADS / "ner-word-piece",
    TOKEN_HEADS / "qa-word-piece",
    f"filler={FIXTURES}/masked-lm/bert",
]
FOLDER = ROOT / "target/openapi"
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
]


def installed():
    """The path of schemathesis, which is installed if it is not there."""
    requirements = HERE / "requirements-openapi.txt"
    stamp = FOLDER / "installed"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        pip = [FOLDER / "bin/pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", requirements], check=True)
        stamp.write_text(requirements.read_text())
    return FOLDER / "bin/schemathesis"


def ask(url, body=None):
    """The status of an answer, and its body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def examples(document, schema):
    """The examples of a schema, or those of the schemas that it refers to."""
    schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    found = schema.get("examples", [])
    return found or [example for other in schema["anyOf"] for example in examples(document, other)]


def check_examples(url):
    """Fails unless the examples of each route are answered, but for those of / that are for models of another kind."""
    document = json.loads(ask(f"{url}/openapi.json")[1])
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if body := operation.get("requestBody"):
                found = examples(document, body["content"]["application/json"]["schema"])
                answers = [ask(url + path, example) for example in found]
            else:
                answers = [ask(url + path.replace("{id}", "bert-tiny"))]
            needed = 1 if path in ("/", "/invocations") else len(answers)
            wrong = [body for status, body in answers if status != 200]
            assert len(answers) - len(wrong) >= needed, f"{path}: an example of the document is refused: {wrong}"


def fuzz(schemathesis, url, arguments, *options):
    command = [schemathesis, "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS)]
    command += ["--max-examples", str(arguments.examples), "--seed", str(arguments.seed)]
    # The links between operations that it finds are none: there is no state.
    command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color", *options]
    return subprocess.run(command, cwd=FOLDER).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sconce", default=ROOT / "target/release/sconce", type=Path)
    parser.add_argument("--examples", default=40, type=int, help="Maximum requests for each route and kind of data")
    parser.add_argument("--seed", default=1, type=int)
    arguments = parser.parse_args()
    os.environ["NO_PROXY"] = "127.0.0.1"
    schemathesis = installed()
    sconce = arguments.sconce.resolve()
    with Server(sconce, *MODELS) as server:
        check_examples(server.url)
        is_right = fuzz(schemathesis, server.url, arguments)
    roots = ["--include-path", "/", "--include-path", "/invocations"]
    with Server(sconce, CLASSIFIER) as server:
        is_right &= fuzz(schemathesis, server.url, arguments, *roots)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
