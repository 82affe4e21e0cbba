//! The nearest neighbours of queries among the rows of a file.

use anyhow::Result;
use thiserror::Error;

use super::file::VectorFile;
use crate::error::UsageError;
use crate::neighbours::{
    MaxSim, Metric, Neighbour, NotFinite, Scorer, Similarity, SparseRow, SparseScorer, SparseVector,
};
use crate::rows::metadata::Key;

/// The neighbours that a scan of a whole file has found.
#[derive(Debug)]
pub struct Found {
    /// Those of each query, best first; equal scores by row.
    pub neighbours: Vec<Vec<Neighbour>>,
    /// The rows that were scored: those with a vector.
    pub scored: usize,
}

/// A query that cannot be compared with anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "query {} has {}a value that is not finite (NaN or infinity); remove the query",
    .query + 1,
    if *.by_tokens { "no vectors, or " } else { "" }
)]
pub struct UnusableQuery {
    /// Its index, from 0.
    pub query: usize,
    /// Whether queries are the vectors of tokens, of which there may be none.
    by_tokens: bool,
}

impl VectorFile {
    /// The metric that the metadata of the file names; cosine if it names none.
    ///
    /// # Errors
    /// If there is no such metric: a usage error.
    pub fn metric(&self) -> Result<Metric> {
        let Some(name) = self.metadata().get(Key::Similarity) else { return Ok(Metric::default()) };
        self.similarity().and_then(Similarity::metric).ok_or_else(|| {
            UsageError(format!(
                "the similarity function of {} is {name}, which search does not support; pass --metric",
                self.name()
            ))
            .into()
        })
    }

    /// The nearest neighbours of dense queries, `(queries, dimensions)`: at most `k` of each, with scores of
    /// at least `threshold`.
    ///
    /// # Errors
    /// [`UnusableQuery`] if a value of a query is not finite. If the file cannot be read, or has a value that
    /// is not finite.
    pub fn nearest(
        &self,
        metric: Metric,
        queries: &[f32],
        k: usize,
        threshold: Option<f32>,
    ) -> Result<Found> {
        let scorer = Scorer::new(metric, self.stored(), queries, self.dimensions()).map_err(of_query)?;
        let nearest = self.sink(scorer.queries(), k, threshold);
        let scored = self.scan(0, &scorer, &nearest)?;
        Ok(Found { neighbours: nearest.into_sorted(), scored })
    }

    /// The nearest neighbours of sparse queries. A file by token gets numbers for the tokens of the queries.
    pub fn nearest_sparse(
        &self,
        queries: &[&SparseVector],
        k: usize,
        threshold: Option<f32>,
    ) -> Result<Found> {
        let indices = |query: &&SparseVector| match self.token_numbers() {
            Some(numbers) => query.tokens.iter().map(|token| numbers.number(token)).collect(),
            None => query.indices.clone(),
        };
        let indices: Vec<Vec<u32>> = queries.iter().map(indices).collect();
        let rows = indices.iter().zip(queries);
        let rows: Vec<_> =
            rows.map(|(indices, query)| SparseRow { indices, values: &query.values }).collect();
        let scorer = SparseScorer::new(&rows).map_err(of_query)?;
        let nearest = self.sink(queries.len(), k, threshold);
        let scored = self.scan_sparse(&scorer, &nearest)?;
        Ok(Found { neighbours: nearest.into_sorted(), scored })
    }

    /// The nearest neighbours of queries with one vector per token, concatenated, in a file with one vector
    /// per token. `mean`: scores are divided by the number of query tokens.
    ///
    /// # Errors
    /// As [`VectorFile::nearest`]; [`UnusableQuery`] also for a query without vectors.
    pub fn nearest_by_tokens(
        &self,
        mean: bool,
        queries: &[&[f32]],
        k: usize,
        threshold: Option<f32>,
    ) -> Result<Found> {
        let is_usable = |query: &&[f32]| !query.is_empty() && query.iter().all(|x| x.is_finite());
        if let Some(query) = queries.iter().position(|query| !is_usable(query)) {
            return Err(UnusableQuery { query, by_tokens: true }.into());
        }
        let queries: Vec<MaxSim> =
            queries.iter().map(|query| MaxSim::new(query, self.dimensions(), mean)).collect();
        let nearest = self.sink(queries.len(), k, threshold);
        let scored = self.scan_tokens(&queries, &nearest)?;
        Ok(Found { neighbours: nearest.into_sorted(), scored })
    }
}

/// The error for a query with a value that is not finite.
fn of_query(NotFinite { row }: NotFinite) -> UnusableQuery {
    UnusableQuery { query: row, by_tokens: false }
}
