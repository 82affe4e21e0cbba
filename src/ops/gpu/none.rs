//! A build without CUDA: there are no GPUs, and nothing that could be asked of one.

use candle_core::{Device, Error, Result, Tensor};

use super::Launch;

/// GPUs that this process can use.
pub fn count() -> usize {
    0
}

/// A GPU by its number.
pub fn open(_: usize) -> Result<Device> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// What a GPU calls itself.
pub fn name(_: &Device) -> Option<String> {
    None
}

/// Bytes of a GPU's memory that nobody holds.
pub fn free_memory(_: &Device) -> Option<usize> {
    None
}

/// Waits for what this thread has put into a GPU's queue.
pub fn finish(_: &Device) -> Result<()> {
    Ok(())
}

pub fn launch(_: &Launch, _: &Device) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}

pub fn product(_: &Tensor, _: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}
