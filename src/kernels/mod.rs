//! Loops over slices of `f32`: one row in, one row out, always in the same order, so that a row's result
//! never depends on what else is in the batch or on how many threads run.

pub mod activation;
pub mod isa;
pub mod matmul;
pub mod norm;
pub mod softmax;
