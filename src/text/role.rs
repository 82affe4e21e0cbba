//! What a text is to a model, and what becomes of a text over its limit.

use crate::named::names;

/// What a text is: `encode_query` and `encode_document` of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A query.
    Query,
    /// A document.
    Document,
}

names!(Role { Query => "query", Document => "document" });

/// What to do with texts over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnLong {
    /// Truncate them.
    Truncate,
    /// End the run.
    Error,
    /// Skip them.
    Skip,
    /// Encode them in chunks and take the mean of the chunks' vectors, weighted by tokens.
    Mean,
}

names!(OnLong { Truncate => "truncate", Error => "error", Skip => "skip", Mean => "mean" });
