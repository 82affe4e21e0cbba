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

use std::fmt;

pub use crate::text::Chunking;
pub use choices::{Choices, PromptChoice};
pub use console::{Console, Verbosity, counted, thousands};
pub use embedder::{Chunk, Embedded, Embedder, OnLong, Tokens, Unfit, Window};
pub use load::{Loaded, ModelOptions, examine, load};

/// Options that contradict each other or the model: exit code 2, as for any wrong usage.
#[derive(Debug)]
pub struct WrongUsage(pub String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// Gives the process its worker threads; to be called once, before anything else.
///
/// # Errors
/// If the system grants no threads.
pub fn use_threads(threads: Option<usize>) -> anyhow::Result<()> {
    let threads = match threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(|error| {
        anyhow::anyhow!("cannot start {threads} threads ({error}); pass a smaller --threads")
    })
}
