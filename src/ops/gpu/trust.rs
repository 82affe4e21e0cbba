//! The kernels that compute on each device: no others are launched.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{LazyLock, PoisonError, RwLock};

use candle_core::{Device, DeviceLocation, Result, Tensor};

use super::driver;
use super::launch::{Arg, Launch, LaunchOutput};

/// What a check has found, by the name of the kernel: `None` if the kernel matches its reference, or else how
/// it differs or fails.
pub type Verdicts = BTreeMap<String, Option<String>>;

/// The kernels that match their reference, by device.
static TRUSTED: LazyLock<RwLock<HashMap<DeviceLocation, HashSet<String>>>> = LazyLock::new(RwLock::default);

/// Launches on `device` the kernels that match their reference from now on, and no longer those that do not.
pub fn trust(device: &Device, verdicts: &Verdicts) {
    let mut trusted = TRUSTED.write().unwrap_or_else(PoisonError::into_inner);
    let kernels = trusted.entry(device.location()).or_default();
    for (kernel, fault) in verdicts {
        match fault {
            None => kernels.insert(kernel.clone()),
            Some(_) => kernels.remove(kernel),
        };
    }
}

/// Whether a check has found that a kernel matches its reference on `device`.
pub fn is_trusted(device: &Device, kernel: &str) -> bool {
    let trusted = TRUSTED.read().unwrap_or_else(PoisonError::into_inner);
    trusted.get(&device.location()).is_some_and(|kernels| kernels.contains(kernel))
}

impl Launch<'_> {
    /// Enqueues the kernel on this thread's stream of the device of `tensor`, and returns its output. In the
    /// place of a kernel that is not trusted there, `reference` computes the output.
    ///
    /// # Errors
    /// If the GPU has no memory for the output, or an operand is on another device or not contiguous; those
    /// of `reference`.
    pub fn run_or(&self, tensor: &Tensor, reference: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        if is_trusted(tensor.device(), &self.kernel) {
            driver::launch(self, tensor.device())
        } else {
            reference()
        }
    }

    /// Runs the kernel on `device`, trusted or not, with copies of operands that are on the CPU, and returns
    /// its output on the CPU. What the kernel does not write is NaN.
    ///
    /// # Errors
    /// If the GPU has no memory for the operands, or the kernel fails.
    pub(in crate::ops) fn run_copied(&self, device: &Device) -> Result<Tensor> {
        let copies = self.args.iter().map(|arg| match arg {
            Arg::Tensor(Some(x)) => x.to_device(device).map(Some),
            _ => Ok(None),
        });
        let copies = copies.collect::<Result<Vec<_>>>()?;
        let args = self.args.iter().zip(&copies).map(|(arg, copy)| match arg {
            Arg::Tensor(_) => Arg::Tensor(copy.as_ref()),
            Arg::U32(count) => Arg::U32(*count),
            Arg::F32(value) => Arg::F32(*value),
        });
        let output = match &self.output {
            LaunchOutput::New(shape, dtype) => {
                Tensor::full(f32::NAN, &shape[..], &Device::Cpu)?.to_dtype(*dtype)?.to_device(device)?
            }
            LaunchOutput::InPlace(x) => x.to_device(device)?,
        };
        let launch = Launch {
            kernel: self.kernel.clone(),
            output: LaunchOutput::InPlace(&output),
            args: args.collect(),
            ..*self
        };
        let output = driver::launch(&launch, device)?;
        driver::synchronize(device)?;
        output.to_device(&Device::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    /// A launch fails on the CPU, so that a result is that of the reference.
    #[test]
    fn a_kernel_is_launched_only_where_it_matches_its_reference() {
        let x = Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
        let is_launched = |kernel: &str| {
            let launch = Launch {
                kernel: kernel.into(),
                grid: [1; 3],
                block: 32,
                output: LaunchOutput::InPlace(&x),
                args: vec![],
            };
            launch.run_or(&x, || Ok(x.clone())).is_err()
        };
        let set = |kernel: &str, fault: Option<&str>| {
            trust(&Device::Cpu, &Verdicts::from([(kernel.into(), fault.map(str::to_owned))]));
        };
        assert!(!is_launched("unchecked"));
        set("matching", None);
        set("wrong", Some("element 0 is NaN, expected 1"));
        assert!(is_launched("matching") && !is_launched("wrong") && !is_launched("unchecked"));
        set("matching", Some("it does not run"));
        assert!(!is_launched("matching"));
    }
}
