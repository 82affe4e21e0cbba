#!/usr/bin/env python3
"""Makes the model of a config with random weights, as a directory of sentence-transformers.

    python scripts/bench/full_size_models.py CONFIG.json POOLING TOKENIZER_DIR OUT_DIR [LAYERS]

TOKENIZER_DIR is all-MiniLM-L6-v2, whose tokenizer and modules the model gets: all models then have the same tokens. Its ids are in every
vocabulary, and its texts have at most 256 tokens. LAYERS replaces the number of layers, for a trial.
"""

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "check"))
from full_size import random_model, widen  # noqa: E402


def main():
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    (config, base, out), pooling = (Path(sys.argv[index]) for index in (1, 3, 4)), sys.argv[2]
    fields = json.loads(config.read_text())
    if len(sys.argv) == 6:
        fields["num_hidden_layers"] = int(sys.argv[5])
        fields.pop("max_window_layers", None)
    model, _ = random_model(fields)
    widen(model)
    model.save_pretrained(out, max_shard_size="100GB")
    for name in ("tokenizer.json", "modules.json"):
        shutil.copy(base / name, out)
    # A class that reads tokenizer.json as it is, and no inputs that some models do not have.
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 256, "model_input_names": ["input_ids", "attention_mask"]}
    tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer | tokens))
    (out / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256, "do_lower_case": False}))
    (out / "1_Pooling").mkdir()
    modes = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    flags = {f"pooling_mode_{name}": mode == pooling for mode, name in modes.items()}
    (out / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": model.config.hidden_size} | flags))


if __name__ == "__main__":
    main()
