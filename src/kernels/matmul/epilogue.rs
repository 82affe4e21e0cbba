//! What is done to the accumulators of a matmul on their way to the output.

use std::ops::Range;

use crate::kernels::activation::{Activation, gelu};
use crate::kernels::isa::Kernel;
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
    fn is_empty(&self) -> bool {
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
    ) -> Self {
        let end = first_row + accumulators.rows;
        let Epilogue { bias, divisors, residual, .. } = epilogue;
        assert!(columns.end <= outputs, "the matrix has these outputs");
        assert!(bias.is_empty() || bias.len() == outputs, "there is a bias for each output");
        assert!(divisors.is_empty() || divisors.len() >= end, "there is a divisor for each row");
        assert!(residual.is_empty() || residual.len() >= end * outputs, "there is a residual for each row");
        Finish { epilogue, accumulators, first_row, columns, outputs }
    }
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Finish {
            epilogue, accumulators: Accumulators { from, from_stride, to, to_stride, rows }, ..
        } = self;
        if epilogue.is_empty() && from == to.cast_const() {
            return;
        }
        let width = self.columns.len();
        let Epilogue { bias, activation, divisors, residual } = *epilogue;
        macro_rules! each {
            (|$x:ident| $f:expr) => {
                for row in 0..rows {
                    let scale = divisors.get(self.first_row + row).map(|divisor| s.splat(1.0 / divisor));
                    let residual = (!residual.is_empty())
                        .then(|| residual.as_ptr().wrapping_add((self.first_row + row) * self.outputs + self.columns.start));
                    for start in (0..width).step_by(S::LANES) {
                        let count = width - start;
                        // SAFETY: `new` has checked bias and residual, and its caller has answered for the rows; from `start` on
                        // they all have `count` values.
                        unsafe {
                            let mut $x = s.load_first(from.add(row * from_stride + start), count);
                            if !bias.is_empty() {
                                $x = s.add($x, s.load_first(bias.as_ptr().add(self.columns.start + start), count));
                            }
                            let mut y = $f;
                            if let Some(scale) = scale {
                                y = s.mul(y, scale);
                            }
                            if let Some(residual) = residual {
                                y = s.add(y, s.load_first(residual.add(start), count));
                            }
                            s.store_first(to.add(row * to_stride + start), y, count);
                        }
                    }
                }
            };
        }
        match activation {
            Activation::Identity => each!(|x| x),
            Activation::Gelu => each!(|x| gelu(s, x)),
            other => each!(|x| other.of(s, x)),
        }
    }
}
