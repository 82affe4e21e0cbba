//! The epilogue of a GEMM: the operations on accumulators before they are stored in the output.

use std::ops::Range;

use crate::kernels::activation::{Activation, gelu};
use crate::kernels::isa::{Kernel, define_runners};
use crate::kernels::math::{Accuracy, gelu_bf16};
use crate::kernels::simd::Simd;

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

/// Rows of accumulators and where to store the results. Both may be the same memory.
#[derive(Clone, Copy)]
pub(super) struct AccumulatorRows {
    /// The first accumulator.
    pub from: *const f32,
    /// Values from the start of one row of accumulators to the start of the next.
    pub from_stride: usize,
    /// Where the first result is stored.
    pub to: *mut f32,
    /// Values from the start of one row of results to the start of the next.
    pub to_stride: usize,
    /// Number of rows.
    pub rows: usize,
}

impl AccumulatorRows {
    /// Accumulators that are stored in the output already.
    pub(super) fn in_place(output: *mut f32, stride: usize, rows: usize) -> Self {
        AccumulatorRows { from: output, from_stride: stride, to: output, to_stride: stride, rows }
    }
}

/// The kernel that applies an epilogue to the accumulators of one panel.
pub(super) struct ApplyEpilogue<'a> {
    epilogue: &'a Epilogue<'a>,
    accumulators: AccumulatorRows,
    /// Index of the first accumulator row in the divisors and the residual.
    first_row: usize,
    /// The outputs of the panel.
    columns: Range<usize>,
    /// Outputs of the whole matrix.
    outputs: usize,
    accuracy: Accuracy,
}

impl<'a> ApplyEpilogue<'a> {
    /// # Panics
    /// If an operand of the epilogue is not empty and does not cover these rows and columns of a matrix with `outputs`
    /// outputs.
    ///
    /// # Safety
    /// Until the kernel has run: in each of the `accumulators.rows` rows, `from` is valid for reads and `to` for writes
    /// of `columns.len()` values.
    pub(super) unsafe fn new(
        epilogue: &'a Epilogue<'a>,
        accumulators: AccumulatorRows,
        first_row: usize,
        columns: Range<usize>,
        outputs: usize,
        accuracy: Accuracy,
    ) -> Self {
        let end = first_row + accumulators.rows;
        let Epilogue { bias, divisors, residual, .. } = epilogue;
        assert!(columns.end <= outputs, "the matrix has these columns");
        assert!(bias.is_empty() || bias.len() == outputs, "the bias has one value per output");
        assert!(divisors.is_empty() || divisors.len() >= end, "there is one divisor per row");
        assert!(residual.is_empty() || residual.len() >= end * outputs, "the residual has all rows");
        ApplyEpilogue { epilogue, accumulators, first_row, columns, outputs, accuracy }
    }
}

impl Kernel for ApplyEpilogue<'_> {
    type Output = ();

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.epilogue.activation {
            Activation::Identity => self.columns(s, Identity),
            Activation::Gelu if self.accuracy == Accuracy::Bf16 => self.columns(s, GeluBf16),
            Activation::Gelu => self.columns(s, Gelu),
            other => self.columns(s, other),
        }
    }
}

impl ApplyEpilogue<'_> {
    /// Applies the epilogue to all rows: two vectors of columns at a time, then one.
    #[inline(always)]
    fn columns<S: Simd>(&self, s: S, f: impl ElementFunction) {
        let AccumulatorRows { from, to, .. } = self.accumulators;
        if self.epilogue.is_identity() && from == to.cast_const() {
            return;
        }
        let width = self.columns.len();
        let pairs_end = width - width % (2 * S::LANES);
        // SAFETY: `new` has checked that bias and residual cover these columns. By its contract every accumulator row
        // is valid for `width` values; `start + count ≤ width` in each call, `count > 0`, and `count = 2 · LANES` for
        // two vectors.
        unsafe {
            for start in (0..pairs_end).step_by(2 * S::LANES) {
                self.rows::<S, 2>(s, f, start, 2 * S::LANES);
            }
            for start in (pairs_end..width).step_by(S::LANES) {
                self.rows::<S, 1>(s, f, start, width - start);
            }
        }
    }

    /// Applies the epilogue to the columns `start..start + min(count, N · LANES)` of all rows.
    ///
    /// # Safety
    /// All accumulator rows, and the bias and the residual if they are not empty, have these columns. `count > (N − 1)
    /// · LANES`.
    #[inline(always)]
    unsafe fn rows<S: Simd, const N: usize>(
        &self,
        s: S,
        f: impl ElementFunction,
        start: usize,
        count: usize,
    ) {
        let AccumulatorRows { from, from_stride, to, to_stride, rows } = self.accumulators;
        let Epilogue { bias, divisors, residual, .. } = *self.epilogue;
        let column = self.columns.start + start;
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
            let bias = (!bias.is_empty()).then(|| load!(bias.as_ptr().add(column)));
            for row in 0..rows {
                let mut y = load!(from.add(row * from_stride + start));
                if let Some(bias) = bias {
                    for (y, bias) in y.iter_mut().zip(bias) {
                        *y = s.add(*y, bias);
                    }
                }
                for y in &mut y {
                    *y = f.eval(s, *y);
                }
                if let Some(divisor) = divisors.get(self.first_row + row) {
                    let scale = s.splat(1.0 / divisor);
                    for y in &mut y {
                        *y = s.mul(*y, scale);
                    }
                }
                if !residual.is_empty() {
                    let residual =
                        load!(residual.as_ptr().add((self.first_row + row) * self.outputs + column));
                    for (y, residual) in y.iter_mut().zip(residual) {
                        *y = s.add(*y, residual);
                    }
                }
                for (i, y) in y.into_iter().enumerate() {
                    s.store_up_to(to.add(row * to_stride + start + i * S::LANES), y, count - i * S::LANES);
                }
            }
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
