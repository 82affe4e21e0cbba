//! The output of a GEMM: a matrix that several threads write, each its own block.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A row-major matrix whose disjoint blocks several threads write concurrently. Its memory may be
/// uninitialised: it is accessed only through raw pointers, never through `&mut [f32]`.
#[derive(Debug)]
pub struct OutputMatrix<'a> {
    data: *mut f32,
    rows: usize,
    columns: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the data is accessed only through blocks, and the contract of `block` requires that blocks alive at
// the same time are disjoint.
unsafe impl Sync for OutputMatrix<'_> {}

impl<'a> OutputMatrix<'a> {
    /// A matrix of `data.len() / columns` rows.
    ///
    /// # Panics
    /// If the length of `data` is not a multiple of `columns`.
    pub fn new(data: &'a mut [f32], columns: usize) -> Self {
        assert!(data.len().is_multiple_of(columns), "the length is a multiple of the columns");
        OutputMatrix { rows: data.len() / columns, data: data.as_mut_ptr(), columns, borrow: PhantomData }
    }

    /// A matrix of `rows` rows and `columns` columns in memory that need not be initialised.
    ///
    /// # Panics
    /// If `data` has fewer than `rows · columns` elements.
    pub fn uninit(data: &'a mut [MaybeUninit<f32>], rows: usize, columns: usize) -> Self {
        assert!(
            rows.checked_mul(columns).is_some_and(|count| data.len() >= count),
            "the matrix fits into its memory"
        );
        OutputMatrix { rows, data: data.as_mut_ptr().cast(), columns, borrow: PhantomData }
    }

    /// The block of `rows` and `columns`.
    ///
    /// # Panics
    /// If the matrix does not contain the block, or a range is reversed.
    ///
    /// # Safety
    /// The block shares no element with another block that is alive. Until it has been written, its elements
    /// are not read.
    pub unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> OutputBlock<'a> {
        assert!(rows.start <= rows.end && columns.start <= columns.end, "ranges are not reversed");
        assert!(rows.end <= self.rows && columns.end <= self.columns, "the matrix contains the block");
        // SAFETY: by the assertions the offset is at most the length of the borrowed memory, which the
        // pointer is derived from.
        let data = unsafe { self.data.add(rows.start * self.columns + columns.start) };
        OutputBlock {
            data,
            stride: self.columns,
            rows: rows.len(),
            columns: columns.len(),
            borrow: PhantomData,
        }
    }
}

/// A block of an [`OutputMatrix`].
#[derive(Debug)]
pub struct OutputBlock<'a> {
    /// The first element; valid for writes of `columns` values at every multiple of `stride` below
    /// `rows · stride`.
    pub(super) data: *mut f32,
    /// Elements from the start of one row to the start of the next.
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

impl<'a> OutputBlock<'a> {
    /// A row-major matrix of `columns` columns as one block.
    ///
    /// # Panics
    /// If the length of `data` is not a multiple of `columns`.
    pub fn whole(data: &'a mut [f32], columns: usize) -> Self {
        let matrix = OutputMatrix::new(data, columns);
        // SAFETY: the matrix borrows `data` mutably and has no other block.
        unsafe { matrix.block(0..matrix.rows, 0..columns) }
    }
}
