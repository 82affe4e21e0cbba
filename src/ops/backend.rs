//! The backend of an encoder: the device it runs on and the dtype it computes in. This is the only place that
//! chooses a device.

use std::fmt;

use candle_core::{DType, Device, Result, Tensor};
use thiserror::Error;

use super::attention::kernel_name;
use super::gpu::{self, AttentionVariant, GpuIdentity, Verdicts, supports_attention, supports_linear};
use super::self_check;
use crate::kernels::gemm::GemmType;
use crate::kernels::isa::Isa;
use crate::named::Named;

/// The device and compute dtype of an encoder. Its weights are loaded onto this device.
#[derive(Debug, Clone)]
pub enum Backend {
    /// The CPU with the kernels of this crate. Weights are packed for this type of GEMM; hidden states are
    /// f32.
    Cpu(GemmType),
    /// A candle device: a GPU with CUDA kernels of this crate and candle's operations, or in tests the CPU
    /// with candle's operations. Weights and hidden states have this dtype.
    Device {
        /// The candle device.
        device: Device,
        /// The dtype of weights and hidden states.
        dtype: DType,
    },
}

/// The device that the user requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceRequest {
    /// The first GPU if it is available and supports the dtype, or else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPUs with these ordinals.
    Cuda(Vec<usize>),
}

/// The compute dtype that the user requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeDtype {
    /// f32.
    F32,
    /// f32 split into two bf16 parts. CPU only.
    Bf16x3,
    /// f16. GPU only.
    F16,
    /// bf16.
    Bf16,
    /// Quantised to 8-bit integers. CPU only.
    Int8,
}

impl ComputeDtype {
    /// The type of GEMM on the CPU, if the CPU supports the dtype.
    fn gemm_type(self) -> Option<GemmType> {
        match self {
            ComputeDtype::F32 => Some(GemmType::F32),
            ComputeDtype::Bf16x3 => Some(GemmType::Bf16x3),
            ComputeDtype::Bf16 => Some(GemmType::Bf16),
            ComputeDtype::Int8 => Some(GemmType::Int8),
            ComputeDtype::F16 => None,
        }
    }

    /// Whether the CPU, or GPUs, support the dtype.
    pub fn is_supported(self, on_gpu: bool) -> bool {
        if on_gpu { self.gpu_dtype().is_some() } else { self.gemm_type().is_some() }
    }

    /// The dtype of weights and hidden states on a GPU, if GPUs support it.
    fn gpu_dtype(self) -> Option<DType> {
        match self {
            ComputeDtype::F32 => Some(DType::F32),
            ComputeDtype::F16 => Some(DType::F16),
            ComputeDtype::Bf16 => Some(DType::BF16),
            ComputeDtype::Bf16x3 | ComputeDtype::Int8 => None,
        }
    }
}

impl Named for ComputeDtype {
    const ALL: &'static [Self] =
        &[ComputeDtype::F32, ComputeDtype::Bf16x3, ComputeDtype::Bf16, ComputeDtype::F16, ComputeDtype::Int8];

    fn name(self) -> &'static str {
        self.gemm_type().map_or("f16", GemmType::name)
    }

    fn aliases(self) -> &'static [&'static str] {
        match self {
            ComputeDtype::F32 => &["float32"],
            ComputeDtype::Bf16 => &["bfloat16"],
            ComputeDtype::F16 => &["float16"],
            ComputeDtype::Bf16x3 | ComputeDtype::Int8 => &[],
        }
    }
}

impl fmt::Display for ComputeDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why the requested device and dtype are not available.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// A GPU was requested with a dtype that only the CPU supports.
    #[error("dtype {0} is not supported on a GPU")]
    CpuOnlyDtype(ComputeDtype),
    /// The CPU has to compute, but only GPUs support the dtype.
    #[error("dtype {0} is not supported on the CPU")]
    GpuOnlyDtype(ComputeDtype),
    /// A requested GPU cannot be used.
    #[error("cuda:{ordinal}: {reason}")]
    Gpu {
        /// The requested ordinal.
        ordinal: usize,
        /// Why it cannot be used.
        reason: GpuUnavailable,
    },
}

/// The reason why a GPU cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GpuUnavailable {
    /// The binary was built without the feature `cuda`.
    #[error("built without CUDA")]
    NotCompiled,
    /// There is no GPU or no driver.
    #[error("no GPU or no driver found")]
    NotFound,
    /// There are only `count` GPUs, counted from 0.
    #[error("only {count} GPU{} found", if *.count == 1 { "" } else { "s" })]
    NoSuchOrdinal {
        /// Number of GPUs.
        count: usize,
    },
    /// The driver refused the GPU, or the GPU is too old; with the error.
    #[error("the GPU cannot be used: {0}")]
    Unusable(String),
}

impl Backend {
    /// The backends for a request: one per requested GPU, or one. With [`DeviceRequest::Auto`] in a build
    /// with CUDA, the second value says why it is the CPU and not a GPU.
    ///
    /// # Errors
    /// If a requested GPU is not available, or the device does not support the dtype.
    pub fn open(
        request: &DeviceRequest,
        dtype: ComputeDtype,
    ) -> std::result::Result<(Vec<Backend>, Option<GpuUnavailable>), DeviceError> {
        let mut fallback_reason = None;
        match (request, dtype.gpu_dtype()) {
            (DeviceRequest::Auto, Some(gpu_dtype)) if cfg!(feature = "cuda") => {
                match Self::open_gpu(0, gpu_dtype) {
                    Ok(backend) => return Ok((vec![backend], None)),
                    Err(reason) => fallback_reason = Some(reason),
                }
            }
            (DeviceRequest::Auto | DeviceRequest::Cpu, _) => {}
            (DeviceRequest::Cuda(_), None) => return Err(DeviceError::CpuOnlyDtype(dtype)),
            (DeviceRequest::Cuda(ordinals), Some(gpu_dtype)) => {
                let open = |&ordinal: &usize| {
                    Self::open_gpu(ordinal, gpu_dtype).map_err(|reason| DeviceError::Gpu { ordinal, reason })
                };
                return Ok((ordinals.iter().map(open).collect::<std::result::Result<_, _>>()?, None));
            }
        }
        match dtype.gemm_type() {
            Some(gemm_type) => Ok((vec![Backend::Cpu(gemm_type)], fallback_reason)),
            None => Err(DeviceError::GpuOnlyDtype(dtype)),
        }
    }

    fn open_gpu(ordinal: usize, dtype: DType) -> std::result::Result<Backend, GpuUnavailable> {
        if !cfg!(feature = "cuda") {
            return Err(GpuUnavailable::NotCompiled);
        }
        match gpu::count() {
            0 => Err(GpuUnavailable::NotFound),
            count if ordinal >= count => Err(GpuUnavailable::NoSuchOrdinal { count }),
            _ => match gpu::open(ordinal) {
                Ok(device) => Ok(Backend::Device { device, dtype }),
                Err(error) => Err(GpuUnavailable::Unusable(error.to_string())),
            },
        }
    }

    /// The backends of the same device, one for each dtype that it supports.
    pub fn each_dtype(&self) -> Vec<Backend> {
        let with = |dtype: &ComputeDtype| match self {
            Backend::Cpu(_) => dtype.gemm_type().map(Backend::Cpu),
            Backend::Device { device, .. } => {
                dtype.gpu_dtype().map(|dtype| Backend::Device { device: device.clone(), dtype })
            }
        };
        ComputeDtype::ALL.iter().filter_map(with).collect()
    }

    /// The device of the hidden states.
    pub fn device(&self) -> Device {
        match self {
            Backend::Cpu(_) => Device::Cpu,
            Backend::Device { device, .. } => device.clone(),
        }
    }

    /// The type of GEMM of the CPU kernels; f32 if this backend is not the CPU.
    pub fn gemm_type(&self) -> GemmType {
        match self {
            Backend::Cpu(gemm_type) => *gemm_type,
            Backend::Device { .. } => GemmType::F32,
        }
    }

    /// The CPU backend for what follows the encoder, such as a pooler: of the same type if this backend is
    /// the CPU, else f32.
    pub fn cpu_companion(&self) -> Backend {
        Backend::Cpu(self.gemm_type())
    }

    /// Whether this is a GPU.
    pub fn is_gpu(&self) -> bool {
        matches!(self, Backend::Device { device, .. } if !device.is_cpu())
    }

    /// Whether every GEMM and the attention of an encoder run in CUDA kernels and cuBLASLt handles of this
    /// crate, of which each thread has its own. candle's operations share one cuBLAS handle. `widths` are the
    /// inputs and outputs of all linear layers.
    pub fn has_kernels(&self, widths: &[usize], attention: &AttentionVariant) -> bool {
        match self {
            Backend::Cpu(_) => false,
            Backend::Device { device, dtype } => {
                let kernel = || kernel_name(*dtype, attention.qk_head_dim);
                // A CPU stands for a GPU whose kernels match.
                let is_trusted =
                    || device.is_cpu() || kernel().is_ok_and(|kernel| gpu::is_trusted(device, &kernel));
                supports_linear(*dtype, widths) && supports_attention(*dtype, attention) && is_trusted()
            }
        }
    }

    /// What decides how the kernels compute on this GPU; `None` if this is no GPU.
    pub fn gpu_identity(&self) -> Option<GpuIdentity> {
        gpu::identity(&self.device())
    }

    /// Compares the kernels for this dtype that have no verdict yet with their references, up to the first
    /// one that does not run, whose name it returns. `None`: all kernels have a verdict.
    ///
    /// # Errors
    /// If the GPU has too little memory, or this is no GPU.
    pub fn check_kernels(&self, verdicts: &mut Verdicts) -> Result<Option<String>> {
        match self {
            Backend::Cpu(_) => candle_core::bail!("the CPU has no CUDA kernels"),
            Backend::Device { device, dtype } => {
                self_check::check(*dtype, self_check::GPU_SLACK, verdicts, &|launch| {
                    launch.run_copied(device)
                })
            }
        }
    }

    /// Waits for this thread's work on a GPU.
    ///
    /// # Errors
    /// If a kernel has failed.
    pub fn synchronize(&self) -> Result<()> {
        gpu::synchronize(&self.device())
    }

    /// Launches the kernels that match their references from now on. On a GPU without verdicts, candle's
    /// operations compute.
    pub fn trust_kernels(&self, verdicts: &Verdicts) {
        gpu::trust(&self.device(), verdicts);
    }

    /// Bytes of free memory of a GPU.
    pub fn free_memory(&self) -> Option<usize> {
        gpu::free_memory(&self.device())
    }

    /// Converts an f32 tensor on the CPU to the dtype and device of this backend.
    pub fn transfer(&self, tensor: Tensor) -> Result<Tensor> {
        match self {
            Backend::Cpu(_) => Ok(tensor),
            // Converted before the copy, which then moves fewer bytes.
            Backend::Device { device, dtype } => tensor.to_dtype(*dtype)?.to_device(device),
        }
    }

    /// The name of the compute dtype on the command line.
    pub fn dtype(&self) -> &'static str {
        match self {
            Backend::Cpu(gemm_type) => gemm_type.name(),
            Backend::Device { dtype, .. } => dtype.as_str(),
        }
    }
}

/// The CPU in f32.
impl Default for Backend {
    fn default() -> Self {
        Backend::Cpu(GemmType::F32)
    }
}

/// The device, with the ISA of a CPU or the name of a GPU.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Cpu(_) => write!(f, "cpu ({})", Isa::selected().name()),
            Backend::Device { device, .. } if device.is_cpu() => f.write_str("cpu (candle operations)"),
            Backend::Device { device, .. } => {
                f.write_str("cuda")?;
                gpu::name(device).map_or(Ok(()), |name| write!(f, " ({name})"))
            }
        }
    }
}
