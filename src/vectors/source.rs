//! What a format gives: vectors in blocks, and columns of rows.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::Result;

use super::buffer::BlockBuffer;
use super::sparse::TokenNumbers;
use crate::neighbours::{Block, Representation};
use crate::rows::{FieldValue, FileMetadata, KeptColumn, OutputDtype};

/// What takes the blocks of rows that are read.
pub(super) struct Blocks<'a> {
    /// Maximum number of rows of a block.
    pub max_rows: usize,
    /// The memory of a block.
    pub buffer: &'a mut BlockBuffer,
    /// Called with each block, in order. Break ends the reading.
    pub visit: &'a mut dyn FnMut(&Block) -> Result<ControlFlow<()>>,
}

/// The vectors of a file.
pub(super) trait Vectors: Send + Sync {
    /// The rows of the file in ranges that threads read on their own, of about `max_rows` rows where the
    /// format has no units of its own.
    fn units(&self, max_rows: usize) -> Vec<Range<usize>>;

    /// Reads a range of rows inside a unit, block by block.
    fn read(&self, rows: Range<usize>, blocks: Blocks) -> Result<ControlFlow<()>>;
}

/// The columns beside the vectors.
pub(super) trait Columns: Send + Sync {
    /// Names and types, in the order of the file.
    fn columns(&self) -> &[KeptColumn];

    /// The values of columns, given by their indices, in rows that are ascending and distinct: one list per
    /// row.
    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>>;
}

/// What a format knows about a file.
pub(super) struct Opened {
    /// Number of rows.
    pub rows: usize,
    /// Dimensions of a vector; 0 if a file of sparse vectors does not say it.
    pub dimensions: usize,
    /// What a row holds.
    pub representation: Representation,
    /// The numbers that stand for tokens in place of dimensions, in a file of sparse vectors by token.
    pub token_numbers: Option<Arc<TokenNumbers>>,
    /// Type of the stored elements.
    pub dtype: OutputDtype,
    /// Whether the file has elements of more bits than those of `dtype`, to which they are rounded.
    pub is_rounded: bool,
    /// Whether the values of the columns beside the vectors have the types that they were written with, and
    /// are not all text.
    pub has_types: bool,
    /// How the vectors were made; empty if the file does not say.
    pub metadata: FileMetadata,
    /// The vectors.
    pub vectors: Box<dyn Vectors>,
    /// The columns beside them.
    pub columns: Box<dyn Columns>,
}

impl Opened {
    /// A file whose rows hold `representation`, of vectors that are not rounded, without metadata.
    pub(super) fn new(
        rows: usize,
        representation: Representation,
        (dtype, dimensions): (OutputDtype, usize),
        vectors: Box<dyn Vectors>,
        columns: Box<dyn Columns>,
    ) -> Self {
        let (token_numbers, is_rounded, metadata) = (None, false, FileMetadata::default());
        Opened {
            rows,
            dimensions,
            representation,
            token_numbers,
            dtype,
            is_rounded,
            has_types: true,
            metadata,
            vectors,
            columns,
        }
    }
}

/// Ranges of at most `max_rows` rows.
pub(super) fn split(rows: Range<usize>, max_rows: usize) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(max_rows.max(1)).map(move |start| start..end.min(start.saturating_add(max_rows.max(1))))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn the_last_range_is_shorter() {
        assert_eq!(split(3..10, 3).collect::<Vec<_>>(), [3..6, 6..9, 9..10]);
        assert_eq!(split(3..3, 3).count(), 0);
    }
}
