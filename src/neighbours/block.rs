//! Blocks of stored vectors: consecutive rows of a vector file.

/// The elements of a block, row-major.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// `(rows, dimensions)` in f32.
    F32(&'a [f32]),
    /// `(rows, dimensions)` in f16.
    F16(&'a [half::f16]),
    /// `(rows, dimensions)` of int8, with one scale per row: x ≈ scale · q.
    Int8 {
        /// Quantized elements.
        values: &'a [i8],
        /// One per row.
        scales: &'a [f32],
    },
    /// `(rows, ceil(dimensions / 8))`: signs, the first dimension in the most significant bit, stored as
    /// `np.packbits(x > 0) - 128`.
    Binary(&'a [i8]),
    /// The elements of sparse rows that are not zero, concatenated; [`Block::lengths`] has their number in
    /// each row.
    Sparse {
        /// The dimension of each element.
        indices: &'a [u32],
        /// The elements.
        values: &'a [f32],
    },
}

/// Consecutive rows of a vector file, or the vectors of consecutive rows with one vector per token.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// Index of the first row in the file.
    pub first_row: usize,
    /// Number of vectors: of rows, or of the tokens of all rows.
    pub rows: usize,
    /// The vectors of each row of a file with one vector per token, or the elements of each sparse row; empty
    /// for a file with one dense vector per row.
    pub lengths: &'a [usize],
    /// Elements of a vector; 0 where a file of sparse rows does not say it.
    pub dimensions: usize,
    /// The elements.
    pub elements: Elements<'a>,
}
