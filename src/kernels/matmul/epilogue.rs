//! What is done to the accumulators of a matmul on their way to the output.

use std::ops::Range;

use crate::kernels::activation::{Activation, gelu};
use crate::kernels::isa::Kernel;
use crate::kernels::math::{Accuracy, gelu_bf16};
use crate::kernels::simd::Simd;

/// `y = f(acc + bias) / divisor + residual`, element by element; what is empty is left out.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a> {
    /// One value for each output of the matrix, or empty.
    pub bias: &'a [f32],
    /// `f`.
    pub activation: Activation,
    /// One value for each row of the left operand, or empty.
    pub divisors: &'a [f32],
    /// Rows of as many values as the matrix has outputs, one for each row of the left operand, or empty.
    pub residual: &'a [f32],
}

impl Default for Epilogue<'_> {
    /// The accumulators as they are.
    fn default() -> Self {
        Epilogue { bias: &[], activation: Activation::Identity, divisors: &[], residual: &[] }
    }
}

impl Epilogue<'_> {
    /// Whether accumulators go to the output as they are.
    pub(super) fn is_empty(&self) -> bool {
        let Epilogue { bias, activation, divisors, residual } = self;
        bias.is_empty() && *activation == Activation::Identity && divisors.is_empty() && residual.is_empty()
    }
}

/// Some rows of accumulators and where they go; the same memory may be both.
#[derive(Clone, Copy)]
pub(super) struct Accumulators {
    pub from: *const f32,
    /// Values from a row to the next.
    pub from_stride: usize,
    pub to: *mut f32,
    pub to_stride: usize,
    pub rows: usize,
}

/// Writes the outputs of one panel for some rows.
pub(super) struct Finish<'a> {
    epilogue: &'a Epilogue<'a>,
    accumulators: Accumulators,
    /// The first of the rows, as the epilogue counts them.
    first_row: usize,
    /// Which outputs of the matrix they are.
    columns: Range<usize>,
    outputs: usize,
    accuracy: Accuracy,
}

impl<'a> Finish<'a> {
    /// # Panics
    /// If the epilogue has a bias, divisors or a residual, but not for these rows and columns of a matrix of so many outputs.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `columns.len()` values in each of the rows.
    pub unsafe fn new(
        epilogue: &'a Epilogue<'a>,
        accumulators: Accumulators,
        first_row: usize,
        columns: Range<usize>,
        outputs: usize,
        accuracy: Accuracy,
    ) -> Self {
        let end = first_row + accumulators.rows;
        let Epilogue { bias, divisors, residual, .. } = epilogue;
        assert!(columns.end <= outputs, "the matrix has these outputs");
        assert!(bias.is_empty() || bias.len() == outputs, "there is a bias for each output");
        assert!(divisors.is_empty() || divisors.len() >= end, "there is a divisor for each row");
        assert!(residual.is_empty() || residual.len() >= end * outputs, "there is a residual for each row");
        Finish { epilogue, accumulators, first_row, columns, outputs, accuracy }
    }
}

impl Kernel for Finish<'_> {
    type Output = ();

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

impl Finish<'_> {
    /// All rows, two registers of columns at a time and then one.
    #[inline(always)]
    fn columns<S: Simd>(&self, s: S, f: impl Function) {
        let Accumulators { from, to, .. } = self.accumulators;
        if self.epilogue.is_empty() && from == to.cast_const() {
            return;
        }
        let width = self.columns.len();
        let whole = width - width % (2 * S::LANES);
        // SAFETY: `new` has checked the operands and its caller has answered for the rows, which have `width` columns.
        unsafe {
            for start in (0..whole).step_by(2 * S::LANES) {
                self.rows::<S, 2>(s, f, start, 2 * S::LANES);
            }
            for start in (whole..width).step_by(S::LANES) {
                self.rows::<S, 1>(s, f, start, width - start);
            }
        }
    }

    /// Column `start` and those after it, as many as `N` registers hold, or `count` if there are fewer.
    ///
    /// # Safety
    /// Bias and residual, where there are any, and all rows have these columns; `count` is above 0, and above `LANES` if `N` is 2.
    #[inline(always)]
    unsafe fn rows<S: Simd, const N: usize>(&self, s: S, f: impl Function, start: usize, count: usize) {
        let Accumulators { from, from_stride, to, to_stride, rows } = self.accumulators;
        let Epilogue { bias, divisors, residual, .. } = *self.epilogue;
        let column = self.columns.start + start;
        // SAFETY: all that is read and written are `count` values from `start` on in operands that have them.
        unsafe {
            macro_rules! load {
                ($from:expr) => {{
                    let from: *const f32 = $from;
                    std::array::from_fn::<S::F, N, _>(
                        #[inline(always)]
                        |i| s.load_first(from.add(i * S::LANES), count - i * S::LANES),
                    )
                }};
            }
            let biases = (!bias.is_empty()).then(|| load!(bias.as_ptr().add(column)));
            for row in 0..rows {
                let mut y = load!(from.add(row * from_stride + start));
                if let Some(biases) = biases {
                    for (y, bias) in y.iter_mut().zip(biases) {
                        *y = s.add(*y, bias);
                    }
                }
                for y in &mut y {
                    *y = f.of(s, *y);
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
                    s.store_first(to.add(row * to_stride + start + i * S::LANES), y, count - i * S::LANES);
                }
            }
        }
    }
}

/// `f` of an epilogue; a type for each of those that are frequent.
trait Function: Copy {
    fn of<S: Simd>(self, s: S, x: S::F) -> S::F;
}

macro_rules! functions {
    ($($name:ident: |$s:ident, $x:ident| $f:expr;)*) => {
        $(#[derive(Clone, Copy)]
        struct $name;

        impl Function for $name {
            #[inline(always)]
            fn of<S: Simd>(self, $s: S, $x: S::F) -> S::F {
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

impl Function for Activation {
    #[inline(always)]
    fn of<S: Simd>(self, s: S, x: S::F) -> S::F {
        Activation::of(self, s, x)
    }
}
