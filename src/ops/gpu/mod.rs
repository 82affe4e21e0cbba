//! CUDA: devices, launches of the kernels in `kernels/cuda/`, and GEMM by cuBLAS. `cuda.rs` is the only file
//! that calls CUDA; builds without the feature `cuda` have `no_cuda.rs` in its place.

#[cfg(feature = "cuda")]
#[path = "cuda.rs"]
mod driver;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod driver;
mod error;
mod identity;
mod launch;
mod support;
mod trust;

use std::error::Error;
use std::iter;

pub(super) use driver::linear;
pub use driver::{count, free_memory, identity, name, open, synchronize};
pub use error::OutOfMemory;
pub use identity::GpuIdentity;
pub use launch::{Arg, Launch, LaunchOutput};
pub(super) use launch::{expect, suffix};
pub(super) use support::is_16_bit;
pub use support::{AttentionVariant, HEAD_DIMS, supports_attention, supports_linear};
pub use trust::{Verdicts, is_trusted, trust};

/// Whether `error` or one of its sources is [`OutOfMemory`], or candle's error for the same condition.
pub fn is_out_of_memory(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |&error| error.source()).any(|error| {
        error.is::<OutOfMemory>()
            || error.downcast_ref::<candle_core::Error>().is_some_and(wraps_out_of_memory)
    })
}

fn wraps_out_of_memory(error: &candle_core::Error) -> bool {
    use candle_core::Error;
    match error {
        Error::Cuda(inner) if inner.is::<OutOfMemory>() => true,
        Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
            wraps_out_of_memory(inner)
        }
        error => driver::is_out_of_memory(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_is_found_through_wrappers() {
        let candle = candle_core::Error::Cuda(Box::new(OutOfMemory));
        assert!(is_out_of_memory(&candle));
        let candle = candle.bt().context("alloc");
        assert!(is_out_of_memory(&candle));
        assert!(is_out_of_memory(anyhow::Error::new(candle).context("encode").as_ref()));
        assert!(is_out_of_memory(anyhow::Error::new(OutOfMemory).context("encode").as_ref()));
    }

    #[test]
    fn a_message_about_memory_is_no_out_of_memory() {
        let candle = candle_core::Error::Msg("CUDA_ERROR_OUT_OF_MEMORY".into());
        assert!(!is_out_of_memory(&candle));
        assert!(!is_out_of_memory(anyhow::anyhow!("CUDA_ERROR_OUT_OF_MEMORY").as_ref()));
    }
}
