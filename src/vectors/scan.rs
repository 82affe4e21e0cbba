//! Scoring all vectors of a file, on all threads.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, anyhow, bail};
use rayon::prelude::*;

use super::buffer::BlockBuffer;
use super::file::VectorFile;
use crate::neighbours::{
    Block, MaxSim, MaxSimBuffer, Neighbour, NotFinite, Scorer, Sink, SparseScorer, Stored, rows_f32,
};
use crate::rows::OutputDtype;

/// Size in bytes of the blocks that a thread reads and scores: they stay in L2.
const BLOCK_BYTES: usize = 384 << 10;
/// Rows with one vector per token that a thread reads at a time.
const TOKEN_BLOCK_ROWS: usize = 32;
/// Sparse rows that a thread reads at a time.
const SPARSE_BLOCK_ROWS: usize = 512;
/// Limits of the rows of a block.
const MIN_BLOCK_ROWS: usize = 64;
const MAX_BLOCK_ROWS: usize = 4096;

impl VectorFile {
    /// What queries are compared with in this file.
    pub fn stored(&self) -> Stored {
        match self.dtype() {
            OutputDtype::Binary | OutputDtype::Ubinary => Stored::Signs,
            OutputDtype::F32 | OutputDtype::F16 | OutputDtype::Int8 => Stored::Numbers,
        }
    }

    /// Scores the rows from `first_row` on, and offers them to `sink`. Returns the number of rows with a
    /// vector.
    pub fn scan(&self, first_row: usize, scorer: &Scorer, sink: &impl Sink) -> Result<usize> {
        let row_bytes = self.dtype().width(self.dimensions()) * self.dtype().element_bytes();
        let max_rows = (BLOCK_BYTES / row_bytes.max(1)).clamp(MIN_BLOCK_ROWS, MAX_BLOCK_ROWS);
        let units = self.units(max_rows);
        let next = AtomicUsize::new(0);
        let threads = rayon::current_num_threads().min(units.len());
        let scored = AtomicUsize::new(0);
        (0..threads).into_par_iter().with_max_len(1).try_for_each(|_| {
            let mut buffer = BlockBuffer::default();
            while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                let rows = unit.start.max(first_row)..unit.end;
                if rows.is_empty() {
                    continue;
                }
                let _ = self.read_unit(rows, max_rows, &mut buffer, |block| {
                    scorer.scan(block, sink).map_err(|error| anyhow!("{}: {error}", self.name()))?;
                    scored.fetch_add(block.rows, Ordering::Relaxed);
                    Ok(ControlFlow::Continue(()))
                })?;
            }
            anyhow::Ok(())
        })?;
        Ok(scored.into_inner())
    }

    /// Scores all rows of a file with one vector per token for each of `queries`, and offers them to `sink`.
    /// A row without vectors is no neighbour. Returns the number of rows that are not null.
    pub fn scan_tokens(&self, queries: &[MaxSim], sink: &impl Sink) -> Result<usize> {
        self.for_each_block_on_threads(TOKEN_BLOCK_ROWS, |block| self.score_tokens(block, queries, sink))
    }

    /// Scores all rows of a file with sparse vectors, and offers them to `sink`. Returns the number of rows
    /// with a vector.
    pub fn scan_sparse(&self, scorer: &SparseScorer, sink: &impl Sink) -> Result<usize> {
        self.for_each_block_on_threads(SPARSE_BLOCK_ROWS, |block| {
            scorer.scan(block, sink).map_err(|error| anyhow!("{}: {error}", self.name()))
        })
    }

    /// Calls `visit` with all blocks of at most `max_rows` rows that have as many lengths as rows; each
    /// thread reads units of its own. Returns the number of these rows.
    fn for_each_block_on_threads(
        &self,
        max_rows: usize,
        visit: impl Fn(&Block) -> Result<()> + Sync,
    ) -> Result<usize> {
        let (units, rows) = (self.units(max_rows), AtomicUsize::new(0));
        units.into_par_iter().with_max_len(1).try_for_each_init(BlockBuffer::default, |buffer, unit| {
            let _ = self.read_unit(unit, max_rows, buffer, |block| {
                visit(block)?;
                rows.fetch_add(block.lengths.len(), Ordering::Relaxed);
                Ok(ControlFlow::Continue(()))
            })?;
            anyhow::Ok(())
        })?;
        Ok(rows.into_inner())
    }

    /// Scores the rows of a block with one vector per token, on all threads.
    fn score_tokens(&self, block: &Block, queries: &[MaxSim], sink: &impl Sink) -> Result<()> {
        let mut converted = Vec::new();
        let vectors = rows_f32(block, 0..block.rows, &mut converted);
        let ends = block.lengths.iter().scan(0, |end, count| {
            *end += count * block.dimensions;
            Some(*end)
        });
        let rows: Vec<(usize, &[f32])> = ends
            .zip(block.lengths)
            .enumerate()
            .map(|(i, (end, count))| (block.first_row + i, &vectors[end - count * block.dimensions..end]))
            .collect();
        rows.into_par_iter().try_for_each_init(MaxSimBuffer::default, |buffer, (index, vectors)| {
            if vectors.iter().any(|x| !x.is_finite()) {
                bail!("{}: {}", self.name(), NotFinite { row: index });
            }
            for (i, query) in queries.iter().enumerate().filter(|_| !vectors.is_empty()) {
                sink.offer(i, Neighbour { index, score: query.score(vectors, buffer) });
            }
            Ok(())
        })
    }

    /// The rows of a range in f32, `(rows, dimensions)`; signs are ±1. Rows without a vector are zeros; they
    /// are the second result, counted from the first row of the range.
    pub fn rows_f32(&self, rows: Range<usize>) -> Result<(Vec<f32>, HashSet<usize>)> {
        let mut x = Vec::with_capacity(rows.len() * self.dimensions());
        let (mut buffer, mut missing) = (Vec::new(), HashSet::new());
        let fill = |x: &mut Vec<f32>, missing: &mut HashSet<usize>, end: usize| {
            missing.extend(x.len() / self.dimensions()..end - rows.start);
            x.resize((end - rows.start) * self.dimensions(), 0.0);
        };
        self.for_each_block(rows.start, MAX_BLOCK_ROWS, |block| {
            fill(&mut x, &mut missing, block.first_row.min(rows.end));
            let count = block.rows.min(rows.end.saturating_sub(block.first_row));
            x.extend_from_slice(rows_f32(block, 0..count, &mut buffer));
            let is_last = block.first_row + count >= rows.end;
            Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        fill(&mut x, &mut missing, rows.end);
        Ok((x, missing))
    }
}
