//! CPU kernels over slices: GEMM, softmax, norms and activation functions of `f32`; dot products and
//! selection for nearest neighbours.
//!
//! # Dispatch
//!
//! A kernel is written once, generic over the vectors of [`simd::Simd`], and compiled for every ISA.
//! [`isa::Isa`] detects at run time which ISAs the machine supports; [`isa::Isa::run`] executes a kernel with
//! one of them:
//!
//! | name | vectors | GEMM in bf16 | GEMM in int8 |
//! |---|---|---|---|
//! | `amx` | AVX-512, 16 × f32 | tiles | tiles |
//! | `avx512-bf16` | AVX-512, 16 × f32 | `vdpbf16ps` | `vpdpbusd` |
//! | `avx512-vnni` | AVX-512, 16 × f32 | f32 FMA | `vpdpbusd` |
//! | `avx512` | AVX-512, 16 × f32 | f32 FMA | `vpmaddubsw` |
//! | `avx2` | AVX2 with FMA, 8 × f32 | f32 FMA | `vpmaddubsw` |
//! | `neon-dotprod` | NEON, 4 × f32 | f32 FMA | `sdot` |
//! | `neon` | NEON, 4 × f32 | f32 FMA | `smull` |
//! | `portable` | arrays of 4 × f32 | f32 | plain Rust |
//!
//! Functions of this crate take the ISA as an argument. The table is in the order of preference:
//! [`isa::Isa::selected`] is the first one that the machine has, or the one that `SCONCE_ISA` names.
//! `avx512-bf16` is not selected on Intel, where it is slower than `avx512-vnni`.
//!
//! # Reproducibility
//!
//! Every kernel computes rows in a fixed order. The bits of a row depend on the ISA, but not on the other
//! rows of the batch or the number of threads.
//!
//! # Example
//!
//! A linear layer, `y = relu(x Wᵀ + b)`, with `x` of `(2, 3)` and `W` of `(2, 3)`:
//!
//! ```
//! use sconce_kernels::activation::Activation;
//! use sconce_kernels::gemm::{Epilogue, GemmType, LhsBuffer, OutputMatrix, PackedMatrix, gemm};
//! use sconce_kernels::isa::Isa;
//!
//! let isa = Isa::selected();
//! let weights = PackedMatrix::pack(isa, GemmType::F32, &[1.0, 0.0, 2.0, 0.0, -1.0, 0.0], 2, 3);
//! let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
//! let mut y = [0.0; 4];
//!
//! let mut buffer = LhsBuffer::default();
//! let lhs = buffer.convert(&weights, &x, 3, 2);
//! let epilogue = Epilogue { bias: &[0.5, 1.0], activation: Activation::Relu, ..Epilogue::default() };
//! // SAFETY: no other block of `y` exists.
//! let mut block = unsafe { OutputMatrix::new(&mut y, 2).block(0..2, 0..2) };
//! gemm(lhs, &weights, 0..weights.panels(), &epilogue, &mut block);
//!
//! assert_eq!(y, [7.5, 0.0, 16.5, 0.0]);
//! ```

// Without the emulated tiles, a system without AMX has no tile unit: what only tiles use is dead code there.
#![cfg_attr(
    not(any(feature = "emulated-tiles", all(target_arch = "x86_64", target_os = "linux"))),
    allow(dead_code, unused_imports, unused_variables)
)]

pub mod activation;
pub mod dot;
pub mod gemm;
pub mod isa;
pub mod math;
pub mod norm;
#[cfg(feature = "peak")]
pub mod peak;
pub mod quantized;
pub mod select;
pub mod simd;
pub mod softmax;
pub mod tiles;
