//! From text to token ids, and from lengths to batches.

pub mod planner;
mod resolve;
mod settings;
pub mod tokenizer;
mod vocabulary;

pub use planner::{plan, runs};
pub use tokenizer::{TokenIds, Tokenizer, TokenizerOptions};
