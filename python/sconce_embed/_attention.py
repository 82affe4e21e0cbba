"""Attention weights as arrays, by `sconce attend`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._command import output_of
from ._model import command_arguments


@dataclass
class Attention:
    """Attention weights (layers, heads, T, T), whose row `i` is how token `i` weighs all tokens; and the tokens, with their ids."""

    weights: npt.NDArray[np.float32]
    tokens: list[str]
    ids: list[int]


def attend(command: str, options: Mapping[str, object], texts: Sequence[str]) -> Attention:
    """The attention weights of a text or a pair of texts."""
    output = output_of([command, "attend", "--quiet", "--output-format=safetensors", *command_arguments(options), "--", *texts])
    # The length of the header, the header, and the values of the only tensor.
    length = int.from_bytes(output[:8], "little")
    header = json.loads(output[8 : 8 + length])
    weights = np.frombuffer(output, "<f4", offset=8 + length).reshape(header["attentions"]["shape"]).copy()
    facts = header["__metadata__"]
    return Attention(weights, json.loads(facts["tokens"]), json.loads(facts["ids"]))
