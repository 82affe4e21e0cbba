//! Sconce turns text into vectors with BERT-style encoders: embedding models, sparse encoders, multi-vector
//! models, rerankers and classifiers of the Hugging Face Hub, on a CPU or a GPU. This is the library; the
//! command line `sconce` does the same with files.
//!
//! ```
//! use sconce::Embedder;
//!
//! # let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert-tiny");
//! # let from_the_hub = |_id: &str| directory;
//! let embedder = Embedder::open(from_the_hub("BAAI/bge-small-en-v1.5"))?;
//! let embeddings = embedder.embed(&["A lamp in the window", "The candle burns"])?;
//! let [lamp, candle] = &embeddings[..] else { unreachable!() };
//! println!("{} dimensions", lamp.vector.len());
//! println!("similarity {:.3}", embedder.similarity(&lamp.vector, &candle.vector));
//! # assert_eq!(lamp.vector.len(), embedder.dimensions());
//! # Ok::<(), sconce::Error>(())
//! ```
//!
//! A model is an id on the hub or a directory. From the hub it is downloaded once, into the cache that all
//! Hugging Face tools share. Pooling, normalization, prompts and limits are those of the model's files. A
//! vector has the bits that `sconce embed` writes, and does not depend on the texts that are embedded with
//! it.
//!
//! # Choices
//!
//! [`Model`] has the choices that are the same for every task, [`Embedder::builder`] and
//! [`Reranker::builder`] those of one:
//!
//! ```
//! use sconce::{ComputeDtype, Embedder, Model};
//!
//! # let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert-tiny");
//! let model = Model::new(directory).dtype(ComputeDtype::Int8).offline(true);
//! let embedder = Embedder::builder(model).prompt("passage: ").dimensions(16).normalize(true).open()?;
//! assert_eq!(embedder.dimensions(), 16);
//! # Ok::<(), sconce::Error>(())
//! ```
//!
//! # Long texts
//!
//! A text over the model's limit is truncated, and its result tells by how much. [`OnLong`] has the other
//! ways:
//!
//! ```
//! use sconce::{Embedder, ErrorKind, Model, OnLong};
//!
//! # let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert-tiny");
//! let long = "lamp ".repeat(100);
//! let texts = ["lamp", &long];
//! let model = Model::new(directory).max_length(32);
//! let embeddings = Embedder::open(model.clone())?.embed(&texts)?;
//! assert_eq!((embeddings[0].truncated_tokens, embeddings[1].truncated_tokens), (0, 70));
//!
//! let error = Embedder::open(model.on_long(OnLong::Error))?.embed(&texts).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::TooLong { index: 1, tokens: 102, limit: 32 });
//! # Ok::<(), sconce::Error>(())
//! ```
//!
//! # Search
//!
//! [`VectorFile`] searches what `sconce embed` has written: exactly, from the disk, without loading it.
//! Queries may need a prompt of their own or another length, which [`Embedder::embed_queries`] takes from the
//! model's files.
//!
//! ```no_run
//! use sconce::{Embedder, VectorFile};
//!
//! let embedder = Embedder::open("intfloat/e5-small-v2")?;
//! let corpus = VectorFile::open("corpus.parquet")?;
//! let query = embedder.embed_queries(&["how do lamps work"])?.remove(0);
//! for hit in corpus.search(&query.vector, 10)? {
//!     println!("{:.3} {}", hit.score, hit.id.unwrap_or_else(|| hit.index.to_string()));
//! }
//! # Ok::<(), sconce::Error>(())
//! ```
//!
//! # Other models
//!
//! | | a text becomes | in a file |
//! |---|---|---|
//! | embedding model | [`Embedder::embed`]: a vector | [`VectorFile::search`] |
//! | sparse encoder, such as SPLADE | [`Embedder::embed_sparse`]: a [`SparseVector`] | [`VectorFile::search_sparse`] |
//! | multi-vector model, such as ColBERT | [`Embedder::embed_tokens`]: a vector per token | [`VectorFile::search_tokens`] |
//! | cross-encoder | [`Reranker::rank`]: a [`Score`] for a query | |
//! | classifier | [`Classifier::classify`]: a [`Label`] with a score, or several | |
//!
//! # Errors
//!
//! Every function returns the one [`Error`]: a sentence for people, and an [`ErrorKind`] to match, with the
//! index of the text where a text is the reason.
//!
//! # What it does to a program
//!
//! Nothing is printed: what the command line would warn of is in [`Embedder::warnings`]. No signal is
//! handled, and no global pool of threads is built or used: models are loaded by one pool of Sconce's own,
//! and each encodes on threads of its own, as many as [`Model::threads`] says. Types can be shared by
//! threads. Files are written in two caches only: that of the hub, and that of packed weights
//! ([`Model::weight_cache`]), in which a GPU also has the outcome of the check of its kernels.
//!
//! The allocator is the program's choice. That of glibc returns large blocks to the system at once and gets
//! them again page by page, which takes a tenth of the time with a small model. The command line has
//! mimalloc, with which a program is as fast as it. While texts are embedded, it keeps freed memory for 250
//! ms rather than 10, unless the program or `MIMALLOC_PURGE_DELAY` sets another time:
//!
//! ```no_run
//! #[global_allocator]
//! static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
//! ```
//!
//! The other modules are internal and change without notice.

mod api;
#[doc(hidden)]
pub mod checkpoint;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod figure;
#[doc(hidden)]
pub mod formats;
#[doc(hidden)]
pub mod hub;
#[doc(hidden)]
pub mod input;
#[doc(hidden)]
pub mod job;
#[doc(hidden)]
pub mod load;
#[doc(hidden)]
pub mod model;
#[doc(hidden)]
pub mod named;
#[doc(hidden)]
pub mod neighbours;
#[doc(hidden)]
pub mod nn;
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod ops;
#[doc(hidden)]
pub mod rows;
#[doc(hidden)]
pub mod run;
#[cfg(feature = "serve")]
#[doc(hidden)]
pub mod serve;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod task;
#[doc(hidden)]
pub mod text;
#[doc(hidden)]
pub mod vectors;

pub use api::{
    Classification, Classifier, Embedder, EmbedderBuilder, Embedding, Error, ErrorKind, Model, Neighbour,
    Reranker, RerankerBuilder, Score, VectorFile,
};
pub use model::modules::Role;
pub use neighbours::{Metric, SparseVector};
pub use nn::{ComputeDtype, DeviceRequest as Device, Pool, Pooling};
pub use rows::LabelScore as Label;
pub use task::OnLong;
pub use text::{PairTruncation, TruncationSide};

#[doc(hidden)]
pub use sconce_kernels as kernels;
