//! GEMM: `y = f(x Wᵀ + bias) / divisor · factor + residual` in f32, with the weights packed once.
//!
//! `x` is `(rows, inputs)`, `W` is `(outputs, inputs)`, `y` is `(rows, outputs)`. In BLIS's terms `x` is A,
//! `Wᵀ` is B and `y` is C:
//!
//! - Weights are packed into *panels* of NR outputs ([`PackedMatrix`]). `x` is f32, or first converted to the
//!   operand type of the weights ([`LhsBuffer`]); for many panels its rows are packed into *micro-panels*
//!   (`micro_panels`).
//! - A *micro-kernel* multiplies MR rows of `x` by one panel, KC inputs at a time, with MR × NR
//!   *accumulators* in registers.
//! - The *epilogue* ([`Epilogue`]) is applied to the accumulators on their way to the output.
//! - Callers loop over blocks of MC rows ([`PackedMatrix::mc`]), which stay in L2 while all panels are
//!   multiplied with them; with many inputs, some K blocks of the rows at a time.
//!
//! There are two micro-kernels:
//!
//! - `vector_kernel`: NR is two vectors of outputs. Operands are *packed elements*: u32 lanes of one f32, two
//!   bf16, or two or four 8-bit integers of consecutive inputs.
//! - `tile_kernel`: MR and NR are two tiles, 32 × 32. f32 is computed from three bf16 parts of each operand.
//!   Its results can be stored as the left operand of another GEMM ([`gemm_into_lhs`]).
//!
//! [`attend_head`] computes both GEMMs of attention with the tile micro-kernel, or with the inner loop of the
//! vector micro-kernel.
//!
//! Every output is accumulated over the inputs in the same order, whatever MR is and however rows are divided
//! among threads. A row has the same bits alone and in any batch.

mod attention;
mod blocking;
mod cache_line;
mod convert;
mod dot_product;
mod driver;
mod epilogue;
mod layout;
mod lhs;
mod micro_panels;
mod output;
mod pack;
mod packed_matrix;
mod prefetch;
mod tile_kernel;
mod vector_kernel;
mod visit_order;

pub use attention::{
    AttentionBuffer, AttentionWindow, HeadAttention, HeadRows, attend_head, max_attended_keys,
};
pub use blocking::MAX_NR;
pub use driver::{gemm, gemm_into_lhs};
pub use epilogue::{Epilogue, Factors};
pub use layout::{F32_SIGNIFICAND_BITS, GemmType, int8_format};
pub use lhs::{Lhs, LhsBuffer, row_stride};
pub use output::{OutputBlock, OutputMatrix};
pub use pack::MatrixView;
pub use packed_matrix::{PackedMatrix, SharedBytes};
