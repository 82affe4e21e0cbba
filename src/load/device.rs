//! The backends that encoders run on, and the errors if they are not available, in terms of the command line.

use anyhow::{Error, Result};

use super::kernel_check::check_kernels;
use super::options::ModelOptions;
use crate::error::UsageError;
use crate::nn::{Backend, DeviceError, GpuUnavailable};
use crate::sys::console::Console;

/// The backends for `--device` and `--dtype`, one per device.
pub(super) fn backends(options: &ModelOptions, console: &Console) -> Result<Vec<Backend>> {
    let (backends, fallback_reason) =
        Backend::open(&options.device, options.compute_dtype).map_err(device_error)?;
    if let Some(reason) = fallback_reason {
        console.note(format!("{reason}; using the CPU"));
    }
    for backend in &backends {
        console.detail(format!("computing in {} on {backend}", backend.dtype()));
        check_kernels(backend, console)?;
    }
    Ok(backends)
}

fn device_error(error: DeviceError) -> Error {
    match error {
        DeviceError::CpuOnlyDtype(dtype) => Error::new(UsageError(format!(
            "--dtype {dtype} is not supported on a GPU; use --dtype bf16 or f16, or --device cpu"
        ))),
        DeviceError::GpuOnlyDtype(dtype) => {
            Error::new(UsageError(format!("--dtype {dtype} needs a GPU; use --dtype bf16 or f32")))
        }
        DeviceError::Gpu { ordinal, reason: GpuUnavailable::NotCompiled } => Error::msg(format!(
            "--device cuda:{ordinal}: built without CUDA; rebuild with --features cuda, or use --device cpu"
        )),
        DeviceError::Gpu { ordinal, reason } => {
            Error::msg(format!("--device cuda:{ordinal}: {reason}; use --device cpu"))
        }
    }
}

/// The backend for pooled vectors, which are copied to the CPU first.
pub(super) fn post_pooling_backend(encoder_backends: &[Backend]) -> Backend {
    encoder_backends.first().map(Backend::cpu_companion).unwrap_or_default()
}
