//! Where a stack runs and what it computes in: the one place where a device is chosen.

use std::fmt;

use candle_core::{DType, Device, Result, Tensor};

use super::gpu;
use crate::kernels::isa::Isa;
use crate::kernels::matmul::Compute;

/// What a stack runs on. The source of its weights places every one of them there.
#[derive(Debug, Clone)]
pub enum Engine {
    /// The CPU with the kernels of this crate, and the type of its products.
    Cpu(Compute),
    /// A device with candle's operations, and on a GPU with kernels of our own; weights and hidden states are of `dtype`.
    Device { device: Device, dtype: DType },
}

/// Which devices the user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A GPU if there is one that can do it, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// These GPUs.
    Cuda(Vec<usize>),
}

/// What the user wants to compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    F32,
    /// Products of f32 from two parts of bf16 each, on the CPU.
    Bf16x3,
    F16,
    Bf16,
    Int8,
}

impl Precision {
    /// The type of products on the CPU.
    fn on_cpu(self) -> Option<Compute> {
        match self {
            Precision::F32 => Some(Compute::F32),
            Precision::Bf16x3 => Some(Compute::Bf16x3),
            Precision::Bf16 => Some(Compute::Bf16),
            Precision::Int8 => Some(Compute::Int8),
            Precision::F16 => None,
        }
    }

    /// The type of weights and hidden states on a GPU.
    fn on_gpu(self) -> Option<DType> {
        match self {
            Precision::F32 => Some(DType::F32),
            Precision::F16 => Some(DType::F16),
            Precision::Bf16 => Some(DType::BF16),
            Precision::Bf16x3 | Precision::Int8 => None,
        }
    }
}

/// Why an engine is not to be had, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Options contradict each other.
    Usage(String),
    /// The machine or this build has not got it.
    Missing(String),
}

impl Engine {
    /// The engines that the user wants: one, or one for each GPU; and why it is the CPU where a GPU was hoped for.
    ///
    /// # Errors
    /// If a GPU is not there, or the device does not compute in that type.
    pub fn choose(
        wanted: &Wanted,
        precision: Precision,
    ) -> std::result::Result<(Vec<Engine>, Option<String>), Refusal> {
        let mut note = None;
        match (wanted, precision.on_gpu()) {
            (Wanted::Auto, Some(dtype)) if cfg!(feature = "cuda") => match Self::cuda(0, dtype) {
                Ok(engine) => return Ok((vec![engine], None)),
                Err(why) => note = Some(format!("{why}: the CPU computes")),
            },
            (Wanted::Auto | Wanted::Cpu, _) => {}
            (Wanted::Cuda(_), None) => {
                let dtype = precision.on_cpu().map_or("", Compute::name);
                return Err(Refusal::Usage(format!(
                    "--dtype {dtype} is for the CPU; pass --dtype bf16 or f16, or --device cpu"
                )));
            }
            (Wanted::Cuda(ordinals), Some(dtype)) => {
                let open = |ordinal: &usize| {
                    Self::cuda(*ordinal, dtype).map_err(|why| {
                        Refusal::Missing(format!("--device cuda:{ordinal}: {why}; pass --device cpu"))
                    })
                };
                return Ok((ordinals.iter().map(open).collect::<std::result::Result<_, _>>()?, None));
            }
        }
        match precision.on_cpu() {
            Some(compute) => Ok((vec![Engine::Cpu(compute)], note)),
            None => Err(Refusal::Usage(
                "--dtype f16 is for GPUs, and this run has none; pass --dtype bf16 or f32".into(),
            )),
        }
    }

    /// A GPU, or why it is not to be had.
    fn cuda(ordinal: usize, dtype: DType) -> std::result::Result<Engine, String> {
        match (cfg!(feature = "cuda"), gpu::count()) {
            (false, _) => Err("this build is without CUDA, which cargo's --features cuda brings".into()),
            (true, 0) => Err("there is no GPU, or no driver for one".into()),
            (true, count) if ordinal >= count => {
                Err(format!("there is no such GPU, only {}", counted(count)))
            }
            (true, _) => match gpu::open(ordinal) {
                Ok(device) => Ok(Engine::Device { device, dtype }),
                Err(error) => Err(format!("the GPU cannot be used ({error})")),
            },
        }
    }

    /// The device that hidden states lie on.
    pub fn device(&self) -> Device {
        match self {
            Engine::Cpu(_) => Device::Cpu,
            Engine::Device { device, .. } => device.clone(),
        }
    }

    /// What the CPU's kernels multiply in.
    pub fn compute(&self) -> Compute {
        match self {
            Engine::Cpu(compute) => *compute,
            Engine::Device { .. } => Compute::F32,
        }
    }

    /// What runs on the CPU beside this engine, of the same precision if it is the CPU itself.
    pub fn beside(&self) -> Engine {
        Engine::Cpu(self.compute())
    }

    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        matches!(self, Engine::Device { device, .. } if !device.is_cpu())
    }

    /// Whether weights and hidden states have 16 bits.
    pub fn is_16_bit(&self) -> bool {
        matches!(self, Engine::Device { dtype: DType::F16 | DType::BF16, .. })
    }

    /// Bytes of a GPU's memory that nobody holds.
    pub fn free_memory(&self) -> Option<usize> {
        gpu::free_memory(&self.device())
    }

    /// A tensor of f32 on the CPU, brought to where the engine wants it.
    pub fn place(&self, tensor: Tensor) -> Result<Tensor> {
        match self {
            Engine::Cpu(_) => Ok(tensor),
            // Narrowed first: that is less to carry.
            Engine::Device { device, dtype } => tensor.to_dtype(*dtype)?.to_device(device),
        }
    }

    /// The name of its type on the command line.
    pub fn dtype(&self) -> &'static str {
        match self {
            Engine::Cpu(compute) => compute.name(),
            Engine::Device { dtype, .. } => dtype.as_str(),
        }
    }
}

/// The CPU in f32.
impl Default for Engine {
    fn default() -> Self {
        Engine::Cpu(Compute::F32)
    }
}

/// The device, with what it is.
impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Cpu(_) => write!(f, "cpu, with the instructions of {}", Isa::best().name()),
            Engine::Device { device, .. } => {
                f.write_str(if device.is_cpu() { "cpu, with candle's operations" } else { "cuda" })?;
                gpu::name(device).map_or(Ok(()), |name| write!(f, ", {name}"))
            }
        }
    }
}

fn counted(gpus: usize) -> String {
    if gpus == 1 { "one".into() } else { gpus.to_string() }
}
