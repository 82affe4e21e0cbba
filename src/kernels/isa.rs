//! Which instructions this machine has: the one place that asks.

use std::sync::OnceLock;

use super::simd::Simd;
#[cfg(target_arch = "aarch64")]
use super::simd::neon::Neon;
use super::simd::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::simd::{avx2::Avx2, avx512::Avx512};

/// The variable that names the set to be used in place of the best one.
pub const VARIABLE: &str = "SCONCE_ISA";

/// A set of vector instructions that this machine has. Values come from [`Isa::available`] and [`Isa::best`] alone,
/// so that holding one proves that its instructions can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

/// Which tiles a set has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileUnit {
    /// Intel's AMX.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    /// The same in plain Rust.
    Model,
}

/// The sets that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    /// Tiles of bf16 and of bytes, and the vectors of `Avx512Bf16`: Sapphire Rapids.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    /// AVX-512 with products of bf16 and of bytes: Zen 4. Intel's processors take twice the time of an f32 product for one of bf16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// AVX-512 with products of bytes: Cascade Lake, Ice Lake.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX-512 F, BW, DQ and VL: 32 registers of 16 numbers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with FMA: 16 registers of 8 numbers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 32 registers of 4 numbers, with products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    /// 32 registers of 4 numbers.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// What every processor of the target has.
    Portable,
    /// The same, and tiles in plain Rust.
    TileModel,
}

/// A loop that is compiled for every instruction set.
pub trait Kernel {
    /// What it gives.
    type Output;

    /// Runs it with the registers of one set. It has to be `#[inline(always)]`, and all that it calls, so that it is
    /// compiled with the set's instructions.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

impl Isa {
    /// Every set that this machine has, the best first.
    pub fn available() -> Vec<Isa> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            #[cfg(target_os = "linux")]
            sets.extend((bf16 && super::tiles::amx::is_available()).then_some(Isa(Set::Amx)));
            let all = [
                (bf16 && !is_intel(), Set::Avx512Bf16),
                (vnni, Set::Avx512Vnni),
                (avx512, Set::Avx512),
                (avx2, Set::Avx2),
            ];
            sets.extend(all.into_iter().filter(|(has, _)| *has).map(|(_, set)| Isa(set)));
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                sets.push(Isa(Set::NeonDotprod));
            }
            sets.push(Isa(Set::Neon));
        }
        sets.push(Isa(Set::Portable));
        sets
    }

    /// Every set that can run here, for tests: those of the machine, and those that it has but is slower with.
    pub fn testable() -> Vec<Isa> {
        let mut sets = Self::available();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bf16") && sets.contains(&Isa(Set::Avx512Vnni)) && is_intel() {
            sets.push(Isa(Set::Avx512Bf16));
        }
        sets
    }

    /// Tiles in plain Rust, for tests on any machine.
    pub fn tile_model() -> Isa {
        Isa(Set::TileModel)
    }

    /// The set that the process uses: the best one, or the one that [`VARIABLE`] names.
    ///
    /// # Panics
    /// If the machine does not have the set that is named; [`Isa::check`] says so in a sentence.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::chosen().expect("the named instruction set has been checked"))
    }

    /// Whether the set that [`VARIABLE`] names is one of this machine's.
    ///
    /// # Errors
    /// If it is not: a sentence that names those it has.
    pub fn check() -> Result<(), String> {
        Self::chosen().map(|_| ())
    }

    fn chosen() -> Result<Isa, String> {
        let sets = Self::available();
        let Some(name) = std::env::var_os(VARIABLE) else { return Ok(sets[0]) };
        sets.iter().copied().find(|isa| name == isa.name()).ok_or_else(|| {
            let names: Vec<&str> = sets.iter().map(|isa| isa.name()).collect();
            format!(
                "{VARIABLE}={}: this machine has no such instruction set; it has {}",
                name.to_string_lossy(),
                names.join(", ")
            )
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Set::Amx => "amx",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Set::NeonDotprod => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Set::Neon => "neon",
            Set::Portable => "portable",
            Set::TileModel => "tile-model",
        }
    }

    /// Whether products of bf16 take less time than those of f32.
    pub fn has_fast_bf16(self) -> bool {
        struct Ask;
        impl Kernel for Ask {
            type Output = bool;

            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> bool {
                S::FAST_BF16
            }
        }
        self.tile_unit().is_some() || self.run(Ask)
    }

    /// The tiles of this set, if it has any.
    pub fn tile_unit(self) -> Option<TileUnit> {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Set::Amx => Some(TileUnit::Amx),
            Set::TileModel => Some(TileUnit::Model),
            _ => None,
        }
    }

    /// Runs a loop with this set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // There is such an `Isa` only where the processor has been asked for its instructions.
        match self.0 {
            // SAFETY: the set has these instructions, too.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Set::Amx => unsafe { run_avx512_bf16(kernel) },
            // SAFETY: as said.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Bf16 => unsafe { run_avx512_bf16(kernel) },
            // SAFETY: as said.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni => unsafe { run_avx512_vnni(kernel) },
            // SAFETY: as said.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => unsafe { run_avx512(kernel) },
            // SAFETY: as said.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: as said.
            #[cfg(target_arch = "aarch64")]
            Set::NeonDotprod => unsafe { run_neon_dotprod(kernel) },
            // SAFETY: as said.
            #[cfg(target_arch = "aarch64")]
            Set::Neon => unsafe { run_neon(kernel) },
            Set::Portable | Set::TileModel => kernel.run(Portable),
        }
    }
}

/// Whether the processor says that it is Intel's.
#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
}

/// A function that runs a kernel with the instructions of a set.
macro_rules! runs {
    ($arch:literal, $name:ident, $features:literal, $simd:ty) => {
        /// # Safety
        /// The processor has to have the features.
        #[cfg(target_arch = $arch)]
        #[target_feature(enable = $features)]
        unsafe fn $name<K: Kernel>(kernel: K) -> K::Output {
            // SAFETY: the caller answers for the features, which are the set's.
            kernel.run(unsafe { <$simd>::new() })
        }
    };
}

runs!(
    "x86_64",
    run_avx512_bf16,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16",
    Avx512<true, true>
);
runs!("x86_64", run_avx512_vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", Avx512<true, false>);
runs!("x86_64", run_avx512, "avx512f,avx512bw,avx512dq,avx512vl", Avx512<false, false>);
runs!("x86_64", run_avx2, "avx2,fma", Avx2);
runs!("aarch64", run_neon_dotprod, "neon,dotprod", Neon<true>);
runs!("aarch64", run_neon, "neon", Neon<false>);
