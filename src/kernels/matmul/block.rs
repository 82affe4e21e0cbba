//! Results: blocks of a matrix, which threads write side by side.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use crate::kernels::activation::Activation;
use crate::kernels::isa::{Isa, Kernel};
use crate::kernels::simd::{Simd, map, map_with};

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
        assert!(data.len() >= rows * columns, "there is room");
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

impl Block<'_> {
    /// Some columns.
    pub(super) fn part(&mut self, columns: Range<usize>) -> Block<'_> {
        assert!(columns.end <= self.columns, "the columns lie inside");
        // SAFETY: they lie inside of what was borrowed.
        let data = unsafe { self.data.add(columns.start) };
        Block { data, columns: columns.len(), borrow: PhantomData, ..*self }
    }

    /// Its rows, which have been written.
    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        // SAFETY: rows of a block lie inside of what was borrowed, apart from each other, and are nobody else's.
        (0..self.rows)
            .map(|row| unsafe { slice::from_raw_parts_mut(self.data.add(row * self.stride), self.columns) })
    }

    /// Applies an activation to every number.
    pub fn activate(&mut self, isa: Isa, activation: Activation) {
        activation.apply_to_all(isa, self.rows_mut());
    }

    /// Adds rows that lie `stride` apart in `x`, each from `first` on.
    pub fn add(&mut self, isa: Isa, x: &[f32], stride: usize, first: usize) {
        let rows = self.rows_mut().zip(x.chunks(stride));
        isa.run(Add { rows: rows.map(|(row, x)| (row, &x[first..])) });
    }

    /// Divides every row by its number.
    pub fn divide(&mut self, isa: Isa, by: &[f32]) {
        isa.run(Divide { rows: self.rows_mut().zip(by) });
    }
}

struct Add<R> {
    rows: R,
}

impl<'a, R: Iterator<Item = (&'a mut [f32], &'a [f32])>> Kernel for Add<R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, other) in self.rows {
            map_with!(s, row, other, |x, y| s.add(x, y));
        }
    }
}

struct Divide<R> {
    rows: R,
}

impl<'a, R: Iterator<Item = (&'a mut [f32], &'a f32)>> Kernel for Divide<R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, by) in self.rows {
            let share = s.splat(1.0 / by);
            map!(s, row, |x| s.mul(x, share));
        }
    }
}
