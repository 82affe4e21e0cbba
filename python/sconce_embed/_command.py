"""The command sconce: its path, and runs of it."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_NAME = "sconce.exe" if os.name == "nt" else "sconce"
_ERROR = "sconce: error: "
# How wrong usage of the command line begins; its values and a tip follow.
_WRONG_USAGE = "error: "
# An option, and in capitals what stands for its value.
_OPTION = re.compile(r"'?(?<![\w-])--([a-z]+(?:-[a-z]+)*)(?: <[^>]*>| ([A-Z]+)\b)?'?")
# A remedy at the end of an error that no argument of Python is.
_COMMAND_ONLY = re.compile(r",? or (?:pass )?--(?:texts|tokenizer|random-weights)\b[^,;]*$")


class SconceError(Exception):
    """What sconce cannot do. The message is its error: one sentence."""


def find_command() -> str:
    """The path of the command sconce: SCONCE_COMMAND, the one that was installed with this package, or the first on PATH.

    Raises SconceError if there is none.
    """
    chosen = os.environ.get("SCONCE_COMMAND")
    if chosen:
        return chosen
    try:
        files = importlib.metadata.files("sconce-embed") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [pathlib.Path(str(file.locate())) for file in files if file.name == _NAME]
    # Where pip install --target puts it.
    paths.append(pathlib.Path(__file__).parents[1] / "bin" / _NAME)
    found = next((str(path.resolve()) for path in paths if path.is_file()), None) or shutil.which("sconce")
    if found is None:
        raise SconceError("the command sconce is neither beside the package sconce_embed nor on PATH; install sconce-embed again")
    return found


def run_command(arguments: Sequence[str]) -> int:
    """Runs sconce with command-line arguments, in place of this process where the system can do that, and returns its exit code."""
    command = [find_command(), *arguments]
    if os.name == "nt":
        return subprocess.call(command)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)


def start(command: Sequence[str], stdout: int, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A process of sconce with a pipe to its standard input and one from its standard error.

    Ctrl-C in a terminal is for Python alone, which decides what becomes of the process.
    """
    pipe = subprocess.PIPE
    flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    try:
        return subprocess.Popen(
            command, stdin=pipe, stdout=stdout, stderr=pipe, env=env, start_new_session=True, creationflags=flags
        )
    except OSError as error:
        raise SconceError(f"cannot start {command[0]} ({error.strerror}); install sconce-embed again") from error


def output_of(command: Sequence[str]) -> bytes:
    """What sconce writes to standard output.

    Raises SconceError with the error of sconce.
    """
    with start(command, stdout=subprocess.PIPE) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise failure(process.returncode, errors.decode(errors="replace").splitlines())
    return output


def failure(code: int, lines: Sequence[str]) -> SconceError:
    """Why a process has ended, by its exit code and the lines of its standard error."""
    errors = [line[len(_ERROR) :] for line in lines if line.startswith(_ERROR)]
    if errors:
        return SconceError(_arguments(errors[-1]))
    if code < 0:
        return SconceError(f"sconce was killed by {signal.Signals(-code).name}; call again to start it again")
    for i, line in enumerate(lines):
        if line.startswith(_WRONG_USAGE):
            values = [line.strip() for line in lines[i + 1 : i + 2] if line.startswith("  [")]
            return SconceError(_arguments(" ".join([line[len(_WRONG_USAGE) :], *values])))
    return SconceError("; ".join(lines) or f"sconce has ended with exit code {code} and without an error")


def _arguments(message: str) -> str:
    """A message that names arguments of Python in place of options of the command line, but leaves commands in backticks alone."""
    parts = re.split("(`sconce [^`]*`)", _COMMAND_ONLY.sub("", message))
    return "".join(part if part.startswith("`sconce ") else _OPTION.sub(_argument, part) for part in parts)


def _argument(option: re.Match[str]) -> str:
    """An option as an argument, with what stands for its value."""
    return option[1].replace("-", "_") + (f"={option[2]}" if option[2] else "")
