//! Calls of CUDA: devices, kernel launches, and GEMM by cuBLASLt.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::fs;
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;

use candle_core::cuda::cudarc::cublas::result::CublasError as CandleCublasError;
use candle_core::cuda::cudarc::cublas::sys::cublasStatus_t as CandleCublasStatus;
use candle_core::cuda::cudarc::cublaslt::result::CublasError;
use candle_core::cuda::cudarc::cublaslt::safe::{CudaBlasLT, Matmul, MatmulConfig};
use candle_core::cuda::cudarc::cublaslt::sys::cublasStatus_t;
use candle_core::cuda::cudarc::driver::sys::CUresult;
use candle_core::cuda::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
};
use candle_core::cuda::{CudaDType, CudaDevice, CudaError, CudaStorageSlice, DeviceId, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Error, Result, Storage, Tensor};
use half::{bf16, f16};

use super::error::OutOfMemory;
use super::identity::{GpuIdentity, driver_version};
use super::launch::{Arg, Launch, LaunchOutput};

/// The kernels of `kernels/cuda/` as PTX, by the first word of their names. The driver compiles them for the
/// GPU.
const MODULES: &[(&str, &str)] = &[
    ("lookup", include_str!(concat!(env!("OUT_DIR"), "/lookup.ptx"))),
    ("linear", include_str!(concat!(env!("OUT_DIR"), "/linear.ptx"))),
    ("norm", include_str!(concat!(env!("OUT_DIR"), "/norm.ptx"))),
    ("rotate", include_str!(concat!(env!("OUT_DIR"), "/rotary.ptx"))),
    ("attention", include_str!(concat!(env!("OUT_DIR"), "/attention.ptx"))),
    ("pool", include_str!(concat!(env!("OUT_DIR"), "/pooling.ptx"))),
];

/// Number of GPUs that this process can use.
pub fn count() -> usize {
    CudaContext::device_count().map_or(0, |count| count.max(0) as usize)
}

/// Opens a GPU.
///
/// # Errors
/// If the driver refuses it, or the GPU or the driver is too old for the kernels.
pub fn open(ordinal: usize) -> Result<Device> {
    let device = Device::new_cuda(ordinal)?;
    let cuda = device.as_cuda_device()?;
    let (major, minor) = cuda.cuda_stream().context().compute_capability().w()?;
    if major < 8 {
        candle_core::bail!("its compute capability is {major}.{minor}, and 8.0 or later is required")
    }
    // Fails if the driver is too old for the PTX.
    let (module, code) = MODULES[0];
    cuda.get_or_load_custom_func("lookup_f32", module, code)?;
    // SAFETY: without events the caller has to order uses on different streams. Each thread has one stream,
    // and other threads use a tensor only after its thread has called `synchronize`.
    unsafe { cuda.disable_event_tracking() };
    Ok(device)
}

/// Waits for this thread's stream. After that, other threads may use the tensors that this thread has
/// computed.
///
/// # Errors
/// If a kernel has failed.
pub fn synchronize(device: &Device) -> Result<()> {
    device.synchronize()
}

/// The name of a GPU.
pub fn name(device: &Device) -> Option<String> {
    device.as_cuda_device().ok()?.cuda_stream().context().name().ok()
}

/// What decides how the kernels compute on a GPU.
pub fn identity(device: &Device) -> Option<GpuIdentity> {
    let stream = device.as_cuda_device().ok()?.cuda_stream();
    let context = stream.context();
    let mut kernels = DefaultHasher::new();
    MODULES.hash(&mut kernels);
    Some(GpuIdentity {
        name: context.name().ok()?,
        compute_capability: context.compute_capability().ok()?,
        driver: fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| driver_version(&text)),
        kernels: kernels.finish(),
    })
}

/// Bytes of free memory of a GPU.
pub fn free_memory(device: &Device) -> Option<usize> {
    let (free, _) = device.as_cuda_device().ok()?.cuda_stream().context().mem_get_info().ok()?;
    Some(free)
}

/// Enqueues a kernel on this thread's stream of `device`, and returns its output.
///
/// # Errors
/// If there is no such kernel, the GPU has no memory for the output, or an operand is on another device or
/// not contiguous.
pub(super) fn launch(launch: &Launch, device: &Device) -> Result<Tensor> {
    let cuda = device.as_cuda_device()?;
    let stream = cuda.cuda_stream();
    let root = launch.kernel.split('_').next().unwrap_or_default();
    let Some((module, code)) = MODULES.iter().find(|(name, _)| *name == root) else {
        candle_core::bail!("there is no CUDA kernel {}", launch.kernel)
    };
    let function = cuda.get_or_load_custom_func(&launch.kernel, module, code)?;
    let output = match &launch.output {
        // SAFETY: the kernel writes every element (`LaunchOutput::New`), and later reads are enqueued on the
        // same stream.
        LaunchOutput::New(shape, dtype) => unsafe { Tensor::empty(&shape[..], *dtype, device)? },
        LaunchOutput::InPlace(tensor) => (*tensor).clone(),
    };
    let mut arguments = vec![Argument::Pointer(address(&output, &stream)?)];
    for arg in &launch.args {
        arguments.push(match arg {
            Arg::Tensor(None) => Argument::Pointer(0),
            Arg::Tensor(Some(tensor)) => Argument::Pointer(address(tensor, &stream)?),
            Arg::U32(count) => Argument::U32(*count),
            Arg::F32(value) => Argument::F32(*value),
        });
    }
    let mut builder = function.builder();
    for argument in &arguments {
        match argument {
            Argument::Pointer(address) => builder.arg(address),
            Argument::U32(count) => builder.arg(count),
            Argument::F32(value) => builder.arg(value),
        };
    }
    let [x, y, z] = launch.grid.map(|blocks| blocks as u32);
    let block_dim = (launch.block as u32, 1, 1);
    let config = LaunchConfig { grid_dim: (x, y, z), block_dim, shared_mem_bytes: 0 };
    if launch.grid.contains(&0) {
        return Ok(output);
    }
    // SAFETY: every operation passes the arguments in the signature of its kernel, with the sizes of the
    // tensors, which its `launch` function has checked; `tests/integration/cuda_kernels.rs` runs the launches
    // in an emulator that checks every address. The pointers stay valid until the kernel has run, because
    // memory is freed through the same stream.
    unsafe { builder.launch(config).w()? };
    Ok(output)
}

/// An argument in the representation of the driver.
enum Argument {
    Pointer(u64),
    U32(u32),
    F32(f32),
}

/// The device address of the first element of a contiguous tensor.
fn address(tensor: &Tensor, stream: &CudaStream) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, _)) = layout.contiguous_offsets() else {
        candle_core::bail!("the operand of a CUDA kernel must be contiguous")
    };
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("the operand of a CUDA kernel must be on the GPU")
    };
    let base = match &storage.slice {
        CudaStorageSlice::U32(slice) => slice.device_ptr(stream).0,
        CudaStorageSlice::F32(slice) => slice.device_ptr(stream).0,
        CudaStorageSlice::F16(slice) => slice.device_ptr(stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(stream).0,
        _ => candle_core::bail!("there are no CUDA kernels for {:?}", tensor.dtype()),
    };
    Ok(base + (start * tensor.dtype().size_in_bytes()) as u64)
}

thread_local! {
    /// The cuBLASLt handle of each device that this thread has used; its workspace serves one caller at a
    /// time. Handles are never dropped: when a thread ends, the driver may already be unloaded.
    static BLAS: RefCell<HashMap<DeviceId, ManuallyDrop<CudaBlasLT>>> = RefCell::default();
}

/// `x Wᵀ + b` for `x` of `(T, inputs)` and `weight` of `(outputs, inputs)`, in f16 or bf16 with accumulation
/// in f32. Both widths are multiples of 8.
///
/// # Errors
/// If the dtype is another one, the GPU is out of memory, or an operand is not contiguous on the GPU.
pub(in crate::ops) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 => gemm::<f16>(x, weight, bias),
        DType::BF16 => gemm::<bf16>(x, weight, bias),
        other => candle_core::bail!("the GEMM of this crate on a GPU is f16 or bf16, not {other:?}"),
    }
}

fn gemm<T: CudaDType + DeviceRepr>(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor>
where
    CudaBlasLT: Matmul<T>,
{
    let ((rows, inputs), (outputs, _)) = (x.dims2()?, weight.dims2()?);
    let device = x.device().as_cuda_device()?;
    // cuBLASLt is column-major: it computes yᵀ = W xᵀ, for which the row-major operands need no copies.
    let config = MatmulConfig {
        transa: true,
        transb: false,
        transc: false,
        m: outputs as u64,
        n: rows as u64,
        k: inputs as u64,
        alpha: 1.0,
        lda: inputs as i64,
        ldb: inputs as i64,
        beta: 0.0,
        ldc: outputs as i64,
        stride_a: None,
        stride_b: None,
        stride_c: None,
        stride_bias: None,
        batch_size: None,
    };
    // SAFETY: cuBLASLt writes every element.
    let mut y: CudaSlice<T> = unsafe { device.alloc(rows * outputs)? };
    let mut call = |bias: Option<&CudaSlice<T>>| {
        with_slice(weight, |weight| {
            with_slice(x, |x| {
                with_blas(device, |blas| {
                    // SAFETY: `x` has `rows · inputs` elements and `weight` `outputs · inputs`, as `dims2`
                    // says and both fill their storage; `y` has been allocated with `rows · outputs`.
                    // `LinearWeights::new` has checked that the bias has `outputs`.
                    unsafe { blas.matmul(config, weight, x, &mut y, bias, None).map_err(blas_error) }
                })
            })
        })
    };
    match bias {
        Some(bias) => with_slice(bias, |bias| call(Some(bias)))?,
        None => call(None)?,
    }
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(y, device.clone()));
    Ok(Tensor::from_storage(storage, (rows, outputs), BackpropOp::none(), false))
}

/// Calls `f` with the device memory of a contiguous tensor that fills its storage.
fn with_slice<T: CudaDType, R>(x: &Tensor, f: impl FnOnce(&CudaSlice<T>) -> Result<R>) -> Result<R> {
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) if layout.is_contiguous() && layout.start_offset() == 0 => {
            f(storage.as_cuda_slice()?)
        }
        _ => candle_core::bail!("the operand of a GEMM must fill its storage on the GPU"),
    }
}

/// Calls `f` with this thread's cuBLASLt handle of a device.
fn with_blas<R>(device: &CudaDevice, f: impl FnOnce(&CudaBlasLT) -> Result<R>) -> Result<R> {
    BLAS.with_borrow_mut(|all| match all.entry(device.id()) {
        Entry::Occupied(blas) => f(blas.get()),
        Entry::Vacant(entry) => {
            // The maximum size of its workspace. cudarc panics if it cannot allocate the workspace, so the
            // allocation is tried first.
            const MAX_WORKSPACE_BYTES: usize = 32 << 20;
            drop(device.alloc_zeros::<u8>(MAX_WORKSPACE_BYTES)?);
            let blas = CudaBlasLT::new(device.cuda_stream()).map_err(blas_error)?;
            f(entry.insert(ManuallyDrop::new(blas)))
        }
    })
}

/// An error of cuBLASLt, as [`OutOfMemory`] if that is its status.
fn blas_error(error: CublasError) -> Error {
    match error {
        CublasError(cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED) => Error::Cuda(Box::new(OutOfMemory)),
        error => Error::wrap(error),
    }
}

/// Whether candle's error wraps the driver's or cuBLAS's "out of memory".
pub(super) fn is_out_of_memory(error: &Error) -> bool {
    const DRIVER: DriverError = DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    const BLAS: CandleCublasError = CandleCublasError(CandleCublasStatus::CUBLAS_STATUS_ALLOC_FAILED);
    match error {
        Error::Cuda(error) => match error.downcast_ref() {
            Some(CudaError::Cuda(error)) | Some(CudaError::Load { cuda: error, .. }) => *error == DRIVER,
            Some(CudaError::Cublas(error)) => *error == BLAS,
            _ => false,
        },
        // candle's matmul erases the type of a cuBLAS error, its `synchronize` that of a driver error: all
        // that is left is their text.
        Error::Wrapped(error) => [DRIVER.to_string(), BLAS.to_string()].contains(&error.to_string()),
        _ => false,
    }
}
