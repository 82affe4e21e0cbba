//! Kernels of our own on a GPU: what is launched is plain data, so that the arithmetic of grids and arguments can be tried
//! where there is no GPU. What CUDA itself is asked for stands in one file; a build without it has another in its place.

#[cfg(feature = "cuda")]
#[path = "cuda.rs"]
mod driver;
#[cfg(not(feature = "cuda"))]
#[path = "none.rs"]
mod driver;

use candle_core::{DType, Result, Tensor};

pub(super) use driver::product;
pub use driver::{count, finish, free_memory, name, open};

/// One launch of a kernel in `kernels/cuda/`.
pub struct Launch<'a> {
    /// Its name, with that of the type of its tensors at the end.
    pub kernel: String,
    /// Blocks, in up to three dimensions.
    pub grid: [usize; 3],
    /// Threads of a block.
    pub block: usize,
    /// What is written: its first argument.
    pub to: Written<'a>,
    /// The other arguments.
    pub args: Vec<Arg<'a>>,
}

/// What a kernel writes.
pub enum Written<'a> {
    /// A tensor of this shape and type, made for it. The kernel writes all of it.
    New(Vec<usize>, DType),
    /// A tensor that is read, too, and that nobody else holds.
    Over(&'a Tensor),
}

/// An argument that is read.
pub enum Arg<'a> {
    /// A contiguous tensor on the device; where there is none, a null pointer.
    Tensor(Option<&'a Tensor>),
    /// A count.
    U32(u32),
    /// A number.
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
    /// Saturates: the kernels count in 32 bits, and the largest number stands for no bound.
    fn from(count: usize) -> Self {
        Arg::U32(u32::try_from(count).unwrap_or(u32::MAX))
    }
}

impl From<f64> for Arg<'_> {
    fn from(number: f64) -> Self {
        Arg::F32(number as f32)
    }
}

impl Launch<'_> {
    /// Puts the kernel into the queue of the GPU that the tensors lie on, and gives back what it will have written.
    ///
    /// # Errors
    /// If the GPU has no memory for the result, or an operand lies elsewhere or is not contiguous.
    pub(super) fn run(&self, on: &Tensor) -> Result<Tensor> {
        driver::launch(self, on.device())
    }
}

/// The end of the name of a kernel for tensors of a type.
///
/// # Errors
/// If there is none.
pub(super) fn suffix(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(dtype.as_str()),
        other => candle_core::bail!("there are no kernels for {other:?}"),
    }
}

/// Refuses an operand that a kernel would read past its end, or as what it is not.
pub(super) fn expect<'a>(x: impl Into<Option<&'a Tensor>>, dtype: DType, shape: &[usize]) -> Result<()> {
    match x.into() {
        Some(x) if x.dims() != shape || x.dtype() != dtype => {
            candle_core::bail!("{:?} {:?}, where {dtype:?} {shape:?} is wanted", x.dtype(), x.dims())
        }
        _ => Ok(()),
    }
}

/// Whether an error says that a GPU's memory does not suffice.
pub fn is_out_of_memory(error: &dyn std::fmt::Display) -> bool {
    let sentence = format!("{error:#}");
    ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"].iter().any(|name| sentence.contains(name))
}
