//! From text to token ids, and from lengths to batches.

pub mod planner;
pub mod tokenizer;

pub use planner::plan;
pub use tokenizer::{TokenIds, Tokenizer, TokenizerOptions};
