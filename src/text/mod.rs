//! From a text to its tokens, and from a long text to chunks.
//!
//! * [`tokenizer`]: the tokenizer of a model: encoding, truncation, special tokens. It is built by
//!   `tokenizer_json` from a `tokenizer.json`, by `vocab_files` from a `vocab.txt` or a `vocab.json` with
//!   `merges.txt`, or by `sentence_piece_files` from the file of a SentencePiece model, which
//!   `sentence_piece` parses; they ask `tokenizer_config` for the settings and special tokens in the files
//!   next to it, and `tokenizer_class` for what the model's tokenizer class does; `bpe_parts` has the classes
//!   with a BPE model.
//! * `words`: how a tokenizer splits texts into words. `token_model`: how it splits words into tokens, by the
//!   library or by `word_piece`.
//! * `alignment`: where the tokens of a text are in the text. `windows`: tokenizing with alignment, in
//!   windows of a long text.
//! * `pieces`: how very long texts are tokenized. `protobuf`: the fields of protocol buffers.
//! * `character_map`: the check of a normalizer's map of characters. `chat_template`: the template that
//!   renders messages as a text.
//! * `chunks`: the ends of the chunks of a long text.
//! * `sequences`: the token sequences of one text. `role`: what a text is to a model, and what becomes of one
//!   over the limit.

mod alignment;
mod bpe_parts;
mod character_map;
mod chat_template;
mod chunks;
mod pieces;
mod protobuf;
mod role;
mod sentence_piece;
mod sentence_piece_files;
mod sequences;
mod token_model;
pub mod tokenizer;
mod tokenizer_class;
mod tokenizer_config;
mod tokenizer_json;
mod vocab_files;
mod windows;
mod word_piece;
mod words;

pub use alignment::{Alignment, Characters, TokenSpan};
pub use chat_template::{ChatTemplate, Message};
pub use chunks::{Chunking, LateSequence, OversizedCharacter, TokenizedChunk, late_sequences, split};
pub use role::{OnLong, Role};
pub use sequences::{Chunk, Sequence, TokenizedText, consecutive_runs};
pub use tokenizer::{PairTruncation, TokenIds, Tokenizer, TokenizerOptions, TruncationSide};
pub use windows::{NoRoom, Windows};
