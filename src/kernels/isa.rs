//! Which instructions this machine has: the one place that asks.

use std::sync::OnceLock;

/// A set of vector instructions that this machine has. Values come from [`Isa::available`] and [`Isa::best`] alone,
/// so that holding one proves that its instructions can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

/// The sets that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// AVX-512 F: 32 registers of 16 numbers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with FMA: 16 registers of 8 numbers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What every processor of the target has.
    Portable,
}

impl Isa {
    /// Every set that this machine has, the best first.
    pub fn available() -> Vec<Isa> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                sets.push(Isa(Set::Avx512));
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                sets.push(Isa(Set::Avx2));
            }
        }
        sets.push(Isa(Set::Portable));
        sets
    }

    /// The best set that this machine has.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "AVX2",
            Set::Portable => "portable",
        }
    }

    pub(super) fn set(self) -> Set {
        self.0
    }
}
