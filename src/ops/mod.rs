//! Operations of the encoder. Each file is one operation: the function that `nn` calls, its CPU path over
//! [`crate::kernels`], the launch of its CUDA kernel if there is one, and a `reference` of plain candle
//! operations, which computes everything else and which tests compare with. `self_check` compares the CUDA
//! kernels with it before they are used on a GPU.
//!
//! A batch is ragged: the tokens of all sequences are concatenated in tensors of `(T, H)`. `cu_seqlens` are
//! the offsets of the sequences: sequence `i` has the rows `cu_seqlens[i]..cu_seqlens[i + 1]`.

pub mod activation;
pub mod add_norm;
pub mod allocator;
pub mod attention;
pub mod backend;
pub mod experts;
pub mod feed_forward;
pub mod gpu;
pub mod linear;
pub mod lookup;
pub mod pooling;
pub mod rotary;
pub mod self_check;
pub mod short_convolution;

mod check;
mod host;
mod scratch;
