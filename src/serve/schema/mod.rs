//! The requests and answers of the server: bytes to a typed call, rows to bytes. Nothing here knows a model
//! or HTTP.
//!
//! ```text
//! body ──► fields ──► values ──► Embed, Rerank …  ──► (the engine) ──► rows ──► render ──► body
//! ```
//!
//! One file per schema: [`tei`] (text-embeddings-inference), [`openai`], [`rerank`] (Cohere and Jina),
//! [`ollama`], [`tasks`] (Sconce's own). They share the calls ([`Embed`] …), the errors ([`Fault`]), and what
//! is said about truncated texts ([`Truncated`]).
//!
//! A field that is `null` is absent. A field that the schema does not have, or whose value changes nothing,
//! is ignored, and its name is in `ignored` of the call, for the header that [`ignored_header`] writes.

mod calls;
mod error;
mod fields;
pub mod ollama;
pub mod openai;
mod render;
pub mod rerank;
pub mod tasks;
pub mod tei;
mod truncation;
mod values;

pub use calls::{
    Decode, Embed, OneOrMany, Predict, Rerank, ScoredDocument, SentenceSimilarity, TextAndPair, TextOptions,
    Tokenize, ignored_header,
};
pub use error::{Fault, FaultKind, Schema};
pub use truncation::{Truncated, truncated_header};
pub(super) use values::shown;
