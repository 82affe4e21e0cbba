//! The check of the CUDA kernels before their first use on a GPU. Its outcome is remembered in the cache
//! directory. A kernel that differs from its reference is not used.

use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};

use super::outcome_file::OutcomeFile;
use crate::nn::{Backend, GpuIdentity, Verdicts};
use crate::store::digest_cache::cache_directory;
use crate::sys::BUILD;
use crate::sys::console::Console;

/// Lets the kernels compute on the GPU of `backend` that match their references there. Warns of all others.
///
/// # Errors
/// If the GPU is out of memory, or a kernel has failed so that the GPU refuses all further work of this
/// process.
pub(super) fn check_kernels(backend: &Backend, console: &Console) -> Result<()> {
    let Some(gpu) = backend.gpu_identity() else { return Ok(()) };
    let memory = cache_directory().and_then(|cache| memory(&cache, &gpu, backend.dtype()));
    let start = Instant::now();
    let check = |verdicts: &mut Verdicts| {
        backend.check_kernels(verdicts).map_err(|error| {
            anyhow!("cannot check the CUDA kernels ({error}); free memory of the GPU, or use --device cpu")
        })
    };
    let is_usable = || backend.synchronize().is_ok();
    let checked = verdicts(memory.as_ref(), check, is_usable)?;
    if checked.is_new {
        for (kernel, fault) in &checked.verdicts {
            let outcome = fault
                .as_ref()
                .map_or("matches its reference".into(), |fault| format!("is not used: {fault}"));
            console.detail(format!("CUDA kernel {kernel} {outcome}"));
        }
        let milliseconds = 1e3 * start.elapsed().as_secs_f64();
        console.detail(format!("checked {} CUDA kernels in {milliseconds:.0} ms", checked.verdicts.len()));
    } else {
        console.detail(format!("an earlier run has checked {} CUDA kernels", checked.verdicts.len()));
    }
    if let Some(warning) = warning(&checked.verdicts, &gpu) {
        console.warn(warning);
    }
    backend.trust_kernels(&checked.verdicts);
    Ok(())
}

/// The verdicts of all kernels, and whether this run has checked some of them.
#[derive(Debug, PartialEq)]
struct Checked {
    verdicts: Verdicts,
    is_new: bool,
}

/// The remembered verdicts, with those that `check` adds. `check` returns the kernel that does not run, or
/// `None` if all kernels have a verdict; `is_usable` tells whether the GPU can be used after that.
fn verdicts(
    memory: Option<&OutcomeFile>,
    mut check: impl FnMut(&mut Verdicts) -> Result<Option<String>>,
    is_usable: impl Fn() -> bool,
) -> Result<Checked> {
    let mut verdicts: Verdicts = memory.and_then(OutcomeFile::read).unwrap_or_default();
    let known = verdicts.len();
    loop {
        let failed = check(&mut verdicts)?;
        let is_new = verdicts.len() > known;
        let is_remembered = is_new && memory.is_some_and(|memory| memory.write(&verdicts));
        match failed {
            None => return Ok(Checked { verdicts, is_new }),
            Some(kernel) if !is_usable() => {
                let what_to_do = if is_remembered {
                    "run again, which does without this kernel"
                } else {
                    "use --device cpu"
                };
                bail!("the GPU refuses all work since the CUDA kernel {kernel} has failed; {what_to_do}")
            }
            Some(_) => {}
        }
    }
}

/// The warning of the kernels that are not used; `None` if all are.
fn warning(verdicts: &Verdicts, gpu: &GpuIdentity) -> Option<String> {
    let mut faults = verdicts.iter().filter_map(|(kernel, fault)| Some((kernel, fault.as_ref()?)));
    let (kernel, fault) = faults.next()?;
    let mut names = kernel.clone();
    faults.for_each(|(kernel, _)| _ = write!(names, ", {kernel}"));
    let GpuIdentity { name, compute_capability: (major, minor), driver, .. } = gpu;
    let driver = driver.as_deref().unwrap_or("unknown");
    Some(format!(
        "CUDA kernels differ from their references or fail, and slower operations compute in their place: \
         {names}; please report this line (sconce {BUILD}, {name}, compute capability {major}.{minor}, \
         driver {driver}, {kernel}: {fault})"
    ))
}

/// The file with the verdicts of the kernels for a dtype on GPUs of one kind. `None` if the version of the
/// driver is not known, so that another driver could not be told apart.
fn memory(cache: &Path, gpu: &GpuIdentity, dtype: &str) -> Option<OutcomeFile> {
    let GpuIdentity { name, compute_capability: (major, minor), driver, kernels } = gpu;
    let driver = driver.as_ref()?;
    // Another driver and another build replace the file.
    let kind = format!("{dtype} on {name}, compute capability {major}.{minor}");
    let key = format!("sconce {BUILD}, kernels {kernels:016x}, {kind}, driver {driver}");
    Some(OutcomeFile::new(cache, "kernels", &kind, key))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    const KERNELS: [&str; 3] = ["a_f16", "b_f16", "c_f16"];

    fn gpu() -> GpuIdentity {
        GpuIdentity {
            name: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            driver: Some("580.95.05".into()),
            kernels: 1,
        }
    }

    /// The verdicts of [`KERNELS`], of which `faulty` differ and `failing` do not run, with the number of
    /// kernels that were checked.
    fn run(
        memory: Option<&OutcomeFile>,
        faulty: &[&str],
        failing: &[&str],
        stops: bool,
    ) -> (Result<Checked>, usize) {
        let (count, is_usable) = (Cell::new(0), Cell::new(true));
        let check = |verdicts: &mut Verdicts| {
            for kernel in KERNELS {
                if verdicts.contains_key(kernel) {
                    continue;
                }
                count.set(count.get() + 1);
                let is_failing = failing.contains(&kernel);
                let fault = is_failing || faulty.contains(&kernel);
                verdicts.insert(kernel.into(), fault.then(|| "a fault".into()));
                if is_failing {
                    is_usable.set(!stops);
                    return Ok(Some(kernel.into()));
                }
            }
            Ok(None)
        };
        (verdicts(memory, check, || is_usable.get()), count.get())
    }

    fn faults(checked: &Checked) -> Vec<&str> {
        checked.verdicts.iter().filter(|(_, fault)| fault.is_some()).map(|(kernel, _)| &kernel[..]).collect()
    }

    #[test]
    fn kernels_are_checked_once_per_gpu_driver_build_and_dtype() {
        let cache = tempfile::tempdir().unwrap();
        let of = |gpu: &GpuIdentity, dtype| memory(cache.path(), gpu, dtype).unwrap();
        let first = of(&gpu(), "f16");
        for (is_new, checked) in [(true, 3), (false, 0)] {
            let (found, count) = run(Some(&first), &["b_f16"], &[], false);
            let found = found.unwrap();
            assert_eq!((faults(&found), found.is_new, count), (vec!["b_f16"], is_new, checked));
        }
        let others = [
            GpuIdentity { name: "NVIDIA A100".into(), ..gpu() },
            GpuIdentity { compute_capability: (8, 0), ..gpu() },
            GpuIdentity { driver: Some("580.95.06".into()), ..gpu() },
            GpuIdentity { kernels: 2, ..gpu() },
        ];
        for (gpu, dtype) in others.iter().map(|gpu| (gpu, "f16")).chain([(&gpu(), "bf16")]) {
            assert_eq!(run(Some(&of(gpu, dtype)), &[], &[], false).1, 3, "{gpu:?} {dtype}");
        }
        for damaged in ["", "{}", "damaged"] {
            fs::write(&first.path, damaged).unwrap();
            assert_eq!(run(Some(&first), &[], &[], false).1, 3, "{damaged}");
        }
        let unknown = GpuIdentity { driver: None, ..gpu() };
        assert!(memory(cache.path(), &unknown, "f16").is_none());
        assert_eq!(run(None, &[], &[], false).1, 3);
    }

    #[test]
    fn the_check_goes_on_after_a_kernel_that_does_not_run() {
        let cache = tempfile::tempdir().unwrap();
        let memory = memory(cache.path(), &gpu(), "f16");
        let (found, count) = run(None, &[], &["a_f16", "b_f16"], false);
        assert_eq!((faults(&found.unwrap()), count), (vec!["a_f16", "b_f16"], 3));
        // The GPU refuses all work after the second and after the third; the first differs.
        for (kernel, memory, what_to_do) in [
            ("b_f16", None, "use --device cpu"),
            ("b_f16", memory.as_ref(), "run again"),
            ("c_f16", memory.as_ref(), "run again"),
        ] {
            let error = run(memory, &["a_f16"], &["b_f16", "c_f16"], true).0.unwrap_err().to_string();
            assert!(error.contains(kernel) && error.contains(what_to_do), "{error}");
        }
        let (found, count) = run(memory.as_ref(), &[], &[], true);
        assert_eq!((faults(&found.unwrap()), count), (KERNELS.to_vec(), 0));
    }

    #[test]
    fn the_warning_names_the_kernels_and_what_to_report() {
        let verdict = |kernel: &str, fault: Option<&str>| (kernel.to_owned(), fault.map(str::to_owned));
        let faulty = [verdict("a", None), verdict("b", Some("of 3 × 7: 1")), verdict("c", Some("of 2: 2"))];
        let text = warning(&Verdicts::from(faulty), &gpu()).unwrap();
        for part in [": b, c;", "NVIDIA H200", "9.0", "580.95.05", "b: of 3 × 7: 1", BUILD] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(warning(&Verdicts::from([verdict("a", None)]), &gpu()), None);
    }
}
