//! One file a subcommand, a folder for `embed`, over what they share: loading a model, the path from texts to vectors, and
//! talking to the person at the terminal.

mod choices;
mod console;
pub mod download;
pub mod embed;
mod embedder;
mod heads;
pub mod inspect;
mod load;
mod threads;

use std::fmt;

pub use crate::text::Chunking;
pub use choices::{Choices, PromptChoice};
pub use console::{Console, MOMENT, Verbosity, counted, thousands};
pub use embedder::{Chunk, Embedded, Embedder, OnLong, Tokens, Unfit, Window};
pub use load::{Loaded, ModelOptions, examine, load};
pub use threads::use_threads;

/// Options that contradict each other or the model: exit code 2, as for any wrong usage.
#[derive(Debug)]
pub struct WrongUsage(pub String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}
