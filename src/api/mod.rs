//! The public library: what `lib.rs` re-exports, one file per type. A door like the command line: it says
//! what comes in and how it goes out, and owns nothing that computes.
//!
//! * `model`: which model, and how it is loaded and computed. `engine`: the only file that loads models and
//!   encodes texts.
//! * `embedder`, `reranker`, `classifier`: texts in, vectors, scores and labels out. `vector_file`: nearest
//!   neighbours in files.
//! * `error`: one error, whose kind can be matched. `wording`: its message.

mod classifier;
mod embedder;
mod engine;
mod error;
mod model;
mod reranker;
mod vector_file;
mod wording;

pub use classifier::{Classification, Classifier};
pub use embedder::{Embedder, EmbedderBuilder, Embedding};
pub use error::{Error, ErrorKind};
pub use model::Model;
pub use reranker::{Reranker, RerankerBuilder, Score};
pub use vector_file::{Neighbour, VectorFile};
