"""Text into vectors with BERT-style encoders.

    from sconce_embed import Embedder

    with Embedder("BAAI/bge-small-en-v1.5") as embedder:
        vectors = embedder.embed(["a lamp", "a light"])     # pyarrow.FixedSizeListArray
"""

from ._command import SconceError, find_command, run_command
from ._embedder import Embedder

__all__ = ["Embedder", "SconceError", "find_command", "run_command"]
