//! What CUDA is asked for: devices, launches, and the products of cuBLAS.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::ManuallyDrop;

use candle_core::cuda::cudarc::cublaslt::safe::{CudaBlasLT, Matmul, MatmulConfig};
use candle_core::cuda::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda::{CudaDType, CudaDevice, CudaStorageSlice, DeviceId, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Error, Result, Storage, Tensor};
use half::{bf16, f16};

use super::{Arg, Launch, Written};

/// The kernels of `kernels/cuda/`, assembled when this program was built; the driver translates them for the GPU at hand.
const MODULES: &[(&str, &str)] = &[
    ("lookup", include_str!(concat!(env!("OUT_DIR"), "/lookup.ptx"))),
    ("linear", include_str!(concat!(env!("OUT_DIR"), "/linear.ptx"))),
    ("norm", include_str!(concat!(env!("OUT_DIR"), "/norm.ptx"))),
    ("rotate", include_str!(concat!(env!("OUT_DIR"), "/rotary.ptx"))),
    ("attention", include_str!(concat!(env!("OUT_DIR"), "/attention.ptx"))),
    ("pool", include_str!(concat!(env!("OUT_DIR"), "/pooling.ptx"))),
];

/// GPUs that this process can use.
pub fn count() -> usize {
    CudaContext::device_count().map_or(0, |count| count.max(0) as usize)
}

/// A GPU by its number.
pub fn open(ordinal: usize) -> Result<Device> {
    let device = Device::new_cuda(ordinal)?;
    let cuda = device.as_cuda_device()?;
    let (major, minor) = cuda.cuda_stream().context().compute_capability().w()?;
    if major < 8 {
        candle_core::bail!("its compute capability is {major}.{minor}, and the kernels are for 8.0 and later")
    }
    // Whether the driver is new enough for them.
    let (module, code) = MODULES[0];
    cuda.get_or_load_custom_func("lookup_f32", module, code)?;
    // SAFETY: each thread has a queue of its own, and a tensor is used by the thread that has made it, or after `finish`. So
    // there is nothing to wait for, and no need of two events for every tensor.
    unsafe { cuda.disable_event_tracking() };
    Ok(device)
}

/// Waits for all that this thread has put into its queue: other threads may use what it makes.
pub fn finish(device: &Device) -> Result<()> {
    device.synchronize()
}

/// What a GPU calls itself.
pub fn name(device: &Device) -> Option<String> {
    device.as_cuda_device().ok()?.cuda_stream().context().name().ok()
}

/// Bytes of a GPU's memory that nobody holds.
pub fn free_memory(device: &Device) -> Option<usize> {
    let (free, _) = device.as_cuda_device().ok()?.cuda_stream().context().mem_get_info().ok()?;
    Some(free)
}

/// Puts a kernel into this thread's queue of `device`.
pub fn launch(launch: &Launch, device: &Device) -> Result<Tensor> {
    let cuda = device.as_cuda_device()?;
    let stream = cuda.cuda_stream();
    let root = launch.kernel.split('_').next().unwrap_or_default();
    let Some((module, code)) = MODULES.iter().find(|(name, _)| *name == root) else {
        candle_core::bail!("there is no kernel {}", launch.kernel)
    };
    let function = cuda.get_or_load_custom_func(&launch.kernel, module, code)?;
    let to = match &launch.to {
        // SAFETY: the kernel writes all of it before anyone can read it: this thread's later work waits in the same queue.
        Written::New(shape, dtype) => unsafe { Tensor::empty(&shape[..], *dtype, device)? },
        Written::Over(tensor) => (*tensor).clone(),
    };
    let mut arguments = vec![Argument::Pointer(address(&to, &stream)?)];
    for arg in &launch.args {
        arguments.push(match arg {
            Arg::Tensor(None) => Argument::Pointer(0),
            Arg::Tensor(Some(tensor)) => Argument::Pointer(address(tensor, &stream)?),
            Arg::U32(count) => Argument::U32(*count),
            Arg::F32(number) => Argument::F32(*number),
        });
    }
    let mut builder = function.builder();
    for argument in &arguments {
        match argument {
            Argument::Pointer(address) => builder.arg(address),
            Argument::U32(count) => builder.arg(count),
            Argument::F32(number) => builder.arg(number),
        };
    }
    let [x, y, z] = launch.grid.map(|blocks| blocks as u32);
    let block_dim = (launch.block as u32, 1, 1);
    let config = LaunchConfig { grid_dim: (x, y, z), block_dim, shared_mem_bytes: 0 };
    if launch.grid.contains(&0) {
        return Ok(to);
    }
    // SAFETY: each operation hands over the arguments that its kernel takes, with the sizes of the tensors that they come
    // with; the tests launch them in an emulator that checks every address. Memory is freed through the same queue,
    // after the kernel has run.
    unsafe { builder.launch(config).w()? };
    Ok(to)
}

/// An argument as the driver takes it.
enum Argument {
    Pointer(u64),
    U32(u32),
    F32(f32),
}

/// Where the first element of a contiguous tensor lies on the GPU.
fn address(tensor: &Tensor, stream: &CudaStream) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, _)) = layout.contiguous_offsets() else {
        candle_core::bail!("the operand has to be contiguous")
    };
    let Storage::Cuda(storage) = &*storage else { candle_core::bail!("the operand has to lie on the GPU") };
    let base = match &storage.slice {
        CudaStorageSlice::U32(slice) => slice.device_ptr(stream).0,
        CudaStorageSlice::F32(slice) => slice.device_ptr(stream).0,
        CudaStorageSlice::F16(slice) => slice.device_ptr(stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(stream).0,
        _ => candle_core::bail!("the kernels take no {:?}", tensor.dtype()),
    };
    Ok(base + (start * tensor.dtype().size_in_bytes()) as u64)
}

thread_local! {
    /// cuBLAS for each device that this thread has used: its scratch is for one user at a time. It is not given back: when a
    /// thread ends, the driver may be gone already.
    static BLAS: RefCell<HashMap<DeviceId, ManuallyDrop<CudaBlasLT>>> = RefCell::default();
}

/// `x Wᵀ + b` for `x` of `(T, inputs)` and `weight` of `(outputs, inputs)`, in 16 bits with sums in f32; both widths are
/// multiples of 8.
pub fn product(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 => multiply::<f16>(x, weight, bias),
        DType::BF16 => multiply::<bf16>(x, weight, bias),
        other => candle_core::bail!("products of {other:?} are candle's"),
    }
}

fn multiply<T: CudaDType + DeviceRepr>(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor>
where
    CudaBlasLT: Matmul<T>,
{
    let ((rows, inputs), (outputs, _)) = (x.dims2()?, weight.dims2()?);
    let device = x.device().as_cuda_device()?;
    // Column by column the product is `W xᵀ`, whose operands lie as they are wanted.
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
    // SAFETY: cuBLAS writes every number of it.
    let mut y: CudaSlice<T> = unsafe { device.alloc(rows * outputs)? };
    let mut call = |bias: Option<&CudaSlice<T>>| {
        with_slice(weight, |weight| {
            with_slice(x, |x| {
                with_blas(device, |blas| {
                    // SAFETY: the sizes are those of the tensors, checked above and where the layer was made.
                    unsafe { blas.matmul(config, weight, x, &mut y, bias, None).map_err(Error::wrap) }
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

/// Calls `f` with the memory of a tensor that fills its storage.
fn with_slice<T: CudaDType, R>(x: &Tensor, f: impl FnOnce(&CudaSlice<T>) -> Result<R>) -> Result<R> {
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) if layout.is_contiguous() && layout.start_offset() == 0 => {
            f(storage.as_cuda_slice()?)
        }
        _ => candle_core::bail!("the operand has to fill its memory on the GPU"),
    }
}

fn with_blas<R>(device: &CudaDevice, f: impl FnOnce(&CudaBlasLT) -> Result<R>) -> Result<R> {
    BLAS.with_borrow_mut(|all| match all.entry(device.id()) {
        Entry::Occupied(blas) => f(blas.get()),
        Entry::Vacant(place) => {
            // The most that its scratch takes; where there is no room for it, cudarc panics.
            const SCRATCH: usize = 32 << 20;
            drop(device.alloc_zeros::<u8>(SCRATCH)?);
            let blas = CudaBlasLT::new(device.cuda_stream()).map_err(Error::wrap)?;
            f(place.insert(ManuallyDrop::new(blas)))
        }
    })
}
