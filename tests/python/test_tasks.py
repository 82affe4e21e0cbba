"""What models give beside vectors of texts, over the sconce that SCONCE_COMMAND names and fixtures as models.

    PYTHONPATH=python SCONCE_COMMAND=target/release/sconce python3 -m unittest discover --start-directory tests/python
"""

import json
import pathlib
import subprocess
import tempfile
import unittest
import warnings

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from sconce_embed import (
    Answerer, Classifier, Embedder, MaskFiller, Reranker, SconceError, Tagger, TruncationWarning, find_command
)

FIXTURES = pathlib.Path(__file__).parents[2] / "tests" / "fixtures"
MODEL, SPARSE = FIXTURES / "bert-tiny", FIXTURES / "sparse" / "bert-max"
TEXTS = ["the lamp burns", "", "a wick in the lamp", "São Tomé: 灯 and 🕯!", "the lamp burns"]
# More texts than a request has.
MANY = [f"the lamp {i % 7}" for i in range(1500)]


def setUpModule():
    warnings.simplefilter("ignore", TruncationWarning)


def command_rows(command, *arguments):
    """The jsonl rows of a command."""
    output = subprocess.run([find_command(), command, "--quiet", *arguments], check=True, capture_output=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def records(texts, **fields):
    """A file of records."""
    file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    file.writelines(json.dumps({"text": text, **fields}) + "\n" for text in texts)
    file.flush()
    return file


class Tokens(unittest.TestCase):
    def test_each_token_has_a_vector_and_its_characters(self):
        with Embedder(MODEL, normalize=True, dimensions=8) as embedder, records(TEXTS) as file:
            found = embedder.embed_tokens(TEXTS)
            expected = command_rows("embed", "-m", MODEL, "-i", file.name, "--pooling", "none")
            self.assertEqual([len(tokens.tokens) for tokens in found], embedder.count_tokens(TEXTS))
        for tokens, row, text in zip(found, expected, TEXTS):
            self.assertTrue(np.array_equal(tokens.vectors, np.array(row["embeddings"], np.float32)))
            self.assertEqual(len(tokens.tokens), len(tokens.offsets))
            self.assertEqual((tokens.tokens[0], tokens.offsets[0]), ("[CLS]", (0, 0)))
            for token, (start, end) in zip(tokens.tokens[1:-1], tokens.offsets[1:-1]):
                self.assertEqual(text[start:end], token)
        tokens.vectors *= 2

    def test_roles_are_those_of_models_that_have_them(self):
        with Embedder(MODEL) as embedder:
            self.assertRaisesRegex(SconceError, "embedded without a prompt; leave it out$", embedder.embed_tokens, ["a"], role="query")

    def test_tokens_of_bytes_have_their_characters(self):
        with Embedder(FIXTURES / "roberta") as embedder:
            (found,) = embedder.embed_tokens(["é灯a"])
        covered = sorted({i for start, end in found.offsets for i in range(start, end)})
        self.assertEqual((covered, len(found.tokens)), ([0, 1, 2], len(found.vectors)))

    def test_a_long_text_is_truncated_as_by_the_command_line(self):
        long = "the lamp in the window burns all night"
        for side, on_long in [("right", None), ("left", None), ("right", "mean"), ("left", "truncate")]:
            with self.subTest(side=side, on_long=on_long):
                with Embedder(MODEL, max_length=8, truncation_side=side, on_long=on_long) as embedder:
                    with self.assertWarnsRegex(TruncationWarning, r"^texts\[1\] has 22 tokens, of which the model reads 8"):
                        short, found = embedder.embed_tokens(["a", long])
                    (whole,) = embedder._tokens([long])
                (row,) = command_rows(
                    "embed", "-m", MODEL, "--pooling", "none", "--max-length", "8", "--truncation-side", side, long
                )
                self.assertEqual((len(short.tokens), len(short.vectors)), (3, 3))
                self.assertTrue(np.array_equal(found.vectors, np.array(row["embeddings"], np.float32)))
                kept = whole[1:7] if side == "right" else whole[-7:-1]
                self.assertEqual(found.tokens, ["[CLS]", *(token["text"] for token in kept), "[SEP]"])
                self.assertEqual([long[start:end] for start, end in found.offsets[1:-1]], found.tokens[1:-1])

    def test_a_long_text_is_an_error_if_the_embedder_says_so(self):
        with Embedder(MODEL, on_long="error") as embedder, self.assertRaisesRegex(SconceError, r"^texts\[1\] has \d+ tokens"):
            embedder.embed_tokens(["a", "the lamp " * 30])

    def test_a_model_with_a_vector_per_token_gives_its_own(self):
        model = next((FIXTURES / "multi-vector").glob("*/config.json")).parent
        with Embedder(model) as embedder:
            (found,) = embedder.embed_tokens(["the lamp"], role="query")
            self.assertEqual((found.vectors.shape[1], found.tokens), (embedder.dimensions, None))
            with self.assertRaisesRegex(SconceError, r"call embed_tokens\(\)"):
                embedder.embed(["a"])
            ranks = embedder.rerank("the lamp", TEXTS)
            self.assertEqual(ranks[0]["index"], 0)
            with self.assertRaisesRegex(SconceError, r"maxsim compares a vector per token; call rerank\(\)"):
                embedder.similarity(found.vectors)

    def test_tokens_are_counted_in_many_requests(self):
        with Embedder(MODEL) as embedder:
            expected = embedder.count_tokens(MANY[:7])
            self.assertEqual(embedder.count_tokens(MANY), (expected * 300)[:1500])


class Sparse(unittest.TestCase):
    def test_a_matrix_has_the_weights_of_the_command_line(self):
        with Embedder(SPARSE) as embedder, records(TEXTS) as file:
            matrix = embedder.embed_sparse(TEXTS)
            rows = command_rows("embed", "-m", SPARSE, "-i", file.name)
            self.assertEqual(matrix.shape, (len(TEXTS), embedder.dimensions))
            self.assertEqual(embedder.embed_sparse([]).shape, (0, embedder.dimensions))
            many = embedder.embed_sparse(MANY)
            with self.assertRaisesRegex(SconceError, r"sparse vectors, .*; call embed_sparse\(\)"):
                embedder.embed(["a"])
        vocabulary = json.loads((SPARSE / "tokenizer.json").read_text())["model"]["vocab"]
        for i, row in enumerate(rows):
            expected = {vocabulary[token]: np.float32(weight) for token, weight in row["weights"].items()}
            self.assertEqual(dict(zip(matrix[[i]].indices.tolist(), matrix[[i]].data)), expected)
        self.assertEqual((many[[8]] != many[[1499 // 7 * 7 + 1]]).nnz, 0)

    def test_a_dense_model_says_so(self):
        with Embedder(MODEL) as embedder, self.assertRaisesRegex(SconceError, r"gives dense vectors; call embed\(\)"):
            embedder.embed_sparse(["a"])


class Comparisons(unittest.TestCase):
    def test_similarities_are_those_of_the_command_line(self):
        with Embedder(MODEL) as embedder:
            found = embedder.similarity(TEXTS[:1], TEXTS)
            vectors = embedder.embed(TEXTS)
            self.assertTrue(np.allclose(embedder.similarity(vectors)[0], found[0], atol=1e-6))
            with Embedder(MODEL, output_dtype="binary", dimensions=8) as binary, Embedder(MODEL, dimensions=8) as floats:
                self.assertTrue(np.array_equal(binary.similarity(TEXTS), floats.similarity(TEXTS)))
                with self.assertRaisesRegex(ValueError, "^vectors of int8 cannot be compared"):
                    binary.similarity(binary.embed(TEXTS))
            with records(TEXTS) as file:
                rows = command_rows("search", self.corpus(file.name), "-m", MODEL, "--prompt=", TEXTS[0], "--output-format", "jsonl")
        expected = {row["index"]: row["score"] for row in rows}
        self.assertTrue(np.allclose(found[0], [expected[i] for i in range(len(TEXTS))], atol=1e-6))

    def corpus(self, source):
        """A vector file of texts."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "corpus.parquet"
        command_rows("embed", "-m", MODEL, "-i", source, "--keep", "text", "-o", path)
        return path

    def test_metrics(self):
        from sconce_embed._vectors import nearest, scores

        draw = np.random.default_rng(0)
        a, b = draw.normal(size=(3, 5)).astype(np.float32), draw.normal(size=(7, 5)).astype(np.float32)
        a[0] = 0
        difference = a[:, None] - b[None]
        with np.errstate(invalid="ignore"):
            cosine = np.nan_to_num(a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1))
        for name, expected in [
            ("cosine", cosine),
            ("dot", a @ b.T),
            ("euclidean", -np.sqrt((difference**2).sum(2))),
            ("manhattan", -np.abs(difference).sum(2)),
        ]:
            self.assertTrue(np.allclose(scores(a, b, name), expected, atol=1e-5), name)
            for k in (1, 3, 9):
                found = [[hit["index"] for hit in hits] for hits in nearest(a, b, k, name)]
                self.assertEqual(found, np.argsort(-scores(a, b, name), axis=1, kind="stable")[:, :k].tolist())
        with self.assertRaisesRegex(ValueError, r"^vectors of the shapes \(3, 5\) and \(7, 4\) cannot be compared"):
            scores(a, b[:, :4], "dot")

    def test_search_in_an_array_and_in_files_finds_the_same(self):
        queries = ["lamp", "a wick\nburns"]
        with Embedder(MODEL) as embedder, records(TEXTS) as file:
            path = self.corpus(file.name)
            for asked in (queries, embedder.embed(queries, role="query")):
                of_file = embedder.search(asked, path, k=3)
                of_array = embedder.search(asked, embedder.embed(TEXTS), k=3)
                places = [[[hit["index"] for hit in hits] for hits in found] for found in (of_file, of_array)]
                self.assertEqual(*places)
                self.assertEqual(of_file[0][0]["text"], TEXTS[of_file[0][0]["index"]])
                for one, other in zip(of_file[0], of_array[0]):
                    self.assertAlmostEqual(one["score"], other["score"], places=5)
            self.assertEqual(embedder.search([], path), [])
            self.assertRaisesRegex(ValueError, "^k is 0", embedder.search, queries, path, k=0)
            self.assertRaisesRegex(SconceError, "nowhere.parquet", embedder.search, queries, "nowhere.parquet")
        with Embedder(FIXTURES / "roberta") as other, self.assertRaisesRegex(SconceError, "corpus.parquet"):
            other.search(queries, path)

    def test_what_is_no_corpus_is_named(self):
        matrix = csr_matrix(np.eye(3))
        with Embedder(MODEL) as embedder, records(TEXTS) as file:
            calls = [
                (["a"], [[1.0, 2.0]], r"^corpus\[0\] is a list, not the path of a vector file; pass an array of vectors, such as np"),
                (["a"], pd.DataFrame({"x": [1.0]}), "^corpus is a DataFrame, not vectors; pass an array"),
                (["a"], None, "^corpus is a NoneType, not vectors; pass an array"),
                (["a"], matrix, r"^corpus is a csr_matrix; pass corpus\.toarray\(\): search\(\) takes no sparse vectors$"),
                (matrix, np.eye(3), r"^queries is a csr_matrix; pass queries\.toarray\(\)"),
                ([[1.0, 2.0]], np.eye(3), r"^queries\[0\] is of type list"),
            ]
            for queries, corpus, expected in calls:
                with self.subTest(expected=expected), self.assertRaisesRegex(TypeError, expected):
                    embedder.search(queries, corpus)
            with self.assertRaisesRegex(SconceError, r'has no field "embedding" of vectors, .*; pass a file of vectors$'):
                embedder.search(["a"], file.name)
        with Embedder(SPARSE) as embedder:
            with self.assertRaisesRegex(TypeError, r"^corpus is a csr_matrix; call similarity\(\), which compares sparse vectors$"):
                embedder.search(["a"], matrix)

    def test_signs_are_searched_as_by_the_command_line(self):
        for dtype in ("binary", "ubinary"):
            with Embedder(MODEL, output_dtype=dtype, dimensions=32) as embedder, tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "signs.parquet"
                command_rows("embed", "-m", MODEL, "--dimensions=32", f"--output-dtype={dtype}", "-o", path, *filter(None, TEXTS))
                signs, expected = embedder.embed(list(filter(None, TEXTS))), embedder.search(["the lamp"], path, k=4)
                self.assertEqual(len(expected[0]), 4)
                query = embedder.embed(["the lamp"], role="query")
                for queries, corpus in [(["the lamp"], signs), (query, signs), (query, path)]:
                    found = embedder.search(queries, corpus, k=4)
                    places = [[(hit["index"], round(hit["score"], 5)) for hit in hits[0]] for hits in (found, expected)]
                    self.assertEqual(*places)
        with Embedder(MODEL) as embedder, self.assertRaisesRegex(ValueError, "^vectors of int8 cannot be compared"):
            embedder.search(["a"], np.zeros((2, 36), np.int8))

    def test_sparse_vectors_are_compared(self):
        with Embedder(SPARSE) as embedder:
            found, matrix = embedder.similarity(TEXTS[:1], TEXTS), embedder.embed_sparse(TEXTS)
            self.assertTrue(np.array_equal(embedder.similarity(matrix[:1], matrix), found))
            ranked = embedder.rerank(TEXTS[0], TEXTS)
        expected = {hit["index"]: hit["score"] for hit in ranked}
        self.assertTrue(np.allclose(found[0], [expected[i] for i in range(len(TEXTS))], rtol=1e-6))

    def test_an_embedder_ranks_by_similarity(self):
        with Embedder(MODEL) as embedder:
            found = embedder.rerank("the lamp", TEXTS, top_k=3)
            query, texts = embedder.embed(["the lamp"], role="query"), embedder.embed(TEXTS, role="document")
            expected = embedder.similarity(query, texts)[0]
            many = embedder.rerank("the lamp", MANY)
        prompts = FIXTURES / "pipelines" / "prompts"
        with Embedder(prompts, prompt="lamp ") as embedder:
            # A prompt of the embedder is for all of its texts, in arrays as in files.
            hits = embedder.search(["a"], embedder.embed(["the wick"]))
            similarity = embedder.similarity(embedder.embed(["a"]), embedder.embed(["the wick"]))
            self.assertTrue(np.allclose(hits[0][0]["score"], similarity[0, 0], rtol=1e-6))
            self.assertRaisesRegex(SconceError, "^prompt of the embedder is for all texts", embedder.rerank, "a", ["b"])
        # Two of the texts are equal.
        self.assertEqual([rank["index"] for rank in found], [0, 4, 2])
        self.assertTrue(np.allclose([rank["score"] for rank in found], np.sort(expected)[::-1][:3], atol=1e-6))
        self.assertEqual(sorted(rank["index"] for rank in many), list(range(1500)))


class Heads(unittest.TestCase):
    def test_a_cross_encoder_scores_pairs(self):
        model = FIXTURES / "heads" / "cross-encoder-bert"
        with Reranker(model) as reranker, records(TEXTS) as file:
            rows = command_rows("rerank", "-m", model, "-i", file.name, "--query", "the lamp")
            expected = np.array([row["score"] for row in rows], np.float32)
            self.assertTrue(np.array_equal(reranker.score([("the lamp", text) for text in TEXTS]), expected))
            order = np.argsort(-expected, kind="stable").tolist()
            found = reranker.rerank("the lamp", TEXTS, top_k=2)
            self.assertEqual([rank["index"] for rank in found], order[:2])
            self.assertEqual(len(reranker.rerank("the lamp", MANY)), 1500)
            raw = reranker.score([("the lamp", TEXTS[0])], raw=True)
            self.assertAlmostEqual(1 / (1 + np.exp(-raw[0])), expected[0], places=6)
            self.assertEqual(reranker.score([]).shape, (0,))
            pairs = [("the lamp", text) for text in TEXTS]
            for kind in (np.array(pairs), np.array(pairs, dtype=object), list(np.array(pairs)), zip(["the lamp"] * 5, TEXTS), iter(pairs)):
                with self.subTest(kind=type(kind)):
                    self.assertTrue(np.array_equal(reranker.score(kind), expected))
            refused = r", not a list of pairs; pass \(query, text\) of each, such as list\(zip\(queries, texts\)\)$"
            for kind, name in [(pd.DataFrame(pairs), "DataFrame"), (dict(pairs), "dict"), ("ab", "str"), (None, "NoneType")]:
                self.assertRaisesRegex(TypeError, f"^pairs is a {name}{refused}", reranker.score, kind)
            self.assertRaisesRegex(TypeError, r"^pairs\[0\] is None, not a pair", reranker.score, [None])
            self.assertRaisesRegex(TypeError, "^query is None, not a text; pass a string$", reranker.rerank, None, ["a"])
            self.assertRaisesRegex(TypeError, r"^pairs\[1\] is 'ab', not a pair", reranker.score, [("a", "b"), "ab"])
            self.assertRaisesRegex(TypeError, r"^pairs\[0\]\[1\] is None", reranker.score, [("a", None)])
            self.assertRegex(repr(reranker), r"^Reranker\('.*cross-encoder-bert', max_length=\d+\)$")
            with self.assertWarnsRegex(TruncationWarning, r"^pairs\[1\] has "):
                reranker.score([("a", "b"), ("a", "the lamp " * 99)])
            with self.assertWarnsRegex(TruncationWarning, r"^texts\[1\] has "):
                reranker.rerank("a", ["b", "the lamp " * 99])

    def test_labels_and_entities_are_those_of_the_command_line(self):
        for kind, method, model, column, options, arguments in [
            (Classifier, "classify", "heads/bert", "labels", {}, []),
            (Classifier, "classify", "heads/bert", "labels", {"top_k": 0, "raw": True}, ["--top-k", "0", "--raw"]),
            (Tagger, "tag", "token-heads/ner-word-piece", "entities", {}, []),
            (Tagger, "tag", "token-heads/ner-word-piece", "entities", {"aggregation": "max"}, ["--aggregation", "max"]),
        ]:
            with self.subTest(method=method, options=options), kind(FIXTURES / model) as head, records(TEXTS) as file:
                found = getattr(head, method)(TEXTS, **options)
                expected = [row[column] for row in command_rows(method, "-m", FIXTURES / model, "-i", file.name, *arguments)]
                # Scores of rows are 32-bit floats.
                self.assertEqual(self.rounded(found), self.rounded(expected))
                self.assertEqual(len(getattr(head, method)(MANY)), 1500)

    def test_pairs_have_labels(self):
        pairs, model = [("the lamp", "burns"), ("a wick", "a key")], FIXTURES / "heads" / "bert"
        with Classifier(model) as classifier, records([pair[0] for pair in pairs]) as file:
            pathlib.Path(file.name).write_text("".join(json.dumps({"text": a, "b": b}) + "\n" for a, b in pairs))
            expected = [row["labels"] for row in command_rows("classify", "-m", model, "-i", file.name, "--pair-field", "b")]
            for given in (pairs, zip(*map(list, zip(*pairs))), np.array(pairs)):
                self.assertEqual(self.rounded(classifier.classify(given)), self.rounded(expected))
            self.assertRaisesRegex(TypeError, r"^pairs\[1\] is ", classifier.classify, [("a", "b"), "c"])

    def test_tokens_for_masks_are_those_of_the_command_line(self):
        model, texts = FIXTURES / "masked-lm" / "bert", ["the [MASK] burns", "[MASK] a [MASK]", "the [MASK] burns"]
        with MaskFiller(model) as filler, records(texts) as file:
            for options, arguments in [({}, []), ({"top_k": 2, "raw": True}, ["--top-k", "2", "--raw"])]:
                expected = [row["masks"] for row in command_rows("fill", "-m", model, "-i", file.name, *arguments)]
                found = filler.fill(texts, **options)
                self.assertEqual([self.rounded(masks) for masks in found], [self.rounded(masks) for masks in expected])
            self.assertEqual([len(masks) for masks in filler.fill(texts * 500)], [1, 2, 1] * 500)
            self.assertEqual(filler.fill([]), [])
            self.assertRaisesRegex(SconceError, r"^texts\[1\] .*\[MASK\]", filler.fill, ["a [MASK]", "a lamp"])

    def test_answers_are_those_of_the_command_line(self):
        model, question = FIXTURES / "token-heads" / "qa-word-piece", "what burns"
        texts = ["the lamp burns", "a wick in the lamp " * 30, "the lamp burns"]
        with Answerer(model) as answerer, records(texts) as file:
            for options, arguments in [({}, []), ({"top_k": 3, "max_answer_length": 2, "raw": True}, ["--top-k", "3", "--raw"])]:
                arguments += ["--max-answer-length", "2"] if options else []
                rows = command_rows("answer", "-m", model, "-i", file.name, "--question", question, *arguments)
                found = answerer.answer(question, texts, **options)
                self.assertEqual(*(self.rounded([row["answers"] for row in one]) for one in (found, rows)))
                for row, expected in zip(found, rows):
                    self.assertEqual(np.float32(row["no_answer"]), np.float32(expected["no_answer"]))
            self.assertEqual(len(answerer.answer(question, MANY)), 1500)
            self.assertRaisesRegex(TypeError, "^question is None", answerer.answer, None, texts)

    def rounded(self, rows):
        return [[{name: np.float32(value) if name == "score" else value for name, value in one.items()} for one in row] for row in rows]

    def test_a_model_for_another_task_names_its_class(self):
        for kind, model, expected in [
            (Embedder, "heads/cross-encoder-bert", "is no model for Embedder; use Reranker"),
            (Reranker, "bert-tiny", "is no model for Reranker; use Embedder"),
            (Classifier, "token-heads/ner-word-piece", "use Tagger"),
            (Tagger, "heads/bert", "use Classifier"),
            (Embedder, "masked-lm/bert", "use MaskFiller"),
            (MaskFiller, "token-heads/qa-word-piece", "use Answerer"),
            (Answerer, "bert-tiny", "use Embedder"),
        ]:
            self.assertRaisesRegex(SconceError, expected, kind, FIXTURES / model)


class AttentionWeights(unittest.TestCase):
    def test_weights_of_all_layers_or_one(self):
        with Embedder(MODEL) as embedder:
            found = embedder.attend("the lamp", "a wick")
            self.assertEqual(found.tokens, ["[CLS]", "the", "lamp", "[SEP]", *found.tokens[4:-1], "[SEP]"])
            self.assertEqual((found.weights.shape[2:], len(found.ids)), ((len(found.tokens),) * 2, len(found.tokens)))
            self.assertTrue(np.allclose(found.weights.sum(axis=3), 1, atol=1e-5))
            one = embedder.attend("the lamp", "a wick", layer=1, head=2).weights
            self.assertTrue(np.array_equal(one[0, 0], found.weights[1, 2]))
            one *= 2
            self.assertRaisesRegex(SconceError, "layer", embedder.attend, "the lamp", layer=99)
            self.assertRaisesRegex(SconceError, "^layer is -1; pass a number from 0 on$", embedder.attend, "a", layer=-1)
            self.assertRaisesRegex(SconceError, "^rollout is 'yes'; pass True or False$", embedder.attend, "a", rollout="yes")
            self.assertEqual(len(embedder.attend("--lamp", rollout=True).weights.shape), 4)


if __name__ == "__main__":
    unittest.main()
