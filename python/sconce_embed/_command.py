"""The command sconce: its path, and a child process that turns record batches into record batches."""

import importlib.metadata
import io
import logging
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import threading

import pyarrow as pa

_NAME = "sconce.exe" if os.name == "nt" else "sconce"
_ERROR = "sconce: error: "
# How wrong usage of the command line begins.
_WRONG_USAGE = "error: "
_log = logging.getLogger("sconce_embed")


class SconceError(Exception):
    """sconce has ended with an error, or was killed. The message is its error: one sentence."""


def find_command():
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
    paths = [pathlib.Path(file.locate()) for file in files if file.name == _NAME]
    # Where pip install --target puts it.
    paths.append(pathlib.Path(__file__).parents[1] / "bin" / _NAME)
    found = next((str(path.resolve()) for path in paths if path.is_file()), None) or shutil.which("sconce")
    if found is None:
        raise SconceError("the command sconce is neither beside the package sconce_embed nor on PATH; install sconce-embed again")
    return found


def run_command(arguments):
    """Runs sconce with command-line arguments, in place of this process where the system can do that, and returns its exit code."""
    command = [find_command(), *arguments]
    if os.name == "nt":
        return subprocess.call(command)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)


class _Pipe(io.RawIOBase):
    """A pipe that waits in poll(), which a signal ends even if its handler asks for system calls to be restarted, as that of polars
    does: Ctrl-C would have no effect on a read until the child writes."""

    def __init__(self, file):
        self._file = file
        self._poll = select.poll()
        self._poll.register(file, select.POLLIN)

    def readable(self):
        return True

    def readinto(self, buffer):
        self._poll.poll()
        return self._file.readinto(buffer)


class Child:
    """A running sconce. It reads record batches of the column `text` and answers each with a batch of rows."""

    SCHEMA = pa.schema([("text", pa.large_string())])

    def __init__(self, arguments):
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise SconceError(f"cannot start {arguments[0]} ({error.strerror}); install sconce-embed again") from error
        self._errors = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._writer = self._reader = None
        self.rows_sent = 0

    @property
    def pid(self):
        """The process id."""
        return self._process.pid

    def _listen(self):
        """Collects errors and logs warnings, so that a full pipe does not stop the child."""
        for line in self._process.stderr:
            line = line.decode(errors="replace").rstrip()
            if line.startswith("sconce: warning: "):
                _log.warning(line[len("sconce: warning: ") :])
            else:
                self._errors.append(line)

    def exchange(self, batches):
        """The batches of rows for each of the batches, in order. Each batch must have texts."""
        if len(batches) == 1:
            # The child reads all of a batch before it answers, so that no thread has to write one batch while answers are read.
            self._send(batches)
            return self._receive_all(batches)
        sender = threading.Thread(target=self._send, args=(batches,), daemon=True)
        sender.start()
        try:
            return self._receive_all(batches)
        except BaseException:
            # The sender may wait for a child that nobody reads from any more, as after Ctrl-C.
            self._process.kill()
            raise
        finally:
            # It ends with the last batch, or with the child.
            sender.join()

    def _send(self, batches):
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._process.stdin, self.SCHEMA)
            for batch in batches:
                self._writer.write_batch(batch)
                self._process.stdin.flush()
        except (OSError, ValueError):
            # The child has ended: the reader finds out why.
            pass

    def _receive_all(self, batches):
        """The batches of rows for each of the batches that are sent."""
        first_row = self.rows_sent
        answers = [self._receive(first_row) for _ in batches]
        self.rows_sent += sum(batch.num_rows for batch in batches)
        return answers

    def _receive(self, first_row):
        """The rows of the next batch."""
        try:
            if self._reader is None:
                # Windows has no poll().
                pipe = self._process.stdout if os.name == "nt" else io.BufferedReader(_Pipe(self._process.stdout.raw))
                self._reader = pa.ipc.open_stream(pipe)
            return self._reader.read_next_batch()
        except (OSError, StopIteration, pa.ArrowInvalid) as error:
            raise self._failure(first_row) from error

    def _failure(self, first_row):
        """Why the child has ended."""
        if not self._has_ended():
            self._process.kill()
        code = self._process.wait()
        self._listener.join(timeout=5)
        errors = [line[len(_ERROR) :] for line in self._errors if line.startswith(_ERROR)]
        if errors:
            # Rows are counted from the first text of the child.
            def name(match):
                return f"texts[{int(match[1]) - 1 - first_row}]"

            return SconceError(re.sub(r"standard input row (\d+)", name, errors[-1]))
        if code < 0:
            return SconceError(f"sconce was killed by {signal.Signals(-code).name}; embed again to start it again")
        # The first line of wrong usage is its error; a tip and the usage follow.
        errors = [line[len(_WRONG_USAGE) :] for line in self._errors if line.startswith(_WRONG_USAGE)]
        if errors:
            return SconceError(f"{errors[0]}; options of Embedder() are those of sconce embed, with underscores")
        return SconceError("\n".join(self._errors) or f"sconce has ended with exit code {code} and without an error")

    def _has_ended(self):
        """Whether the child ends by itself, as it does after an error."""
        try:
            self._process.wait(timeout=5)
            return True
        except subprocess.TimeoutExpired:
            return False

    def close(self):
        """Ends the input and waits for the child to end."""
        try:
            if self._writer is not None:
                self._writer.close()
            self._process.stdin.close()
        except (OSError, ValueError):
            pass
        if self._has_ended():
            self._close_pipes()
        else:
            self.kill()

    def kill(self):
        """Ends the child at once."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self):
        self._listener.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            try:
                pipe.close()
            except OSError:
                # Bytes for a child that has ended.
                pass

    def forget(self):
        """In a process that was forked from the owner of the child: closes the copies of its pipes without writing to them."""
        null = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if not pipe.closed:
                os.dup2(null, pipe.fileno(), inheritable=False)
        os.close(null)
        # It is no child of this process: there is nothing to wait for.
        self._process.returncode = 0
