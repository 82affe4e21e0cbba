//! The substitute for `cuda.rs` in builds without CUDA: there are no GPUs.

use candle_core::{Device, Error, Result, Tensor};

use super::identity::GpuIdentity;
use super::launch::Launch;

/// Number of GPUs.
pub fn count() -> usize {
    0
}

/// Opens a GPU.
///
/// # Errors
/// Always.
pub fn open(_ordinal: usize) -> Result<Device> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// The name of a GPU.
pub fn name(_device: &Device) -> Option<String> {
    None
}

/// What decides how the kernels compute on a GPU.
pub fn identity(_device: &Device) -> Option<GpuIdentity> {
    None
}

/// Bytes of free memory of a GPU.
pub fn free_memory(_device: &Device) -> Option<usize> {
    None
}

/// Waits for this thread's stream of a GPU.
///
/// # Errors
/// Never.
pub fn synchronize(_device: &Device) -> Result<()> {
    Ok(())
}

/// Launches a kernel.
///
/// # Errors
/// Always.
pub(super) fn launch(_launch: &Launch, _device: &Device) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// `x Wᵀ + b` by cuBLAS.
///
/// # Errors
/// Always.
pub(in crate::ops) fn linear(_x: &Tensor, _weight: &Tensor, _bias: Option<&Tensor>) -> Result<Tensor> {
    Err(Error::NotCompiledWithCudaSupport)
}

/// Whether candle's error wraps a driver's "out of memory".
pub(super) fn is_out_of_memory(_error: &Error) -> bool {
    false
}
