//! Sconce turns text into vectors with BERT-style encoders.
//!
//! # The path of a text
//!
//! ```text
//! input ──► tokenize ──► plan ──► encode ──► pool ──► finish ──► output
//! Record    TokenIds     Batch    hidden     vectors  heads      rows, in
//! {id,text} ids+types    ragged,  (T, H)     (N, D)              input order
//!                        no pads
//! ```
//!
//! One direction, one pass. A batch is *ragged*: the tokens of all its texts lie one after another in one
//! `(T, H)` tensor with the texts' offsets beside it, so nothing is computed for padding and no text's vector
//! depends on its neighbours.
//!
//! # The rooms
//!
//! Imports run downward only: `main → cli → run → {input, text, model, nn, output}` and
//! `model → nn → ops → kernels`; `tests/layering.rs` holds this.
//!
//! * [`cli`]: what was typed; the only room that knows clap.
//! * [`run`]: one file a subcommand; the only room that knows every stage of the path.
//! * [`input`]: [`input::Record`] and its readers, one file a format.
//! * [`text`]: the tokenizer, the chunks of a long text, and the planner that turns lengths into batches.
//! * [`model`]: what a model's files say: files, config, families, names, weights, pipeline.
//! * [`nn`]: the maths over candle tensors.
//! * [`ops`]: candle operations with a plain reference, a CPU path and, where it pays, a launch on a GPU each; the engine that
//!   says where a stack runs.
//! * [`kernels`]: loops over slices, no candle type in sight; in `cuda/` those for GPUs.
//! * [`output`]: writers, one file a format; the destination that can be continued; manifest and ledger.
//!
//! Beside the rooms are [`field`], the values that are carried through from input to output, [`guard`], which keeps the panics of
//! libraries away from the program, [`disk`], which opens a model's files, and [`terminal`], which writes to standard error.

pub mod cli;
pub mod disk;
pub mod field;
pub mod guard;
pub mod input;
pub mod kernels;
pub mod model;
pub mod nn;
pub mod ops;
pub mod output;
pub mod run;
pub mod terminal;
pub mod text;
