"""The Python package, over the sconce that SCONCE_COMMAND names and a fixture as model.

    PYTHONPATH=python SCONCE_COMMAND=target/release/sconce python3 -m unittest discover --start-directory tests/python
"""

import collections
import io
import os
import pathlib
import pickle
import signal
import subprocess
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import sconce_embed
from sconce_embed import Embedder, SconceError

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "tests" / "fixtures" / "bert-tiny"
TEXTS = [f"the lamp burns {i} " + "times " * (i % 11) for i in range(200)]


def of_command_line(texts, *options):
    """The vectors that `sconce embed` writes as npy."""
    command = [sconce_embed.find_command(), "embed", "--quiet", "-m", MODEL, "--output-format", "npy", *options]
    return np.load(io.BytesIO(subprocess.run([*command, *texts], check=True, capture_output=True).stdout))


class Vectors(unittest.TestCase):
    def assert_same_bits(self, found, expected):
        self.assertEqual(found.dtype, expected.dtype)
        self.assertEqual(found.shape, expected.shape)
        self.assertTrue(np.array_equal(found.view(np.uint8), expected.view(np.uint8)))

    def test_vectors_have_the_bits_of_the_command_line(self):
        with Embedder(MODEL) as embedder:
            vectors = embedder.embed(TEXTS)
            self.assertIsInstance(vectors, pa.FixedSizeListArray)
            expected = of_command_line(TEXTS)
            self.assert_same_bits(vectors.flatten().to_numpy().reshape(expected.shape), expected)
            matrix = embedder.embed(TEXTS, as_numpy=True)
            self.assert_same_bits(matrix, expected)
            matrix *= 2
            self.assertEqual(matrix[0, 0], 2 * expected[0, 0])

    def test_texts_of_many_batches_come_back_in_their_order(self):
        texts = TEXTS * 50
        with Embedder(MODEL) as embedder:
            vectors = embedder.embed(texts, as_numpy=True)
        self.assert_same_bits(vectors, np.tile(of_command_line(TEXTS), (50, 1)))

    def test_every_kind_of_column_is_accepted(self):
        chunks = pa.chunked_array([TEXTS[:3], TEXTS[3:20]])
        kinds = [
            TEXTS[:20],
            tuple(TEXTS[:20]),
            np.array(TEXTS[:20]),
            pa.array(TEXTS[:20]),
            pa.array(TEXTS[:20], pa.large_string()),
            pa.array(TEXTS[:20], pa.string_view()),
            pa.array(TEXTS[:20]).dictionary_encode(),
            pa.array(["left out", *TEXTS[:20]]).slice(1),
            chunks,
            pd.Series(TEXTS[:20]),
            pd.Series(TEXTS[:20], dtype=object),
            pd.Series(TEXTS[:20], dtype="category"),
            pl.Series(TEXTS[:20]),
        ]
        expected = of_command_line(TEXTS[:20])
        with Embedder(MODEL) as embedder:
            for texts in kinds:
                with self.subTest(kind=type(texts)):
                    self.assert_same_bits(embedder.embed(texts, as_numpy=True), expected)

    def test_options_are_those_of_the_command_line(self):
        expected = of_command_line(TEXTS[:5], "--dimensions", "8", "--normalize", "--prompt=- a: ")
        with Embedder(MODEL, dimensions=8, normalize=True, prompt="- a: ", max_length=None) as embedder:
            self.assert_same_bits(embedder.embed(TEXTS[:5], as_numpy=True), expected)

    def test_no_texts_give_no_vectors_of_the_right_width(self):
        with Embedder(MODEL) as embedder:
            width = of_command_line(["a"]).shape[1]
            self.assertEqual(embedder.embed([], as_numpy=True).shape, (0, width))

    def test_a_text_that_is_skipped_has_a_null(self):
        with Embedder(MODEL, on_long="skip", max_length=4) as embedder, self.assertLogs("sconce_embed", "WARNING"):
            vectors = embedder.embed(["a lamp", "a lamp in the window burns", "a wick"])
            self.assertEqual(vectors.is_null().to_pylist(), [False, True, False])
            with self.assertRaisesRegex(ValueError, "1 texts have no vector"):
                embedder.embed(["a lamp in the window burns"], as_numpy=True)

    def test_each_token_has_a_vector_without_pooling(self):
        with Embedder(MODEL, pooling="none") as embedder:
            vectors = embedder.embed(["a lamp", "the wick in the lamp"])
        self.assertGreater(len(vectors[1]), len(vectors[0]))


class Errors(unittest.TestCase):
    def test_an_error_of_the_child_is_an_exception_with_its_sentence(self):
        with Embedder("/nonexistent/model") as embedder:
            with self.assertRaisesRegex(SconceError, "/nonexistent/model"):
                embedder.embed(["a"])

    def test_an_error_names_the_text_and_the_next_texts_start_another_child(self):
        with Embedder(MODEL, on_long="error", max_length=6) as embedder:
            embedder.embed(["a", "lamp"])
            with self.assertRaisesRegex(SconceError, r"^texts\[1\] has \d+ tokens"):
                embedder.embed(["a", "the lamp in the window burns all night"])
            with self.assertRaisesRegex(SconceError, r"^texts\[2\] "):
                embedder.embed(["a", "b", None])
            self.assertEqual(len(embedder.embed(["a"])), 1)

    def test_wrong_arguments_are_named(self):
        with Embedder(MODEL) as embedder:
            with self.assertRaisesRegex(TypeError, "list"):
                embedder.embed("a lamp")
        with self.assertRaisesRegex(TypeError, "output_format"):
            Embedder(MODEL, output_format="csv")
        with Embedder(MODEL, no_such_option=True) as embedder:
            with self.assertRaisesRegex(SconceError, r"^[^\n]*'--no-such-option'[^\n]*; options of Embedder\(\)[^\n]*$"):
                embedder.embed(["a"])
        with Embedder(MODEL, command="/nonexistent/sconce") as embedder:
            with self.assertRaisesRegex(SconceError, "/nonexistent/sconce"):
                embedder.embed(["a"])

    def test_only_texts_are_taken_for_texts(self):
        frame = pd.DataFrame({"text": ["a lamp", "a wick"]})
        refused = [
            ({"a": "a lamp"}, r"not a dict; pass list\(texts\.values\(\)\)"),
            (collections.OrderedDict(a="a lamp"), r"not a dict; pass list\(texts\.values\(\)\)"),
            ({"a lamp", "a wick"}, "not a set; it has no order; pass sorted"),
            (frozenset(["a lamp"]), "not a frozenset; it has no order; pass sorted"),
            (b"a lamp", "not a bytes; decode it"),
            ({"a": "a lamp"}.values(), r"not a dict_values; pass list\(texts\)"),
            ((text for text in TEXTS), r"not a generator; pass list\(texts\)"),
            (iter(TEXTS), r"not a list_iterator; pass list\(texts\)"),
            (None, r"not a NoneType; pass list\(texts\)"),
            (frame, r'not a DataFrame; pass one of its columns, such as frame\["text"\]'),
            (pl.DataFrame(frame), r'not a DataFrame; pass one of its columns, such as frame\["text"\]'),
            (pl.LazyFrame(frame), r'not a LazyFrame; pass a column of its rows, such as frame.collect\(\)\["text"\]'),
            (pa.table(frame), r'not a Table; pass one of its columns, such as table\["text"\]'),
            (np.array([["a", "b"]]), "not an array of 2 dimensions; pass one of its columns"),
            (np.array("a"), "not an array of 0 dimensions"),
            (np.array([1.5]), "values of type double"),
            (pd.Series([1, 2]), "values of type int64"),
            (pl.Series([1, 2]), "values of type int64"),
            (["a", float("nan")], r"^texts\[1\] is nan, not a text; pass None or an empty string"),
            (["a", pd.NaT], r"^texts\[1\] is NaT, not a text; pass None or an empty string"),
            ([1, 2], r"^texts\[0\] is of type int, not str"),
            ([b"a lamp"], r"^texts\[0\] is of type bytes, not str"),
            (pd.Series([b"a lamp"]), "values of type binary"),
            (["a", 7], r"^texts\[1\] is of type int, not str"),
            (["a", b"b"], r"^texts\[1\] is of type bytes, not str"),
            (["a", "b", {"text": "c"}], r"^texts\[2\] is of type dict, not str"),
            (["a", ["b"]], r"^texts\[1\] is of type list, not str"),
            (["a", "cut \ud83d"], r"^texts\[1\] has a lone surrogate, U\+D83D"),
            (("a", "cut \udd25"), r"^texts\[1\] has a lone surrogate, U\+DD25"),
            (pd.Series(["a", 7], dtype=object), r"^texts\[1\] is of type int, not str"),
            (pd.Series(["a", b"b"], dtype=object), "values of type binary"),
            (np.array(["a", None, {}], dtype=object), r"^texts\[2\] is of type dict, not str"),
            (np.array(["a", "cut \ud83d"], dtype=object), r"^texts\[1\] has a lone surrogate"),
        ]
        with Embedder(MODEL) as embedder:
            for texts, expected in refused:
                with self.subTest(texts=repr(texts)), self.assertRaisesRegex(TypeError, expected):
                    embedder.embed(texts)
            self.assertIsNone(embedder.pid)

    def test_missing_texts_of_a_column_are_null(self):
        columns = [
            ["a", None],
            pd.Series(["a", float("nan")], dtype=object),
            pd.Series(["a", None]),
            pd.Series(["a", pd.NA], dtype="string"),
            pl.Series(["a", None]),
        ]
        with Embedder(MODEL, on_error="skip") as embedder, self.assertLogs("sconce_embed", "WARNING"):
            for texts in columns:
                with self.subTest(texts=repr(texts)):
                    self.assertEqual(embedder.embed(texts).is_null().to_pylist(), [False, True])
            embedder.close()

    def test_ctrl_c_returns_at_once(self):
        # A shell makes its background jobs ignore the signal.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        with Embedder(MODEL) as embedder:
            embedder.embed(["a"])
            pid = embedder.pid
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
            start = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                embedder.embed(TEXTS * 50)
            self.assertLess(time.monotonic() - start, 4)
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())
            self.assertEqual(len(embedder.embed(["a"])), 1)

    def test_a_killed_child_is_an_exception_and_not_a_hang(self):
        with Embedder(MODEL) as embedder:
            embedder.embed(["a"])
            os.kill(embedder.pid, signal.SIGKILL)
            with self.assertRaisesRegex(SconceError, "SIGKILL"):
                embedder.embed(TEXTS)
            self.assertEqual(len(embedder.embed(TEXTS)), len(TEXTS))
            pid = embedder.pid
            threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
            with self.assertRaisesRegex(SconceError, "SIGKILL"):
                while True:
                    embedder.embed(TEXTS * 100)


class Processes(unittest.TestCase):
    def test_threads_share_one_child(self):
        expected = of_command_line(TEXTS)
        with Embedder(MODEL) as embedder, ThreadPoolExecutor(8) as threads:
            embedder.embed(["a"])
            pid = embedder.pid
            parts = list(threads.map(lambda i: embedder.embed(TEXTS[i : i + 10], as_numpy=True), range(0, 200, 10)))
            self.assertEqual(embedder.pid, pid)
        self.assertTrue(np.array_equal(np.concatenate(parts), expected))

    @unittest.skipUnless(hasattr(os, "O_DIRECT"), "this system has no pipes in packet mode")
    def test_a_batch_is_answered_with_one_write(self):
        read, write = os.pipe2(os.O_DIRECT)
        command = [sconce_embed.find_command(), "embed", "--quiet", "-m", MODEL, "--input", "-"]
        command += ["--input-format", "arrow", "--output-format", "arrow"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write) as child:
            os.close(write)
            timer = threading.Timer(60, child.kill)
            timer.start()
            batch = pa.record_batch({"text": pa.array(TEXTS[:4], pa.large_string())})
            with pa.ipc.new_stream(child.stdin, batch.schema) as writer:
                writer.write_batch(batch)
                child.stdin.flush()
                # A read gets what one write has written, at most 4 KiB.
                packet = os.read(read, 1 << 16)
            child.stdin.close()
            while os.read(read, 1 << 16):
                pass
            timer.cancel()
        os.close(read)
        self.assertIn(b"\n", packet)
        self.assertEqual(pa.ipc.open_stream(packet).read_next_batch().num_rows, 4)

    def test_a_forked_process_starts_a_child_of_its_own(self):
        with Embedder(MODEL) as embedder:
            expected = embedder.embed(["a", "lamp"], as_numpy=True)
            read, write = os.pipe()
            process = os.fork()
            if process == 0:
                os.write(write, embedder.embed(["a", "lamp"], as_numpy=True).tobytes() + embedder.pid.to_bytes(8, "little"))
                embedder.close()
                os._exit(0)
            os.close(write)
            # The child of this process serves it as before.
            pid = embedder.pid
            self.assertTrue(np.array_equal(embedder.embed(["a", "lamp"], as_numpy=True), expected))
            with os.fdopen(read, "rb") as pipe:
                answer = pipe.read()
            os.waitpid(process, 0)
            self.assertEqual(answer[:-8], expected.tobytes())
            self.assertNotEqual(int.from_bytes(answer[-8:], "little"), pid)
            self.assertEqual(embedder.pid, pid)

    def test_closing_ends_the_child_although_a_forked_process_lives_on(self):
        embedder = Embedder(MODEL)
        embedder.embed(["a"])
        pid = embedder.pid
        process = os.fork()
        if process == 0:
            time.sleep(60)
            os._exit(0)
        try:
            start = time.monotonic()
            embedder.close()
            self.assertLess(time.monotonic() - start, 4)
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def test_an_embedder_that_is_dropped_ends_its_child(self):
        embedder = Embedder(MODEL)
        embedder.embed(["a"])
        pid = embedder.pid
        del embedder
        self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_an_embedder_can_be_pickled(self):
        with Embedder(MODEL, dimensions=8) as embedder:
            expected = embedder.embed(["a"], as_numpy=True)
            with pickle.loads(pickle.dumps(embedder)) as copy:
                self.assertTrue(np.array_equal(copy.embed(["a"], as_numpy=True), expected))

    def test_the_module_is_the_command(self):
        command = [os.sys.executable, "-m", "sconce_embed", "--version"]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.assertRegex(shown, r"^sconce \d+\.\d+\.\d+\ncommit: \S+\nbuild: [0-9a-f]{16}\nISA: \S+\nfeatures: \S+\n$")
        self.assertEqual(subprocess.run([*command[:3], "embed", "--no-such"], capture_output=True).returncode, 2)


@unittest.skipUnless(hasattr(os, "sched_setaffinity"), "this system has no CPU affinity")
class Threads(unittest.TestCase):
    def compute_threads(self, **options):
        """The names of the threads of a child that compute."""
        with Embedder(MODEL, **options) as embedder:
            embedder.embed(TEXTS[:2])
            names = [path.read_text() for path in pathlib.Path(f"/proc/{embedder.pid}/task").glob("*/comm")]
        return [name for name in names if name.startswith("compute-")]

    def test_threads_are_those_of_the_option(self):
        self.assertEqual([len(self.compute_threads(threads=count)) for count in (1, 3)], [1, 3])

    def test_threads_are_no_more_than_the_affinity_allows(self):
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
        try:
            self.assertEqual(len(self.compute_threads()), 1)
        finally:
            os.sched_setaffinity(0, allowed)


if __name__ == "__main__":
    unittest.main()
