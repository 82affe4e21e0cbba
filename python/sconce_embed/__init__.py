"""Text into vectors with BERT-style encoders.

    from sconce_embed import Embedder

    with Embedder("BAAI/bge-small-en-v1.5") as embedder:
        vectors = embedder.embed(["a lamp", "a light"])     # numpy (2, 384)
"""

from ._attention import Attention
from ._command import SconceError, find_command, run_command
from ._embedder import Embedder, Ranked, TokenVectors
from ._reports import TruncationWarning
from ._tasks import Answerer, Answers, Classifier, MaskFiller, Reranker, Tagger

__all__ = [
    "Answerer", "Answers", "Attention", "Classifier", "Embedder", "MaskFiller", "Ranked", "Reranker", "SconceError", "Tagger",
    "TokenVectors", "TruncationWarning", "find_command", "run_command",
]
