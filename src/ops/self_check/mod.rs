//! The check of the CUDA kernels: every kernel, as the operations launch it, against its reference in plain
//! candle operations on the CPU. A GPU runs it before the first use of the kernels, the tests in an emulator.

mod cases;

use candle_core::{DType, Result, Tensor};

use super::attention::kernel_name;
use super::gpu::{self, HEAD_DIMS, Launch, Verdicts, is_out_of_memory};

pub use cases::{cu_seqlens, tensor};

/// Runs a launch whose operands are on the CPU, and returns its output on the CPU.
pub type Run<'a> = dyn Fn(&Launch) -> Result<Tensor> + 'a;

/// Passes the launches that a kernel is checked with to a visitor.
type Cases = Box<dyn Fn(&mut cases::Visit) -> Result<()>>;

/// A kernel, and the launches that it is checked with.
struct Kernel {
    name: String,
    tolerance: Tolerance,
    cases: Cases,
}

/// What the output of a kernel may differ by: `atol + rtol · |expected|`.
#[derive(Clone, Copy)]
struct Tolerance {
    atol: f32,
    rtol: f32,
}

/// The factor on all tolerances for a GPU, which adds in another order and approximates exponentials. The
/// arithmetic of the emulator needs none.
pub const GPU_SLACK: f32 = 2.0;

/// The kernels for tensors of a dtype.
fn kernels(dtype: DType) -> Result<Vec<Kernel>> {
    type OfDtype = fn(DType, &mut cases::Visit) -> Result<()>;
    let of_all_dtypes: [(&str, OfDtype); 5] = [
        ("lookup", cases::lookup),
        ("linear", cases::linear),
        ("norm", cases::norm),
        ("rotate", cases::rotary),
        ("pool", cases::pooling),
    ];
    let (suffix, tolerance) = (gpu::suffix(dtype)?, tolerance(dtype));
    let mut kernels: Vec<Kernel> = (of_all_dtypes.into_iter())
        .map(|(root, cases)| Kernel {
            name: format!("{root}_{suffix}"),
            // Pooled vectors are f32, whatever the hidden states are.
            tolerance: if root == "pool" { Tolerance { atol: 1e-6, rtol: 1e-5 } } else { tolerance },
            cases: Box::new(move |visit| cases(dtype, visit)),
        })
        .collect();
    for head_dim in HEAD_DIMS.into_iter().filter(|_| gpu::is_16_bit(dtype)) {
        kernels.push(Kernel {
            name: kernel_name(dtype, head_dim)?,
            tolerance,
            cases: Box::new(move |visit| cases::attention(head_dim, dtype, visit)),
        });
    }
    Ok(kernels)
}

/// The names of the kernels for tensors of a dtype.
///
/// # Errors
/// If there are no kernels for the dtype.
pub fn kernel_names(dtype: DType) -> Result<Vec<String>> {
    Ok(kernels(dtype)?.into_iter().map(|kernel| kernel.name).collect())
}

/// Checks the kernels for tensors of a dtype that have no verdict yet, up to the first one that does not run,
/// whose name it returns: a GPU may refuse every launch after that. `None`: all kernels have a verdict.
/// Tolerances are multiplied by `slack`.
///
/// # Errors
/// If there are no kernels for the dtype, or memory is insufficient.
pub fn check(dtype: DType, slack: f32, verdicts: &mut Verdicts, run: &Run) -> Result<Option<String>> {
    for Kernel { name, tolerance, cases } in kernels(dtype)? {
        if verdicts.contains_key(&name) {
            continue;
        }
        let mut fault = None;
        let checked = cases(&mut |launch, expected, what| {
            if fault.is_none() {
                fault = difference(&run(launch)?, expected, tolerance, slack)?
                    .map(|found| format!("{what}: {found}"));
            }
            Ok(())
        });
        match checked {
            Ok(()) => verdicts.insert(name, fault),
            Err(error) if is_out_of_memory(&error) => return Err(error),
            Err(error) => {
                // A backtrace may follow.
                let message = error.to_string();
                let message = message.lines().next().unwrap_or_default();
                verdicts.insert(name.clone(), Some(format!("it does not run: {message}")));
                return Ok(Some(name));
            }
        };
    }
    Ok(None)
}

/// The tolerance of a dtype: a few rounding errors, in f32 of the sums of a norm of values around 20.
fn tolerance(dtype: DType) -> Tolerance {
    let (atol, rtol) = match dtype {
        DType::F32 => (1e-5, 1e-5),
        DType::F16 => (1e-3, 2e-3),
        _ => (8e-3, 8e-3),
    };
    Tolerance { atol, rtol }
}

/// The first difference of the output of a kernel from that of the reference.
fn difference(found: &Tensor, expected: &Tensor, tolerance: Tolerance, slack: f32) -> Result<Option<String>> {
    if found.dims() != expected.dims() {
        return Ok(Some(format!("the shape is {:?}, expected {:?}", found.dims(), expected.dims())));
    }
    let Tolerance { atol, rtol } = tolerance;
    let [found, expected] =
        [found, expected].map(|x| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>());
    Ok(first_difference(&found?, &expected?, slack * atol, slack * rtol))
}

/// The first element that is neither equal nor within `atol + rtol · |expected|`, or a difference of length.
pub fn first_difference(found: &[f32], expected: &[f32], atol: f32, rtol: f32) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} values, expected {}", found.len(), expected.len()));
    }
    // Infinite values are equal only to themselves, NaN to nothing.
    let is_close = |(f, e): (&f32, &f32)| f == e || e.is_finite() && (f - e).abs() <= atol + rtol * e.abs();
    let i = found.iter().zip(expected).position(|pair| !is_close(pair))?;
    Some(format!("element {i} is {}, expected {}", found[i], expected[i]))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use candle_core::{Device, Error};

    use super::*;
    use crate::ops::gpu::{LaunchOutput, OutOfMemory};

    #[test]
    fn infinite_values_and_nan_are_compared() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (found, expected, is_close) in [
            (1.0, 1.0, true),
            (1.0, 1.15, true),
            (1.0, 1.3, false),
            (-inf, -inf, true),
            (inf, -inf, false),
            (1.0, -inf, false),
            (nan, 1.0, false),
            (1.0, nan, false),
            (nan, nan, false),
        ] {
            let difference = first_difference(&[0.0, found], &[0.0, expected], 0.05, 0.1);
            assert_eq!(difference.is_none(), is_close, "{found} {expected}: {difference:?}");
        }
        assert_eq!(first_difference(&[], &[1.0], 1.0, 1.0).as_deref(), Some("0 values, expected 1"));
    }

    /// Kernels that write zeros: none matches its reference, in any dtype.
    #[test]
    fn a_kernel_that_writes_zeros_differs() {
        let zeros = |launch: &Launch| match &launch.output {
            LaunchOutput::New(shape, dtype) => Tensor::zeros(&shape[..], *dtype, &Device::Cpu),
            LaunchOutput::InPlace(x) => x.zeros_like(),
        };
        for (dtype, count) in [(DType::F32, 5), (DType::F16, 9), (DType::BF16, 9)] {
            let mut verdicts = Verdicts::new();
            assert_eq!(check(dtype, 1.0, &mut verdicts, &zeros).unwrap(), None);
            assert_eq!(verdicts.len(), count);
            for (kernel, fault) in verdicts {
                assert!(fault.is_some_and(|fault| fault.contains("is 0, expected")), "{kernel}");
            }
        }
    }

    /// The check goes on with the kernels that have no verdict, and counts no lack of memory as a fault.
    #[test]
    fn a_kernel_that_does_not_run_ends_the_check_until_the_next_call() {
        let launched = RefCell::new(Vec::new());
        let fails = |launch: &Launch| {
            launched.borrow_mut().push(launch.kernel.clone());
            candle_core::bail!("an illegal address")
        };
        let names = kernel_names(DType::F32).unwrap();
        let mut verdicts = Verdicts::new();
        for count in 1..=names.len() {
            let failed = check(DType::F32, 1.0, &mut verdicts, &fails).unwrap();
            assert_eq!((failed, verdicts.len()), (names.get(count - 1).cloned(), count));
        }
        assert_eq!(check(DType::F32, 1.0, &mut verdicts, &fails).unwrap(), None);
        assert_eq!(*launched.borrow(), names);
        assert_eq!(verdicts[&names[0]].as_deref(), Some("it does not run: an illegal address"));

        let mut verdicts = Verdicts::new();
        let out_of_memory = |_: &Launch| Err(Error::Cuda(Box::new(OutOfMemory)));
        assert!(check(DType::F32, 1.0, &mut verdicts, &out_of_memory).is_err_and(|e| is_out_of_memory(&e)));
        assert!(verdicts.is_empty());
    }
}
