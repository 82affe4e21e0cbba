//! Finds the neighbours of queries, and ranks them again by vectors of higher precision.

use anyhow::{Result, anyhow};
use rayon::prelude::*;

use super::SearchOptions;
use crate::neighbours::{
    Encoded, Neighbour, NotFinite, Representation, Scorer, Similarity, SparseVector, Stored, rows_f32,
};
use crate::sys::console::{Console, counted};
use crate::vectors::{Found, VectorFile};

/// The neighbours of each query, best first.
pub(super) fn nearest(
    options: &SearchOptions,
    file: &VectorFile,
    rescored: Option<&VectorFile>,
    similarity: Similarity,
    queries: &[Encoded],
) -> Result<Vec<Vec<Neighbour>>> {
    let SearchOptions { k, threshold, .. } = *options;
    let found = |found: Found| {
        report_missing(options, file, found.scored);
        found.neighbours
    };
    let Some(metric) = similarity.metric() else {
        let queries: Vec<&[f32]> = queries.iter().filter_map(Encoded::dense).collect();
        let mean = similarity == Similarity::MeanMaxSim;
        return file.nearest_by_tokens(mean, &queries, k, threshold).map(found);
    };
    if file.representation() == Representation::Sparse {
        let queries: Vec<&SparseVector> = queries.iter().filter_map(Encoded::sparse).collect();
        return file.nearest_sparse(&queries, k, threshold).map(found);
    }
    let queries: Vec<f32> = queries.iter().filter_map(Encoded::dense).flatten().copied().collect();
    let Some((rescored, rescore)) = rescored.zip(options.rescore.as_ref()) else {
        return file.nearest(metric, &queries, k, threshold).map(found);
    };
    let candidates = file.nearest(metric, &queries, k.saturating_mul(rescore.multiplier), None).map(found)?;
    let scorer = Scorer::new(metric, Stored::Numbers, &queries, file.dimensions())?;
    let candidates = candidates.into_par_iter().enumerate();
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
    candidates.sort_by_key(Neighbour::rank);
    candidates.truncate(options.k);
    Ok(candidates)
}
