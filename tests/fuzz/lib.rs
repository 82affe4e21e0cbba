//! Fuzz targets for cargo-fuzz: each file in `fuzz_targets/` runs one function of
//! `tests/integration/support/fuzz_targets.rs`.

#[path = "../integration/support/fuzz_targets.rs"]
pub mod targets;

pub use libfuzzer_sys;

/// The target with this name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> targets::Target {
    targets::TARGETS.iter().find(|(known, _)| *known == name).expect("a fuzz target").1
}

/// Defines the entry point of libFuzzer for a target.
#[macro_export]
macro_rules! fuzz_target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            $crate::target($name)(bytes);
        });
    };
}
