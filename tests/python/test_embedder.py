"""Embedder, over the sconce that SCONCE_COMMAND names and a fixture as model.

    PYTHONPATH=python SCONCE_COMMAND=target/release/sconce python3 -m unittest discover --start-directory tests/python
"""

import asyncio
import collections
import io
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import sconce_embed
from sconce_embed import Embedder, SconceError, TruncationWarning
from sconce_embed._server import CANCELLED, Cancelled

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "tests" / "fixtures" / "bert-tiny"
TEXTS = [f"the lamp burns {i} " + "times " * (i % 11) for i in range(200)]


def of_command_line(texts, *options):
    """The vectors that `sconce embed` writes as npy."""
    command = [sconce_embed.find_command(), "embed", "--quiet", "-m", MODEL, "--output-format", "npy", *options]
    return np.load(io.BytesIO(subprocess.run([*command, *texts], check=True, capture_output=True).stdout))


async def awaited(embedder, texts, **options):
    return await embedder.aembed(texts, **options)


def setUpModule():
    # Some of the texts are over the limit of the model.
    warnings.simplefilter("ignore", TruncationWarning)


class Vectors(unittest.TestCase):
    def assert_same_bits(self, found, expected):
        self.assertEqual(found.dtype, expected.dtype)
        self.assertEqual(found.shape, expected.shape)
        self.assertTrue(np.array_equal(found.view(np.uint8), expected.view(np.uint8)))

    def test_vectors_have_the_bits_of_the_command_line(self):
        with Embedder(MODEL) as embedder:
            vectors, expected = embedder.embed(TEXTS), of_command_line(TEXTS)
            self.assert_same_bits(vectors, expected)
            vectors *= 2
            self.assertEqual(vectors[0, 0], 2 * expected[0, 0])

    def test_texts_of_many_requests_come_back_in_their_order(self):
        texts = TEXTS * 50
        with Embedder(MODEL) as embedder:
            vectors = embedder.embed(texts)
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
                    self.assert_same_bits(embedder.embed(texts), expected)

    def test_options_are_those_of_the_command_line(self):
        expected = of_command_line(TEXTS[:5], "--dimensions", "8", "--normalize", "--prompt=- a: ")
        with Embedder(MODEL, dimensions=8, normalize=True, prompt="- a: ", max_length=None) as embedder:
            self.assert_same_bits(embedder.embed(TEXTS[:5]), expected)

    def test_options_of_a_call_are_those_of_the_command_line(self):
        choices = [
            ({}, []),
            ({"prompt_name": "query"}, ["--prompt-name", "query"]),
            ({"prompt": "- a: ", "dimensions": 8}, ["--prompt=- a: ", "--dimensions", "8"]),
            ({"role": "query", "normalize": True}, ["--role", "query", "--normalize"]),
            ({"normalize": False, "prompt": ""}, ["--no-normalize", "--prompt="]),
        ]
        with Embedder(MODEL) as embedder:
            pid = embedder.pid
            for options, arguments in choices:
                with self.subTest(options=options):
                    expected = of_command_line(TEXTS[:5], *arguments)
                    self.assert_same_bits(embedder.embed(TEXTS[:5], **options), expected)
                    self.assert_same_bits(asyncio.run(awaited(embedder, TEXTS[:5], **options)), expected)
            self.assertEqual(embedder.pid, pid)

    def test_a_call_that_nobody_waits_for_ends(self):
        cancelled = threading.Event()
        cancelled.set()
        with Embedder(MODEL) as embedder:
            before = CANCELLED.set(cancelled)
            try:
                with self.assertRaises(Cancelled):
                    embedder.embed(TEXTS[:5])
            finally:
                CANCELLED.reset(before)
            self.assert_same_bits(embedder.embed(TEXTS[:5]), of_command_line(TEXTS[:5]))

    def test_a_task_that_is_cancelled_tells_its_thread(self):
        told = []

        def wait(*_):
            told.append(CANCELLED.get().wait(60))
            raise Cancelled

        async def cancel(embedder):
            task = asyncio.create_task(embedder.aembed(["a"]))
            await asyncio.sleep(0.1)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        with Embedder(MODEL) as embedder, unittest.mock.patch.object(Embedder, "_embed", wait):
            asyncio.run(cancel(embedder))
        self.assertEqual(told, [True])

    def test_values_that_are_not_finite_are_named(self):
        with Embedder(MODEL) as embedder:
            vectors = embedder.embed(TEXTS[:3])
            damaged = vectors.copy()
            damaged[1, 2] = np.nan
            calls = [
                (lambda: embedder.similarity(damaged), r"^a\[1\] has a value that is not finite"),
                (lambda: embedder.similarity(vectors, damaged), r"^b\[1\] "),
                (lambda: embedder.search(vectors, damaged), r"^corpus\[1\] "),
                (lambda: embedder.search(damaged, vectors), r"^queries\[1\] "),
            ]
            for call, expected in calls:
                with self.subTest(expected=expected), self.assertRaisesRegex(ValueError, expected):
                    call()

    def test_the_best_texts_are_counted_from_one(self):
        with Embedder(MODEL) as embedder:
            ranked = embedder.rerank("a", TEXTS[:4])
            self.assertEqual(embedder.rerank("a", TEXTS[:4], top_k=0), ranked)
            self.assertEqual(embedder.rerank("a", TEXTS[:4], top_k=2), ranked[:2])
            with self.assertRaisesRegex(ValueError, "top_k is -1"):
                embedder.rerank("a", TEXTS[:4], top_k=-1)

    def test_texts_as_a_corpus_are_no_files(self):
        with Embedder(MODEL) as embedder, self.assertRaisesRegex(SconceError, "corpus has no file 'a wick'"):
            embedder.search(["a"], ["a wick", "a lamp"])

    def test_types_of_elements(self):
        for dtype in ("f16", "binary", "ubinary"):
            with self.subTest(dtype=dtype), Embedder(MODEL, output_dtype=dtype, dimensions=16) as embedder:
                expected = of_command_line(TEXTS[:5], "--output-dtype", dtype, "--dimensions", "16")
                self.assert_same_bits(embedder.embed(TEXTS[:5]), expected)
                self.assert_same_bits(embedder.embed([]), expected[:0])

    def test_signs_fill_bytes(self):
        with Embedder(MODEL, output_dtype="binary") as embedder:
            with self.assertRaisesRegex(SconceError, "packs 8 dimensions into a byte, but vectors have 36; pass dimensions 32"):
                embedder.embed(["a"])
            self.assertEqual(embedder.embed(["a"], dimensions=32).shape, (1, 4))

    def test_facts(self):
        with Embedder(MODEL, dimensions=8, max_length=9) as embedder:
            facts = (embedder.model, embedder.dimensions, embedder.max_length, embedder.similarity_fn_name)
            self.assertEqual(facts, (str(MODEL), 8, 9, "cosine"))
            expected = f"Embedder({str(MODEL)!r}, dimensions=8, max_length=9, similarity_fn_name='cosine')"
            self.assertEqual(repr(embedder), expected)

    def test_no_texts_give_no_vectors_of_the_right_width(self):
        with Embedder(MODEL) as embedder:
            width = of_command_line(["a"]).shape[1]
            self.assertEqual(embedder.embed([]).shape, (0, width))
            self.assertEqual(embedder.embed([], dimensions=8).shape, (0, 8))

    def test_a_call_that_truncates_texts_warns_its_caller(self):
        long = "the lamp in the window burns all night"
        with Embedder(MODEL, max_length=6) as embedder:
            calls = [
                (lambda: embedder.embed(["a", long]), r"^texts\[1\] has \d+ tokens, of which the model reads 6; "),
                (lambda: embedder.embed([long, "a", long]), r"^texts\[0\] .* reads 6, the first of 2 truncated texts; "),
                (lambda: asyncio.run(awaited(embedder, ["a", long])), r"^texts\[1\] "),
                (lambda: embedder.rerank("a", ["b", "c", long]), r"^texts\[2\] "),
                (lambda: embedder.rerank(long, ["b", "c"]), r"^query "),
            ]
            for call, expected in calls:
                with self.subTest(expected=expected):
                    with self.assertWarnsRegex(TruncationWarning, expected) as warned:
                        call()
                    self.assertEqual(warned.filename, __file__)
            self.assertWarnsRegex(TruncationWarning, r"^texts\[1500\] ", embedder.embed, ["a"] * 1500 + [long])
        with Embedder(MODEL, max_length=6, on_long="error") as embedder:
            self.assertRaisesRegex(SconceError, r"^texts\[1\] has ", embedder.rerank, "a", ["b", long])
        with Embedder(MODEL, max_length=6, on_long="mean") as embedder, warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assert_same_bits(embedder.embed([long]), of_command_line([long], "--on-long", "mean", "--max-length", "6"))


    def test_progress_is_that_of_the_texts(self):
        bars = []

        class Bar(list):
            def __init__(self, **options):
                bars.append((options["total"], self))

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.append("end")

            def update(self, count):
                self.append(count)

        with unittest.mock.patch.dict(sys.modules, {"tqdm": None, "tqdm.auto": None}), Embedder(MODEL) as embedder:
            embedder.embed(["a"], progress=True)
            sys.modules["tqdm.auto"] = types.SimpleNamespace(tqdm=Bar)
            embedder.embed(TEXTS * 6, progress=True)
            embedder.embed(TEXTS, progress=False)
            embedder.embed(TEXTS)
        self.assertEqual(bars, [(1200, [1024, 176, "end"])])


class Errors(unittest.TestCase):
    def test_an_error_of_the_child_is_an_exception_with_its_sentence(self):
        with self.assertRaisesRegex(SconceError, "/nonexistent/model"):
            Embedder("/nonexistent/model")

    def test_an_error_names_the_text_and_the_model_stays_loaded(self):
        with Embedder(MODEL, on_long="error", max_length=6) as embedder:
            pid = embedder.pid
            for start in (0, 1024, 5000):
                with self.assertRaisesRegex(SconceError, rf"^texts\[{start + 1}\] has \d+ tokens"):
                    embedder.embed(["a"] * start + ["a", "the lamp in the window burns all night", "b"])
            with self.assertRaisesRegex(SconceError, r"^dimensions is 99, more than the 36|^dimensions 99 exceeds the 36"):
                embedder.embed(["a"], dimensions=99)
            with self.assertRaisesRegex(SconceError, "^normalize is 'yes'; pass True or False$"):
                embedder.embed(["a"], normalize="yes")
            with self.assertRaisesRegex(SconceError, "^prompt_name is .* which has document, query; "):
                embedder.embed(["a"], prompt_name="other")
            with self.assertRaisesRegex(SconceError, "^prompt and prompt_name are both there"):
                embedder.embed(["a"], prompt="a", prompt_name="query")
            self.assertEqual((len(embedder.embed(["a"])), embedder.pid), (1, pid))

    def test_wrong_arguments_are_named(self):
        with Embedder(MODEL) as embedder:
            with self.assertRaisesRegex(TypeError, "list"):
                embedder.embed("a lamp")
        with self.assertRaisesRegex(TypeError, "output_format"):
            Embedder(MODEL, output_format="csv")
        for options, expected in [
            ({"dtype": "f33"}, r"^invalid value 'f33' for dtype \[possible values: f32, .*\]$"),
            ({"output_dtype": "int8"}, "^output_dtype is 'int8'; pass one of f32, f16, binary, ubinary$"),
            ({"normalize": "yes"}, "^normalize is 'yes'; pass True or False$"),
            ({"offline": 1}, "^offline is 1; pass True or False$"),
            ({"max_memory": "10KB"}, "^max_memory 10.* the weights of the model need .*; pass a larger max_memory"),
            ({"max_memory": 10_000}, "^max_memory 10.* the weights of the model need "),
            ({"max_memory": 1e4}, "^max_memory 10.* the weights of the model need "),
            ({"max_memory": float("nan")}, '^max_memory is nan; pass a number of bytes, or a string such as "4GB"$'),
            ({"max_length": 1000}, "^max_length 1000 exceeds the model's 40 positions"),
            ({"prompt_name": "other"}, "^prompt_name other: .*document, query"),
            ({"command": "/nonexistent/sconce"}, "/nonexistent/sconce"),
        ]:
            with self.subTest(options=options), self.assertRaisesRegex(SconceError, expected):
                Embedder(MODEL, **options)

    def test_an_empty_name_is_no_model(self):
        self.assertRaisesRegex(SconceError, "^model is empty; ", Embedder, "")

    def test_numbers_of_numpy_are_numbers(self):
        with Embedder(MODEL, dimensions=np.int32(16), max_memory=np.float64(4e9)) as embedder:
            self.assertEqual(embedder.embed(["a"], dimensions=np.int64(8)).shape, (1, 8))
            self.assertEqual(embedder.embed(["a"]).shape, (1, 16))
            with self.assertRaisesRegex(TypeError, "; pass a string, a number, True or False$"):
                embedder.embed(["a"], prompt={"a"})

    def test_commands_in_errors_stay_commands(self):
        with tempfile.TemporaryDirectory() as cache, unittest.mock.patch.dict(os.environ, {"HF_HUB_CACHE": cache}):
            expected = r"mode \(offline, .* run `sconce download a/b --revision v9` once .*, or pass model=DIR$"
            with self.assertRaisesRegex(SconceError, expected):
                Embedder("a/b", revision="v9", offline=True)

    def test_only_texts_are_taken_for_texts(self):
        frame = pd.DataFrame({"text": ["a lamp", "a wick"]})
        refused = [
            ({"a": "a lamp"}, r"^texts is a dict, not a list of texts; pass list\(texts\.values\(\)\)"),
            (collections.OrderedDict(a="a lamp"), r"a dict, not a list of texts; pass list\(texts\.values\(\)\)"),
            ({"a lamp", "a wick"}, "a set, not a list of texts; it has no order; pass sorted"),
            (frozenset(["a lamp"]), "a frozenset, not a list of texts; it has no order; pass sorted"),
            (b"a lamp", "a bytes, not a list of texts; decode it"),
            ({"a": "a lamp"}.values(), r"a dict_values, not a list of texts; pass list\(texts\)"),
            ((text for text in TEXTS), r"a generator, not a list of texts; pass list\(texts\)"),
            (iter(TEXTS), r"a list_iterator, not a list of texts; pass list\(texts\)"),
            (None, r"a NoneType, not a list of texts; pass list\(texts\)"),
            (frame, r'a DataFrame, not a list of texts; pass one of its columns, such as frame\["text"\]'),
            (pl.DataFrame(frame), r'a DataFrame, not a list of texts; pass one of its columns, such as frame\["text"\]'),
            (pl.LazyFrame(frame), r'a LazyFrame, .*; pass a column of its rows, such as frame.collect\(\)\["text"\]'),
            (pa.table(frame), r'a Table, not a list of texts; pass one of its columns, such as table\["text"\]'),
            (np.array([["a", "b"]]), "an array of 2 dimensions, not a list of texts; pass one of its columns"),
            (np.array("a"), "an array of 0 dimensions"),
            (np.array([1.5]), r"^texts\[0\] is of type float, not str"),
            (pd.Series([1, 2]), r"^texts\[0\] is of type int, not str"),
            (pl.Series([1, 2]), r"^texts\[0\] is of type int, not str"),
            (["a", None], r"^texts\[1\] is None, not a text; leave it out, or pass an empty string"),
            (["a", float("nan")], r"^texts\[1\] is nan, not a text; leave it out, or pass an empty string"),
            (["a", pd.NaT], r"^texts\[1\] is NaT, not a text; leave it out, or pass an empty string"),
            (["a", np.nan], r"^texts\[1\] is nan, not a text"),
            (pa.array(["a", None]), r"^texts\[1\] is None, not a text"),
            (pl.Series(["a", None]), r"^texts\[1\] is None, not a text"),
            (pd.Series(["a", None], dtype=object), r"^texts\[1\] is None, not a text"),
            (pd.Series(["a", float("nan")], dtype=object), r"^texts\[1\] is nan, not a text"),
            (pd.Series(["a", pd.NA], dtype="string"), r"^texts\[1\] is <NA>, not a text"),
            ([1, 2], r"^texts\[0\] is of type int, not str"),
            ([b"a lamp"], r"^texts\[0\] is of type bytes, not str"),
            (pd.Series([b"a lamp"]), r"^texts\[0\] is of type bytes, not str"),
            (["a", 7], r"^texts\[1\] is of type int, not str"),
            (["a", b"b"], r"^texts\[1\] is of type bytes, not str"),
            (["a", "b", {"text": "c"}], r"^texts\[2\] is of type dict, not str"),
            (["a", ["b"]], r"^texts\[1\] is of type list, not str"),
            (["a", "cut \ud83d"], r"^texts\[1\] has a lone surrogate, U\+D83D"),
            (("a", "cut \udd25"), r"^texts\[1\] has a lone surrogate, U\+DD25"),
            (pd.Series(["a", 7], dtype=object), r"^texts\[1\] is of type int, not str"),
            (pd.Series(["a", b"b"], dtype=object), r"^texts\[1\] is of type bytes, not str"),
            (np.array(["a", "b", {}], dtype=object), r"^texts\[2\] is of type dict, not str"),
            (np.array(["a", "cut \ud83d"], dtype=object), r"^texts\[1\] has a lone surrogate"),
        ]
        with Embedder(MODEL) as embedder:
            for texts, expected in refused:
                with self.subTest(texts=repr(texts)), self.assertRaisesRegex(TypeError, expected):
                    embedder.embed(texts)
            for call in (embedder.embed_tokens, embedder.count_tokens, lambda texts: embedder.rerank("a", texts)):
                self.assertRaisesRegex(TypeError, r"^texts\[1\] is None", call, ["a", None])
            self.assertRaisesRegex(TypeError, "^query is None, not a text; pass a string$", embedder.rerank, None, ["a"])

    def test_a_connection_that_the_server_has_closed_is_replaced(self):
        with Embedder(MODEL) as embedder:
            expected = embedder.embed(["a"])
            for side in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
                embedder._server._idle[-1].sock.shutdown(side)
                self.assertTrue(np.array_equal(embedder.embed(["a"]), expected))

    def test_requests_that_do_not_fit_are_sent_again(self):
        with Embedder(MODEL) as embedder:
            embedder._options["max_concurrent_requests"] = 1
            embedder.close()
            with unittest.mock.patch("sconce_embed._model._MAX_TEXTS", 7):
                found = embedder.embed(TEXTS)
            self.assertTrue(np.array_equal(found, of_command_line(TEXTS)))

    def test_options_of_other_servers_are_not_those_of_this_one(self):
        names = ("API_KEY_FILE", "UNIX_SOCKET", "TLS_CERT", "MAX_MEMORY", "HOST")
        with unittest.mock.patch.dict(os.environ, {f"SCONCE_{name}": "other" for name in names}), Embedder(MODEL) as embedder:
            self.assertEqual(len(embedder.embed(["a"])), 1)

    def test_ctrl_c_returns_at_once(self):
        # A shell makes its background jobs ignore the signal.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        with Embedder(MODEL) as embedder:
            embedder.embed(["a"])
            pid = embedder.pid
            for texts in (["a"], TEXTS * 50, ["the lamp " * 100_000] * 50):
                os.kill(pid, signal.SIGSTOP)
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                start = time.monotonic()
                with self.assertRaises(KeyboardInterrupt):
                    embedder.embed(texts)
                self.assertLess(time.monotonic() - start, 4)
                os.kill(pid, signal.SIGCONT)
                self.assertEqual((len(embedder.embed(["a"])), embedder.pid), (1, pid))

    def test_a_killed_child_is_an_exception_and_not_a_hang(self):
        with Embedder(MODEL) as embedder:
            os.kill(embedder.pid, signal.SIGKILL)
            with self.assertRaisesRegex(SconceError, "SIGKILL"):
                embedder.embed(TEXTS)
            self.assertIsNone(embedder.pid)
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
            parts = list(threads.map(lambda i: embedder.embed(TEXTS[i : i + 10]), range(0, 200, 10)))
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
            expected = embedder.embed(["a", "lamp"])
            read, write = os.pipe()
            process = os.fork()
            if process == 0:
                os.write(write, embedder.embed(["a", "lamp"]).tobytes() + embedder.pid.to_bytes(8, "little"))
                embedder.close()
                os._exit(0)
            os.close(write)
            # The child of this process serves it as before.
            pid = embedder.pid
            self.assertTrue(np.array_equal(embedder.embed(["a", "lamp"]), expected))
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
            expected = embedder.embed(["a"])
            with pickle.loads(pickle.dumps(embedder)) as copy:
                self.assertEqual(repr(copy), repr(embedder))
                self.assertTrue(np.array_equal(copy.embed(["a"]), expected))

    def test_the_server_ends_with_a_process_that_is_killed(self):
        code = f"import sconce_embed, time; e = sconce_embed.Embedder({str(MODEL)!r}); print(e.pid, flush=True); time.sleep(60)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            pid = int(process.stdout.readline())
            process.kill()
        self.assert_ends(pid)

    def test_the_server_ends_with_the_interpreter(self):
        code = f"import sconce_embed; e = sconce_embed.Embedder({str(MODEL)!r}); print(e.pid)"
        pid = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        self.assert_ends(pid)

    def assert_ends(self, pid):
        since = time.monotonic()
        while pathlib.Path(f"/proc/{pid}").exists():
            self.assertLess(time.monotonic() - since, 30)
            time.sleep(0.01)

    def test_the_module_is_the_command(self):
        command = [sys.executable, "-m", "sconce_embed", "--version"]
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
