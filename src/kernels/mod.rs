//! Loops over slices of `f32`: rows in, rows out, always in the same order, so that a row's result never depends
//! on what else is in the batch or on how many threads run.
//!
//! A loop is written once, over the registers of [`simd::Simd`], and compiled for every instruction set of
//! [`isa::Isa`], which chooses one when the process runs.

pub mod activation;
pub mod isa;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod simd;
pub mod softmax;
pub mod tiles;
