//! What a text is to a model, and what becomes of a text over its limit.

use crate::named::Named;

/// What a text is: `encode_query` and `encode_document` of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A query.
    Query,
    /// A document.
    Document,
}

impl Named for Role {
    const ALL: &'static [Self] = &[Role::Query, Role::Document];

    fn name(self) -> &'static str {
        match self {
            Role::Query => "query",
            Role::Document => "document",
        }
    }
}

/// What to do with texts over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl Named for OnLong {
    const ALL: &'static [Self] = &[OnLong::Truncate, OnLong::Error, OnLong::Skip, OnLong::Mean];

    fn name(self) -> &'static str {
        match self {
            OnLong::Truncate => "truncate",
            OnLong::Error => "error",
            OnLong::Skip => "skip",
            OnLong::Mean => "mean",
        }
    }
}
