//! Finds the neighbours of queries, and ranks them again by vectors of higher precision.

use anyhow::{Error, Result, anyhow, bail};
use rayon::prelude::*;

use super::SearchOptions;
use crate::neighbours::{
    MaxSim, Metric, Nearest, Neighbour, NotFinite, Scorer, SparseRow, SparseScorer, Stored, rows_f32,
};
use crate::output::SparseVector;
use crate::sys::console::{Console, counted};
use crate::task::TextVector;
use crate::vectors::VectorFile;

/// How queries are compared with the rows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// By a metric of two vectors.
    Metric(Metric),
    /// By the dot product of sparse vectors.
    SparseDot,
    /// By the vectors of their tokens. `mean`: scores are divided by the number of query tokens.
    MaxSim { mean: bool },
}

/// The neighbours of each query, best first.
pub(super) fn nearest(
    options: &SearchOptions,
    file: &VectorFile,
    rescored: Option<&VectorFile>,
    comparison: Comparison,
    queries: &[TextVector],
) -> Result<Vec<Vec<Neighbour>>> {
    let dense: Vec<&Vec<f32>> = queries.iter().filter_map(TextVector::dense).collect();
    let metric = match comparison {
        Comparison::Metric(metric) => metric,
        Comparison::SparseDot => return nearest_sparse(options, file, queries),
        Comparison::MaxSim { mean } => return nearest_by_tokens(options, file, mean, &dense),
    };
    let dimensions = file.dimensions();
    let queries: Vec<f32> = dense.into_iter().flatten().copied().collect();
    let scorer = Scorer::new(metric, file.stored(), &queries, dimensions).map_err(of_query)?;
    let Some((rescored, rescore)) = rescored.zip(options.rescore.as_ref()) else {
        let nearest = Nearest::new(scorer.queries(), options.k, options.threshold);
        report_missing(options, file, file.scan(0, &scorer, &nearest)?);
        return Ok(nearest.into_sorted());
    };
    let nearest = Nearest::new(scorer.queries(), options.k.saturating_mul(rescore.multiplier), None);
    report_missing(options, file, file.scan(0, &scorer, &nearest)?);
    let scorer = Scorer::new(metric, Stored::Numbers, &queries, dimensions).map_err(of_query)?;
    let candidates = nearest.into_sorted().into_par_iter().enumerate();
    candidates.map(|(query, found)| rank(options, rescored, &scorer, query, found)).collect()
}

/// Warns of the rows that a scan of the whole file has not scored, because they have no vector.
fn report_missing(options: &SearchOptions, file: &VectorFile, scored: usize) {
    warn_of_missing(file, file.rows().saturating_sub(scored), &options.console);
}

/// Warns of rows that have no vector.
pub(in crate::run) fn warn_of_missing(file: &VectorFile, rows: usize, console: &Console) {
    if rows > 0 {
        let (have, are) = if rows == 1 { ("has", "is") } else { ("have", "are") };
        let rows = counted(rows as u64, "row");
        console.warn(format!("{rows} of {} {have} no vector (null) and {are} not compared", file.name()));
    }
}

/// The error for a query with a value that is not finite.
fn of_query(NotFinite { row }: NotFinite) -> Error {
    anyhow!("query {} has a value that is not finite (NaN or infinity); remove the query", row + 1)
}

/// The neighbours of each sparse query, best first. A file by token gets numbers for the tokens of the queries.
fn nearest_sparse(
    options: &SearchOptions,
    file: &VectorFile,
    queries: &[TextVector],
) -> Result<Vec<Vec<Neighbour>>> {
    let queries: Vec<&SparseVector> = queries.iter().filter_map(TextVector::sparse).collect();
    let indices = |query: &&SparseVector| match file.token_numbers() {
        Some(numbers) => query.tokens.iter().map(|token| numbers.number(token)).collect(),
        None => query.indices.clone(),
    };
    let indices: Vec<Vec<u32>> = queries.iter().map(indices).collect();
    let rows = indices.iter().zip(&queries);
    let rows: Vec<_> = rows.map(|(indices, query)| SparseRow { indices, values: &query.values }).collect();
    let scorer = SparseScorer::new(&rows).map_err(of_query)?;
    let nearest = Nearest::new(queries.len(), options.k, options.threshold);
    report_missing(options, file, file.scan_sparse(&scorer, &nearest)?);
    Ok(nearest.into_sorted())
}

/// The neighbours of each query by the vectors of its tokens, best first.
fn nearest_by_tokens(
    options: &SearchOptions,
    file: &VectorFile,
    mean: bool,
    queries: &[&Vec<f32>],
) -> Result<Vec<Vec<Neighbour>>> {
    let is_usable = |query: &&Vec<f32>| !query.is_empty() && query.iter().all(|x| x.is_finite());
    if let Some(query) = queries.iter().position(|query| !is_usable(query)) {
        bail!(
            "query {} has no vectors, or a value that is not finite (NaN or infinity); remove the query",
            query + 1
        );
    }
    let max_sim = |query: &&Vec<f32>| MaxSim::new(query, file.dimensions(), mean);
    let queries: Vec<MaxSim> = queries.iter().map(max_sim).collect();
    let nearest = Nearest::new(queries.len(), options.k, options.threshold);
    report_missing(options, file, file.scan_tokens(&queries, &nearest)?);
    Ok(nearest.into_sorted())
}

/// Ranks the candidates of a query by the vectors of another file.
fn rank(
    options: &SearchOptions,
    file: &VectorFile,
    scorer: &Scorer,
    query: usize,
    mut candidates: Vec<Neighbour>,
) -> Result<Vec<Neighbour>> {
    candidates.sort_unstable_by_key(|candidate| candidate.index);
    let rows: Vec<usize> = candidates.iter().map(|candidate| candidate.index).collect();
    file.read_rows(&rows, |block| {
        let mut buffer = Vec::new();
        let vectors = rows_f32(block, 0..block.rows, &mut buffer);
        for (candidate, x) in candidates.iter_mut().zip(vectors.chunks_exact(block.dimensions)) {
            if x.iter().any(|x| !x.is_finite()) {
                return Err(anyhow!("{}: {}", file.name(), NotFinite { row: candidate.index }));
            }
            candidate.score = scorer.score(query, x);
        }
        Ok(())
    })?;
    candidates.retain(|candidate| options.threshold.is_none_or(|threshold| candidate.score >= threshold));
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index)));
    candidates.truncate(options.k);
    Ok(candidates)
}
