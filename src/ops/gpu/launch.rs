//! Launches of the CUDA kernels in `kernels/cuda/`, as plain data: grids and arguments can be tested on
//! machines without a GPU.

use candle_core::{DType, Result, Tensor};

/// One launch of a kernel.
pub struct Launch<'a> {
    /// The name of the kernel, with the dtype of its tensors as a suffix.
    pub kernel: String,
    /// Blocks of the grid in x, y and z.
    pub grid: [usize; 3],
    /// Threads of a block.
    pub block: usize,
    /// The output, which is the first argument of the kernel.
    pub output: LaunchOutput<'a>,
    /// The other arguments.
    pub args: Vec<Arg<'a>>,
}

/// The tensor that a kernel writes.
pub enum LaunchOutput<'a> {
    /// A new tensor of this shape and dtype. The kernel writes every element.
    New(Vec<usize>, DType),
    /// A tensor that the kernel reads and overwrites; nothing else holds it.
    InPlace(&'a Tensor),
}

/// An argument that a kernel reads.
pub enum Arg<'a> {
    /// A contiguous tensor on the device, or a null pointer.
    Tensor(Option<&'a Tensor>),
    /// An `unsigned`.
    U32(u32),
    /// A `float`.
    F32(f32),
}

impl<'a> From<&'a Tensor> for Arg<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Arg::Tensor(Some(tensor))
    }
}

impl<'a> From<Option<&'a Tensor>> for Arg<'a> {
    fn from(tensor: Option<&'a Tensor>) -> Self {
        Arg::Tensor(tensor)
    }
}

impl From<usize> for Arg<'_> {
    /// Saturates: kernels count in 32 bits, and the maximum means "unlimited".
    fn from(count: usize) -> Self {
        Arg::U32(u32::try_from(count).unwrap_or(u32::MAX))
    }
}

impl From<f64> for Arg<'_> {
    fn from(value: f64) -> Self {
        Arg::F32(value as f32)
    }
}

/// The suffix of the names of kernels for tensors of a dtype.
///
/// # Errors
/// If there are no kernels for the dtype.
pub(in crate::ops) fn suffix(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(dtype.as_str()),
        other => candle_core::bail!("there are no CUDA kernels for {other:?}"),
    }
}

/// Checks the dtype and shape of an operand, so that no kernel reads past its end or misinterprets it. A
/// missing operand is accepted.
///
/// # Errors
/// If the dtype or the shape differs.
pub(in crate::ops) fn expect<'a>(
    x: impl Into<Option<&'a Tensor>>,
    dtype: DType,
    shape: &[usize],
) -> Result<()> {
    match x.into() {
        Some(x) if x.dims() != shape || x.dtype() != dtype => {
            candle_core::bail!("expected {dtype:?} {shape:?}, found {:?} {:?}", x.dtype(), x.dims())
        }
        _ => Ok(()),
    }
}
