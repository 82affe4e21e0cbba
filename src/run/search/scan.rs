//! Finds the neighbours of queries, and ranks them again by vectors of higher precision.

use anyhow::{Result, anyhow};
use rayon::prelude::*;

use super::SearchOptions;
use crate::neighbours::{Metric, Nearest, Neighbour, NotFinite, Scorer, Stored, rows_f32};
use crate::vectors::VectorFile;

/// The neighbours of each query, best first.
pub(super) fn nearest(
    options: &SearchOptions,
    file: &VectorFile,
    rescored: Option<&VectorFile>,
    metric: Metric,
    queries: &[Vec<f32>],
) -> Result<Vec<Vec<Neighbour>>> {
    let of_query = |NotFinite { row }| {
        anyhow!("query {} has a value that is not finite (NaN or infinity); remove the query", row + 1)
    };
    let dimensions = file.dimensions();
    let scorer = Scorer::new(metric, file.stored(), &queries.concat(), dimensions).map_err(of_query)?;
    let Some((rescored, rescore)) = rescored.zip(options.rescore.as_ref()) else {
        let nearest = Nearest::new(queries.len(), options.k, options.threshold);
        file.scan(0, &scorer, &nearest)?;
        return Ok(nearest.into_sorted());
    };
    let nearest = Nearest::new(queries.len(), options.k.saturating_mul(rescore.multiplier), None);
    file.scan(0, &scorer, &nearest)?;
    let scorer = Scorer::new(metric, Stored::Numbers, &queries.concat(), dimensions).map_err(of_query)?;
    let candidates = nearest.into_sorted().into_par_iter().enumerate();
    candidates.map(|(query, found)| rank(options, rescored, &scorer, query, found)).collect()
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
