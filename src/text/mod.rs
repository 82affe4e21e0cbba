//! From text to token ids, from a long text to chunks, and from lengths to batches.

mod chunks;
pub mod planner;
mod resolve;
mod settings;
pub mod tokenizer;
mod vocabulary;

pub use chunks::{Chunking, LateWindow, LongCharacter, Piece, late_windows, split};
pub use planner::{plan, runs};
pub use tokenizer::{TokenIds, Tokenizer, TokenizerOptions};
