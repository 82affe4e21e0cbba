//! The epilogue of a GEMM: the operations on accumulators before they are stored in the output.

use std::ops::Range;

use super::convert::BF16_PER_TILE_ROW;
use crate::kernels::activation::{Activation, gelu};
use crate::kernels::isa::{Kernel, define_runners};
use crate::kernels::math::{Accuracy, gelu_bf16};
use crate::kernels::simd::Simd;
use crate::kernels::tiles::{TILE_BYTES, TILE_ROWS};

/// `y = f(accumulator + bias) / divisor + residual`, element by element. An empty operand is skipped.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a> {
    /// `(outputs)`, or empty.
    pub bias: &'a [f32],
    /// The function `f`.
    pub activation: Activation,
    /// `(rows)`, or empty.
    pub divisors: &'a [f32],
    /// `(rows, outputs)`, or empty.
    pub residual: &'a [f32],
}

impl Default for Epilogue<'_> {
    /// Stores the accumulators unchanged.
    fn default() -> Self {
        Epilogue { bias: &[], activation: Activation::Identity, divisors: &[], residual: &[] }
    }
}

impl Epilogue<'_> {
    /// Whether the accumulators are stored unchanged.
    pub(super) fn is_identity(&self) -> bool {
        let Epilogue { bias, activation, divisors, residual } = self;
        bias.is_empty() && *activation == Activation::Identity && divisors.is_empty() && residual.is_empty()
    }
}

/// Where the results of an epilogue are stored.
#[derive(Clone, Copy)]
pub(super) enum Results {
    /// Rows of f32.
    F32(F32Rows),
    /// A K step of tiles of one bf16 part.
    Bf16(TileRows<1>),
    /// A K step of tiles of two bf16 parts.
    Bf16x2(TileRows<2>),
    /// A K step of tiles of three bf16 parts.
    Bf16x3(TileRows<3>),
}

/// AccumulatorRows and where their results are stored. Both may be the same memory.
#[derive(Clone, Copy)]
pub(super) struct AccumulatorRows {
    /// The first accumulator of row 0.
    pub from: *const f32,
    /// Values from the start of one row of accumulators to the start of the next.
    pub stride: usize,
    /// The results of row 0.
    pub to: Results,
}

impl AccumulatorRows {
    /// AccumulatorRows that are stored in the output already.
    pub(super) fn in_place(output: *mut f32, stride: usize) -> Self {
        AccumulatorRows { from: output, stride, to: Results::F32(F32Rows { to: output, stride }) }
    }
}

/// An epilogue and the accumulators of one panel that it is applied to.
pub(super) struct PanelEpilogue<'a> {
    epilogue: &'a Epilogue<'a>,
    accumulators: AccumulatorRows,
    /// Index of row 0 of the accumulators in the divisors and the residual.
    first_row: usize,
    /// The outputs of the panel.
    columns: Range<usize>,
    /// Outputs of the whole matrix.
    outputs: usize,
    accuracy: Accuracy,
}

/// The kernel that applies an epilogue to some rows of the accumulators of one panel.
pub(super) struct ApplyEpilogue<'a> {
    panel: &'a PanelEpilogue<'a>,
    rows: Range<usize>,
}

impl<'a> PanelEpilogue<'a> {
    /// # Panics
    /// If an operand of the epilogue is not empty and does not cover these rows and columns of a matrix with `outputs`
    /// outputs.
    ///
    /// # Safety
    /// While the value lives: in each row below `rows`, the accumulators are valid for reads of `columns.len()` values,
    /// and their results for writes: of `columns.len()` f32, or of tile rows.
    pub(super) unsafe fn new(
        epilogue: &'a Epilogue<'a>,
        accumulators: AccumulatorRows,
        rows: usize,
        first_row: usize,
        columns: Range<usize>,
        outputs: usize,
        accuracy: Accuracy,
    ) -> Self {
        let end = first_row + rows;
        let Epilogue { bias, divisors, residual, .. } = epilogue;
        assert!(columns.end <= outputs, "the matrix has these columns");
        assert!(bias.is_empty() || bias.len() == outputs, "the bias has one value per output");
        assert!(divisors.is_empty() || divisors.len() >= end, "there is one divisor per row");
        assert!(residual.is_empty() || residual.len() >= end * outputs, "the residual has all rows");
        PanelEpilogue { epilogue, accumulators, first_row, columns, outputs, accuracy }
    }

    /// The kernel for a range of rows.
    ///
    /// # Safety
    /// The rows are below those of [`PanelEpilogue::new`].
    #[inline(always)]
    pub(super) unsafe fn rows(&'a self, rows: Range<usize>) -> ApplyEpilogue<'a> {
        ApplyEpilogue { panel: self, rows }
    }
}

impl Kernel for ApplyEpilogue<'_> {
    type Output = ();

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.panel.epilogue.activation {
            Activation::Identity => self.apply(s, Identity),
            Activation::Gelu if self.panel.accuracy == Accuracy::Bf16 => self.apply(s, GeluBf16),
            Activation::Gelu => self.apply(s, Gelu),
            other => self.apply(s, other),
        }
    }
}

impl ApplyEpilogue<'_> {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, f: impl ElementFunction) {
        let PanelEpilogue { epilogue, accumulators, .. } = self.panel;
        match accumulators.to {
            Results::F32(to) => {
                if !epilogue.is_identity() || accumulators.from != to.to.cast_const() {
                    self.columns(s, f, to);
                }
            }
            Results::Bf16(to) => self.columns(s, f, to),
            Results::Bf16x2(to) => self.columns(s, f, to),
            Results::Bf16x3(to) => self.columns(s, f, to),
        }
    }

    /// Applies the epilogue to all rows: two vectors of columns at a time, then one.
    #[inline(always)]
    fn columns<S: Simd>(&self, s: S, f: impl ElementFunction, to: impl ResultRows) {
        let width = self.panel.columns.len();
        let pairs_end = width - width % (2 * S::LANES);
        let Epilogue { divisors, residual, .. } = self.panel.epilogue;
        let has_rows = !divisors.is_empty() || !residual.is_empty();
        // SAFETY: `new` has checked that bias and residual cover these columns. By its contract every accumulator row
        // is valid for `width` values; `start + count ≤ width` in each call, `count > 0`, and `count = 2 · LANES` for
        // two vectors.
        unsafe {
            for start in (0..pairs_end).step_by(2 * S::LANES) {
                if has_rows {
                    self.rows::<S, 2, true>(s, f, to, start, 2 * S::LANES);
                } else {
                    self.rows::<S, 2, false>(s, f, to, start, 2 * S::LANES);
                }
            }
            for start in (pairs_end..width).step_by(S::LANES) {
                self.rows::<S, 1, true>(s, f, to, start, width - start);
            }
            for row in self.rows.clone() {
                to.pad(s, row, width.next_multiple_of(S::LANES));
            }
        }
    }

    /// Applies the epilogue to the columns `start..start + min(count, N · LANES)` of all rows. Without `ROWS` there are
    /// neither divisors nor a residual.
    ///
    /// # Safety
    /// All accumulator rows, and the bias and the residual if they are not empty, have these columns. `count > (N − 1)
    /// · LANES`.
    #[inline(always)]
    unsafe fn rows<S: Simd, const N: usize, const ROWS: bool>(
        &self,
        s: S,
        f: impl ElementFunction,
        to: impl ResultRows,
        start: usize,
        count: usize,
    ) {
        let PanelEpilogue { epilogue, accumulators, first_row, ref columns, outputs, .. } = *self.panel;
        let AccumulatorRows { from, stride, .. } = accumulators;
        let Epilogue { bias, divisors, residual, .. } = *epilogue;
        let column = columns.start + start;
        // SAFETY: vector `i` reads or writes up to `count − i · LANES > 0` values from column `start + i · LANES`,
        // which the operands have by the contract of this function. `first_row + row` is below the rows of the
        // residual, which `new` has checked.
        unsafe {
            macro_rules! load {
                ($from:expr) => {{
                    let from: *const f32 = $from;
                    std::array::from_fn::<S::F, N, _>(
                        #[inline(always)]
                        |i| s.load_up_to(from.add(i * S::LANES), count - i * S::LANES),
                    )
                }};
            }
            // Adding −0 changes no value.
            let bias = if bias.is_empty() { [s.splat(-0.0); N] } else { load!(bias.as_ptr().add(column)) };
            for row in self.rows.clone() {
                let mut y = load!(from.add(row * stride + start));
                for (y, bias) in y.iter_mut().zip(bias) {
                    *y = f.eval(s, s.add(*y, bias));
                }
                if let Some(divisor) = divisors.get(first_row + row).filter(|_| ROWS) {
                    let scale = s.splat(1.0 / divisor);
                    for y in &mut y {
                        *y = s.mul(*y, scale);
                    }
                }
                if ROWS && !residual.is_empty() {
                    let residual = load!(residual.as_ptr().add((first_row + row) * outputs + column));
                    for (y, residual) in y.iter_mut().zip(residual) {
                        *y = s.add(*y, residual);
                    }
                }
                for (i, y) in y.into_iter().enumerate() {
                    to.store(s, row, start + i * S::LANES, y, count - i * S::LANES);
                }
            }
        }
    }
}

/// Rows that results are stored to.
trait ResultRows: Copy {
    /// Stores the first `min(count, LANES)` lanes from `column` on.
    ///
    /// # Safety
    /// The row is valid for writes of these columns, `count > 0`, and `column` is a multiple of `LANES`.
    unsafe fn store<S: Simd>(self, s: S, row: usize, column: usize, y: S::F, count: usize);

    /// Sets the columns from `column`, a multiple of `LANES`, to the end of a tile row to 0.
    ///
    /// # Safety
    /// As [`ResultRows::store`].
    #[inline(always)]
    unsafe fn pad<S: Simd>(self, _s: S, _row: usize, _column: usize) {}
}

/// Row-major f32.
#[derive(Clone, Copy)]
pub(super) struct F32Rows {
    /// The first result of row 0.
    pub to: *mut f32,
    /// Values from the start of one row to the start of the next.
    pub stride: usize,
}

impl ResultRows for F32Rows {
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, row: usize, column: usize, y: S::F, count: usize) {
        // SAFETY: the row is valid for writes of these columns by the contract of this method.
        unsafe { s.store_up_to(self.to.add(row * self.stride + column), y, count) };
    }
}

/// The tiles of one K step of a left operand, of `P` bf16 parts.
#[derive(Clone, Copy)]
pub(super) struct TileRows<const P: usize> {
    /// The tile of the first part of the rows 0 to 15; the tiles of the other parts follow it.
    pub to: *mut u16,
    /// u16 from the tiles of 16 rows to those of the next 16.
    pub group: usize,
}

impl<const P: usize> ResultRows for TileRows<P> {
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, row: usize, column: usize, y: S::F, _count: usize) {
        let offset = row / TILE_ROWS * self.group + row % TILE_ROWS * BF16_PER_TILE_ROW + column;
        let mut remainder = y;
        for part in 0..P {
            // SAFETY: the tile rows are valid for writes by the contract of this method; `column` is a multiple of
            // `LANES` below 32, so `LANES` u16 can be written there.
            unsafe { s.store_bf16(self.to.add(offset + part * TILE_BYTES / 2), remainder) };
            if part + 1 < P {
                remainder = s.sub(remainder, s.round_bf16(remainder));
            }
        }
    }

    #[inline(always)]
    unsafe fn pad<S: Simd>(self, s: S, row: usize, column: usize) {
        for column in (column..BF16_PER_TILE_ROW).step_by(S::LANES) {
            // SAFETY: the tile rows are valid for writes by the contract of this method.
            unsafe { self.store(s, row, column, s.splat(0.0), S::LANES) };
        }
    }
}

/// The function `f` of an epilogue. The frequent functions have a type each, so that the loops are compiled for them.
trait ElementFunction: Copy {
    fn eval<S: Simd>(self, s: S, x: S::F) -> S::F;
}

macro_rules! functions {
    ($($name:ident: |$s:ident, $x:ident| $f:expr;)*) => {
        $(#[derive(Clone, Copy)]
        struct $name;

        impl ElementFunction for $name {
            #[inline(always)]
            fn eval<S: Simd>(self, $s: S, $x: S::F) -> S::F {
                $f
            }
        })*
    };
}

functions! {
    Identity: |_s, x| x;
    Gelu: |s, x| gelu(s, x);
    GeluBf16: |s, x| gelu_bf16(s, x);
}

impl ElementFunction for Activation {
    #[inline(always)]
    fn eval<S: Simd>(self, s: S, x: S::F) -> S::F {
        Activation::eval(self, s, x)
    }
}
