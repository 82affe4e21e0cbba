//! The epilogue of a GEMM: the operations on accumulators before they are stored in the output.

use std::marker::PhantomData;
use std::ops::Range;

use super::blocking::TILE_NR;
use super::convert::BF16_PER_TILE_ROW;
use crate::activation::Activation;
use crate::isa::{Isa, Kernel, define_runners};
use crate::math::{Accuracy, gelu, gelu_bf16};
use crate::simd::Simd;
use crate::tiles::{TILE_BYTES, TILE_ROWS};

/// `y = f(accumulator + bias) / divisor · factor + residual`, element by element. An empty operand is
/// skipped.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a> {
    /// `(outputs)`, or empty.
    pub bias: &'a [f32],
    /// The function `f`.
    pub activation: Activation,
    /// `(rows)`, or empty.
    pub divisors: &'a [f32],
    /// The factors of a gated network.
    pub factors: Factors<'a>,
    /// `(rows, outputs)`, or empty.
    pub residual: &'a [f32],
}

/// Factors for some consecutive outputs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Factors<'a> {
    /// `(rows, columns)`, or empty.
    pub values: &'a [f32],
    /// The output that the first column is for.
    pub first_output: usize,
    /// Number of columns.
    pub columns: usize,
}

impl Default for Epilogue<'_> {
    /// Stores the accumulators unchanged.
    fn default() -> Self {
        let factors = Factors::default();
        Epilogue { bias: &[], activation: Activation::Identity, divisors: &[], factors, residual: &[] }
    }
}

impl Epilogue<'_> {
    /// Whether the accumulators are stored unchanged.
    pub(super) fn is_identity(&self) -> bool {
        let Epilogue { bias, activation, divisors, factors, residual } = self;
        let operands = [bias, divisors, factors.values, residual];
        *activation == Activation::Identity && operands.iter().all(|operand| operand.is_empty())
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
    /// Whether the results have the place of the accumulators.
    fn is_in_place(&self) -> bool {
        matches!(self.to, Results::F32(to) if to.to.cast_const() == self.from)
    }

    /// AccumulatorRows that are stored in the output already.
    pub(super) fn in_place(output: *mut f32, stride: usize) -> Self {
        AccumulatorRows { from: output, stride, to: Results::F32(F32Rows { to: output, stride }) }
    }
}

/// An epilogue, and the block of accumulators that it is applied to: some rows of one panel.
pub(super) struct BlockEpilogue<'a> {
    epilogue: &'a Epilogue<'a>,
    /// The rows and outputs that the operands of the epilogue cover.
    covered: (usize, Range<usize>),
    /// Outputs of the whole matrix.
    outputs: usize,
    apply: ApplyRows,
    accumulators: AccumulatorRows,
    /// Index of row 0 of the accumulators in the divisors, the factors and the residual.
    first_row: usize,
    /// The outputs of the panel.
    columns: Range<usize>,
}

/// Applies an epilogue to some rows, `isa.run` of an [`ApplyEpilogue`]. There is one instance for every
/// function and kind of results, because the tile unit waits for the branches and the stack of a larger one.
type ApplyRows = fn(Isa, &BlockEpilogue, Range<u32>);

impl<'a> BlockEpilogue<'a> {
    /// An epilogue for accumulators of the first `rows` rows and of `columns`, of a matrix with `outputs`
    /// outputs. Every block is like `accumulators`, which no block needs to begin with: in place or not, and
    /// with results of the same kind.
    ///
    /// # Panics
    /// If an operand of the epilogue is not empty and does not cover these rows and columns.
    pub(super) fn new(
        epilogue: &'a Epilogue<'a>,
        rows: usize,
        columns: Range<usize>,
        outputs: usize,
        accuracy: Accuracy,
        accumulators: AccumulatorRows,
    ) -> Self {
        let Epilogue { bias, divisors, factors, residual, .. } = epilogue;
        assert!(columns.end <= outputs, "the matrix has these columns");
        assert!(bias.is_empty() || bias.len() == outputs, "the bias has one value per output");
        assert!(divisors.is_empty() || divisors.len() >= rows, "there is one divisor per row");
        assert!(residual.is_empty() || residual.len() >= rows * outputs, "the residual has all rows");
        assert!(
            factors.values.is_empty()
                || factors.values.len() >= rows * factors.columns
                    && factors.first_output <= columns.start
                    && columns.end <= factors.first_output + factors.columns,
            "there is one factor per row and column"
        );
        let apply = match epilogue.activation {
            Activation::Identity if epilogue.is_identity() && accumulators.is_in_place() => unchanged,
            Activation::Identity => select::<Identity>(epilogue, accumulators.to),
            Activation::Gelu if accuracy == Accuracy::Bf16 => select::<GeluBf16>(epilogue, accumulators.to),
            Activation::Gelu => select::<Gelu>(epilogue, accumulators.to),
            Activation::GeluTanh => select::<GeluTanh>(epilogue, accumulators.to),
            Activation::Silu => select::<Silu>(epilogue, accumulators.to),
            _ => select::<Activation>(epilogue, accumulators.to),
        };
        let covered = (rows, columns);
        BlockEpilogue { epilogue, covered, outputs, apply, accumulators, first_row: 0, columns: 0..0 }
    }

    /// Makes a block current: of `rows` rows from `first_row` on, and `columns`.
    ///
    /// # Panics
    /// If the operands of the epilogue do not cover it.
    ///
    /// # Safety
    /// Until the next block is current, or the value is dropped: the accumulators are valid for reads of
    /// `columns.len()` values in `rows` rows, and their results for writes, of `columns.len()` f32 or of tile
    /// rows. They are like those of [`BlockEpilogue::new`].
    #[inline(always)]
    pub(super) unsafe fn replace(
        &mut self,
        accumulators: AccumulatorRows,
        first_row: usize,
        rows: usize,
        columns: Range<usize>,
    ) {
        let (all_rows, all_columns) = &self.covered;
        let is_covered = first_row + rows <= *all_rows
            && all_columns.start <= columns.start
            && columns.end <= all_columns.end;
        assert!(is_covered, "the operands cover the block");
        self.accumulators = accumulators;
        self.first_row = first_row;
        self.columns = columns;
    }

    /// Applies the epilogue to some rows of the current block.
    ///
    /// # Safety
    /// The block has these rows.
    #[inline(always)]
    pub(super) unsafe fn apply(&self, isa: Isa, rows: Range<usize>) {
        (self.apply)(isa, self, rows.start as u32..rows.end as u32);
    }
}

/// The results are the accumulators, which are stored already.
fn unchanged(_isa: Isa, _block: &BlockEpilogue, _rows: Range<u32>) {}

/// The instance for `F` and the results.
fn select<F: ElementFunction>(epilogue: &Epilogue, to: Results) -> ApplyRows {
    let Epilogue { divisors, factors, residual, .. } = epilogue;
    let has_matrix = !factors.values.is_empty() || !residual.is_empty();
    match (to, has_matrix || !divisors.is_empty()) {
        (Results::F32(_), true) => apply_rows::<F, F32Rows, true>,
        (Results::F32(_), false) => apply_rows::<F, F32Rows, false>,
        (Results::Bf16(_), true) => apply_rows::<F, TileRows<1>, true>,
        (Results::Bf16(_), false) => apply_rows::<F, TileRows<1>, false>,
        (Results::Bf16x2(_), true) => apply_rows::<F, TileRows<2>, true>,
        (Results::Bf16x2(_), false) => apply_rows::<F, TileRows<2>, false>,
        (Results::Bf16x3(_), true) => apply_rows::<F, TileRows<3>, true>,
        (Results::Bf16x3(_), false) => apply_rows::<F, TileRows<3>, false>,
    }
}

fn apply_rows<F: ElementFunction, R: ResultRows, const ROWS: bool>(
    isa: Isa,
    block: &BlockEpilogue,
    rows: Range<u32>,
) {
    isa.run(ApplyEpilogue::<F, R, ROWS> { block, rows, instance: PhantomData });
}

/// The kernel that applies an epilogue to some rows of a block. Without `ROWS` there are neither divisors nor
/// factors nor a residual. It is small enough to be passed in registers.
struct ApplyEpilogue<'a, F, R, const ROWS: bool> {
    block: &'a BlockEpilogue<'a>,
    rows: Range<u32>,
    instance: PhantomData<(F, R)>,
}

impl<F: ElementFunction, R: ResultRows, const ROWS: bool> Kernel for ApplyEpilogue<'_, F, R, ROWS> {
    type Output = ();

    const F32_ONLY: bool = !R::ARE_TILES;
    const TILES_ONLY: bool = R::ARE_TILES;

    define_runners!();

    /// Applies the epilogue: to two vectors of columns at a time, then to one.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.block.columns.len();
        let pairs_end = width - width % (2 * S::LANES);
        // SAFETY: `BlockEpilogue::replace` has checked that bias, factors and residual cover these columns.
        // By its contract every accumulator row is valid for `width` values; `start + count ≤ width` in each
        // call, `count > 0`, and `count = 2 · LANES` for two vectors.
        unsafe {
            for start in (0..pairs_end).step_by(2 * S::LANES) {
                self.columns::<S, 2>(s, start, 2 * S::LANES);
            }
            for start in (pairs_end..width).step_by(S::LANES) {
                self.columns::<S, 1>(s, start, width - start);
            }
            if !width.is_multiple_of(TILE_NR) {
                let to = R::of(self.block.accumulators.to);
                for row in self.rows.clone() {
                    to.pad(s, row as usize, width.next_multiple_of(S::LANES));
                }
            }
        }
    }
}

impl<F: ElementFunction, R: ResultRows, const ROWS: bool> ApplyEpilogue<'_, F, R, ROWS> {
    /// Applies the epilogue to the columns `start..start + min(count, N · LANES)` of all rows.
    ///
    /// # Safety
    /// All accumulator rows, and the bias, the factors and the residual if they are not empty, have these
    /// columns. `count > (N − 1) · LANES`.
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize>(&self, s: S, start: usize, count: usize) {
        let BlockEpilogue { epilogue, accumulators, first_row, ref columns, outputs, .. } = *self.block;
        let AccumulatorRows { from, stride, to } = accumulators;
        let (f, to) = (F::new(epilogue.activation), R::of(to));
        let Epilogue { bias, divisors, factors, residual, .. } = *epilogue;
        let column = columns.start + start;
        // SAFETY: vector `i` reads or writes up to `count − i · LANES > 0` values from column
        // `start + i · LANES`, which the operands have by the contract of this function. `first_row + row` is
        // below the rows of the factors and the residual, which `replace` has checked.
        unsafe {
            macro_rules! load {
                ($from:expr) => {{
                    let from: *const f32 = $from;
                    // `array::from_fn` might be compiled without the target features of the ISA.
                    let mut vectors = [s.splat(0.0); N];
                    for (i, vector) in vectors.iter_mut().enumerate() {
                        *vector = s.load_up_to(from.add(i * S::LANES), count - i * S::LANES);
                    }
                    vectors
                }};
            }
            // Adding −0 changes no value.
            let bias = if bias.is_empty() { [s.splat(-0.0); N] } else { load!(bias.as_ptr().add(column)) };
            for row in self.rows.start as usize..self.rows.end as usize {
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
                if ROWS && !factors.values.is_empty() {
                    let first = (first_row + row) * factors.columns + column - factors.first_output;
                    let factors = load!(factors.values.as_ptr().add(first));
                    for (y, factor) in y.iter_mut().zip(factors) {
                        *y = s.mul(*y, factor);
                    }
                }
                if ROWS && !residual.is_empty() {
                    let residual = load!(residual.as_ptr().add((first_row + row) * outputs + column));
                    for (y, residual) in y.iter_mut().zip(residual) {
                        *y = s.add(*y, residual);
                    }
                }
                to.store(s, row, start, y, count);
            }
        }
    }
}

/// Rows that results are stored to.
trait ResultRows: Copy {
    /// Whether they are rows of tiles, which only an ISA with tiles stores.
    const ARE_TILES: bool;

    /// The rows of a kind of results.
    ///
    /// # Panics
    /// If they are of another kind.
    fn of(results: Results) -> Self;

    /// Stores `N` vectors from `column` on, up to `count` values.
    ///
    /// # Safety
    /// The row is valid for writes of these columns, `count > (N − 1) · LANES`, and `column` is a multiple of
    /// `LANES`.
    unsafe fn store<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        column: usize,
        y: [S::F; N],
        count: usize,
    );

    /// Sets the columns from `column`, a multiple of `LANES`, to the end of a tile row to 0.
    ///
    /// # Safety
    /// The row is valid for writes of these columns.
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
    const ARE_TILES: bool = false;

    #[inline(always)]
    fn of(results: Results) -> Self {
        let Results::F32(rows) = results else { panic!("the results are f32") };
        rows
    }

    #[inline(always)]
    unsafe fn store<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        column: usize,
        y: [S::F; N],
        count: usize,
    ) {
        for (i, y) in y.into_iter().enumerate() {
            let lane = i * S::LANES;
            // SAFETY: the row is valid for writes of these columns by the contract of this method.
            unsafe { s.store_up_to(self.to.add(row * self.stride + column + lane), y, count - lane) };
        }
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
    const ARE_TILES: bool = true;

    #[inline(always)]
    fn of(results: Results) -> Self {
        let rows = match results {
            Results::Bf16(TileRows { to, group }) if P == 1 => Some(TileRows { to, group }),
            Results::Bf16x2(TileRows { to, group }) if P == 2 => Some(TileRows { to, group }),
            Results::Bf16x3(TileRows { to, group }) if P == 3 => Some(TileRows { to, group }),
            _ => None,
        };
        rows.expect("the results are tiles of as many parts")
    }

    #[inline(always)]
    unsafe fn store<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        column: usize,
        y: [S::F; N],
        _count: usize,
    ) {
        let offset = row / TILE_ROWS * self.group + row % TILE_ROWS * BF16_PER_TILE_ROW + column;
        let mut remainder = y;
        for part in 0..P {
            // SAFETY: the tile rows are valid for writes by the contract of this method; `column` is a
            // multiple of `LANES`, and `column + N · LANES ≤ 32`, so `N · LANES` u16 can be written there.
            unsafe { s.store_bf16_each(self.to.add(offset + part * TILE_BYTES / 2), remainder) };
            if part + 1 < P {
                for y in &mut remainder {
                    *y = s.sub(*y, s.round_bf16(*y));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pad<S: Simd>(self, s: S, row: usize, column: usize) {
        for column in (column..BF16_PER_TILE_ROW).step_by(S::LANES) {
            // SAFETY: the tile rows are valid for writes by the contract of this method.
            unsafe { self.store(s, row, column, [s.splat(0.0)], S::LANES) };
        }
    }
}

/// The function `f` of an epilogue. The frequent functions have a type each, so that the loops are compiled
/// for them.
trait ElementFunction: Copy {
    /// The function of this type for an activation.
    fn new(activation: Activation) -> Self;

    fn eval<S: Simd>(self, s: S, x: S::F) -> S::F;
}

macro_rules! functions {
    ($($name:ident: |$s:ident, $x:ident| $f:expr;)*) => {
        $(#[derive(Clone, Copy)]
        struct $name;

        impl ElementFunction for $name {
            #[inline(always)]
            fn new(_activation: Activation) -> Self {
                $name
            }

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
    GeluTanh: |s, x| Activation::GeluTanh.eval(s, x);
    Silu: |s, x| Activation::Silu.eval(s, x);
}

impl ElementFunction for Activation {
    #[inline(always)]
    fn new(activation: Activation) -> Self {
        activation
    }

    #[inline(always)]
    fn eval<S: Simd>(self, s: S, x: S::F) -> S::F {
        Activation::eval(self, s, x)
    }
}
