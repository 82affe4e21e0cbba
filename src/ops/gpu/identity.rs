//! What decides how the kernels compute on a GPU.

/// A GPU, its driver, and the kernels of this build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuIdentity {
    /// The name of the GPU.
    pub name: String,
    /// Major and minor compute capability.
    pub compute_capability: (i32, i32),
    /// The version of the driver, if it is known.
    pub driver: Option<String>,
    /// A hash of the PTX of all kernels.
    pub kernels: u64,
}

/// The version of the driver in what Linux has in `/proc/driver/nvidia/version`.
#[cfg(any(feature = "cuda", test))]
pub(super) fn driver_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(any(feature = "cuda", test))]
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::driver_version;

    #[test]
    fn the_driver_version_is_that_of_the_kernel_module() {
        for (text, expected) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\nGCC version: gcc 12.2.0",
                Some("580.95.05"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.51  Release Build",
                Some("575.51"),
            ),
            ("NVRM version: unknown\nGCC version: 12.2.0", None),
            ("", None),
        ] {
            assert_eq!(driver_version(text).as_deref(), expected, "{text}");
        }
    }
}
