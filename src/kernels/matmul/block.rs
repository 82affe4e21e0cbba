//! Results: blocks of a matrix, which threads write side by side.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix that several threads write at once, each its own block.
#[derive(Debug)]
pub struct Blocks<'a> {
    data: *mut f32,
    rows: usize,
    columns: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: blocks that do not overlap, which `block` asks for, share no memory.
unsafe impl Sync for Blocks<'_> {}

impl<'a> Blocks<'a> {
    /// A matrix of so many columns.
    ///
    /// # Panics
    /// If it is not whole rows.
    pub fn new(data: &'a mut [f32], columns: usize) -> Self {
        assert!(data.len().is_multiple_of(columns), "rows are whole");
        Blocks { rows: data.len() / columns, data: data.as_mut_ptr(), columns, borrow: PhantomData }
    }

    /// A matrix of so many rows and columns that nobody has written yet.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn unwritten(data: &'a mut [MaybeUninit<f32>], rows: usize, columns: usize) -> Self {
        assert!(rows.checked_mul(columns).is_some_and(|count| data.len() >= count), "there is room");
        Blocks { rows, data: data.as_mut_ptr().cast(), columns, borrow: PhantomData }
    }

    /// A block of it.
    ///
    /// # Panics
    /// If the matrix has no such rows or columns.
    ///
    /// # Safety
    /// While it lives, no other block has any of its numbers. It is written before anything else is done to it.
    pub unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Block<'a> {
        assert!(rows.start <= rows.end && columns.start <= columns.end, "ranges do not run backwards");
        assert!(rows.end <= self.rows && columns.end <= self.columns, "the block lies inside");
        // SAFETY: it lies inside of what was borrowed.
        let data = unsafe { self.data.add(rows.start * self.columns + columns.start) };
        Block { data, stride: self.columns, rows: rows.len(), columns: columns.len(), borrow: PhantomData }
    }
}

/// A part of the rows and columns of a matrix, to be written.
#[derive(Debug)]
pub struct Block<'a> {
    pub(super) data: *mut f32,
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    borrow: PhantomData<&'a mut [f32]>,
}
