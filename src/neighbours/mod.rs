//! What texts are represented by, how they are compared, and exact nearest neighbours among stored vectors.
//!
//! A text is [`Encoded`] as one of three [`Representation`]s; a [`Similarity`] says what the score of two
//! texts is.
//!
//! A [`Scorer`] holds queries, scans blocks of stored vectors, and offers what can matter to a [`Sink`]:
//! [`Nearest`] keeps the k best of each query, [`Components`] the connected components of the pairs that
//! reach a threshold.
//!
//! ```
//! use sconce::neighbours::{Block, Elements, Metric, Nearest, Scorer, Stored};
//!
//! let rows = [1.0, 0.0, 0.0, 1.0, 3.0, 4.0];
//! let block = Block { first_row: 0, rows: 3, lengths: &[], dimensions: 2, elements: Elements::F32(&rows) };
//! let scorer = Scorer::new(Metric::Cosine, Stored::Numbers, &[0.0, 2.0], 2)?;
//! let nearest = Nearest::new(scorer.queries(), 2, None);
//! scorer.scan(&block, &nearest)?;
//! let found = &nearest.into_sorted()[0];
//! assert_eq!((found[0].index, found[0].score), (1, 1.0));
//! assert_eq!((found[1].index, found[1].score), (2, 0.8));
//! # Ok::<(), sconce::neighbours::NotFinite>(())
//! ```

mod block;
mod bound;
mod components;
mod max_sim;
mod metric;
mod order;
mod pairs;
mod representation;
mod rows;
mod scorer;
mod similarity;
mod sink;
mod sparse;
mod top_k;

pub use block::{Block, Elements};
pub use components::{Components, Membership};
pub use max_sim::{MaxSim, MaxSimBuffer};
pub use metric::Metric;
pub use order::descending;
pub use pairs::{Pair, TopPairs};
pub use representation::{Encoded, Representation, SparseVector};
pub use rows::rows_f32;
pub use scorer::{NotFinite, Scorer, Stored};
pub use similarity::{Compared, Similarity};
pub use sink::{Except, Neighbour, Sink};
pub use sparse::{SparseRow, SparseScorer};
pub use top_k::Nearest;
