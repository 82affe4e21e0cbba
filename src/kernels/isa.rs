//! Instruction sets (ISAs) and runtime dispatch: the only place that asks the processor what it supports.

use std::sync::OnceLock;

use super::simd::Simd;
use super::simd::portable::Portable;

/// The environment variable that selects an ISA by name instead of the best one.
pub const ISA_VARIABLE: &str = "SCONCE_ISA";

/// An ISA that this machine supports. Values come only from [`Isa::available`], [`Isa::testable`],
/// `Isa::emulated_tiles` and [`Isa::selected`], so a value proves that its instructions can be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(IsaKind);

/// The tile unit of an ISA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileUnit {
    /// Intel AMX.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    /// AMX emulated in plain Rust.
    #[cfg(feature = "emulated-tiles")]
    Emulated,
}

/// The ISAs that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IsaKind {
    /// AMX tiles of bf16 and int8, and the vectors of `Avx512Bf16`: Sapphire Rapids.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    /// AVX-512 with dot products of bf16 and of bytes: Zen 4. On Intel processors a bf16 dot product takes
    /// twice as long as an f32 FMA.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// AVX-512 with dot products of bytes: Cascade Lake, Ice Lake.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX-512 F, BW, DQ and VL: 32 registers of 16 f32.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with FMA: 16 registers of 8 f32.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON with dot products of bytes: 32 registers of 4 f32.
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    /// NEON: 32 registers of 4 f32.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The baseline of the compilation target.
    Portable,
    /// `Portable` with emulated AMX tiles.
    #[cfg(feature = "emulated-tiles")]
    EmulatedTiles,
}

/// Defines one method of [`Kernel`]: it runs the kernel with the target features of one ISA.
macro_rules! define_runner {
    ($arch:literal, $name:ident, $features:literal, $simd:ty) => {
        #[doc = concat!("Runs the kernel with the target features ", $features, ".\n\n# Safety\nThe processor supports them.")]
        #[cfg(target_arch = $arch)]
        #[target_feature(enable = $features)]
        unsafe fn $name(self) -> Self::Output {
            // SAFETY: the processor supports the features of the vector type by the contract of this method.
            self.run(unsafe { <$simd>::new() })
        }
    };
}

/// Defines the methods of [`Kernel`] that run it with the target features of an ISA. Inside an `impl` they
/// override the provided methods, so that the symbol of the compiled kernel names its type:
/// `<Softmax as Kernel>::run_avx2` instead of `Kernel::run_avx2`. (Rust's legacy symbol names leave out
/// generic parameters.) With `f32 only` the kernel is [`Kernel::F32_ONLY`].
macro_rules! define_runners {
    (f32 only) => {
        const F32_ONLY: bool = true;

        $crate::isa::define_runners!(f32);
    };
    () => {
        $crate::isa::define_runner!(
            "x86_64",
            run_avx512_bf16,
            "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16",
            $crate::simd::avx512::Avx512<true, true>
        );
        $crate::isa::define_runner!(
            "x86_64",
            run_avx512_vnni,
            "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
            $crate::simd::avx512::Avx512<true, false>
        );
        $crate::isa::define_runner!(
            "aarch64",
            run_neon_dotprod,
            "neon,dotprod",
            $crate::simd::neon::Neon<true>
        );
        $crate::isa::define_runners!(f32);
    };
    (f32) => {
        $crate::isa::define_runner!(
            "x86_64",
            run_avx512,
            "avx512f,avx512bw,avx512dq,avx512vl",
            $crate::simd::avx512::Avx512<false, false>
        );
        $crate::isa::define_runner!(
            "x86_64",
            run_avx2,
            "avx2,fma",
            $crate::simd::avx2::Avx2
        );
        $crate::isa::define_runner!(
            "aarch64",
            run_neon,
            "neon",
            $crate::simd::neon::Neon<false>
        );
    };
}

pub(super) use {define_runner, define_runners};

/// A kernel: code that is generic over [`Simd`] and compiled once for every ISA. [`Isa::run`] executes it.
pub trait Kernel: Sized {
    /// The result.
    type Output;

    /// Whether the kernel uses no dot products and no conversions to bf16. ISAs that differ only in those
    /// share its code.
    const F32_ONLY: bool = false;

    /// Whether the kernel runs only on an ISA with tiles. It is compiled for no other.
    const TILES_ONLY: bool = false;

    /// Runs the kernel with the vectors of one ISA. This method and every function it calls with `S` must be
    /// `#[inline(always)]`, so that they are compiled with the target features of the ISA.
    fn run<S: Simd>(self, simd: S) -> Self::Output;

    /// [`Kernel::run`] with portable vectors: a call as on the other ISAs, so that [`Isa::run`] is short.
    #[inline(never)]
    fn run_portable(self) -> Self::Output {
        self.run(Portable)
    }

    define_runners!();
}

impl Isa {
    /// All ISAs that this machine supports, fastest first.
    pub fn available() -> Vec<Isa> {
        let mut isas = Vec::new();
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
            isas.extend((bf16 && super::tiles::amx::is_available()).then_some(Isa(IsaKind::Amx)));
            let vector_isas = [
                (bf16 && !is_intel(), IsaKind::Avx512Bf16),
                (vnni, IsaKind::Avx512Vnni),
                (avx512, IsaKind::Avx512),
                (avx2, IsaKind::Avx2),
            ];
            isas.extend(
                vector_isas.into_iter().filter(|(supported, _)| *supported).map(|(_, kind)| Isa(kind)),
            );
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                isas.push(Isa(IsaKind::NeonDotprod));
            }
            isas.push(Isa(IsaKind::Neon));
        }
        isas.push(Isa(IsaKind::Portable));
        isas
    }

    /// All ISAs that tests can run here: the available ones, and `avx512-bf16` on Intel processors, where it
    /// is slower.
    pub fn testable() -> Vec<Isa> {
        let isas = Self::available();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bf16") && isas.contains(&Isa(IsaKind::Avx512Vnni)) && is_intel() {
            return [isas, vec![Isa(IsaKind::Avx512Bf16)]].concat();
        }
        isas
    }

    /// Portable vectors and emulated AMX tiles, for tests on any machine.
    #[cfg(feature = "emulated-tiles")]
    pub fn emulated_tiles() -> Isa {
        Isa(IsaKind::EmulatedTiles)
    }

    /// The ISA that this process uses: the one that [`ISA_VARIABLE`] names, or else the fastest.
    ///
    /// # Panics
    /// If this machine does not support the ISA that the variable names; see [`Isa::check`].
    pub fn selected() -> Isa {
        static SELECTED: OnceLock<Isa> = OnceLock::new();
        *SELECTED.get_or_init(|| Self::from_environment().expect("Isa::check has accepted the variable"))
    }

    /// Checks that this machine supports the ISA that [`ISA_VARIABLE`] names, if the variable is set and not
    /// empty.
    ///
    /// # Errors
    /// If it does not: a message that lists the available ISAs.
    pub fn check() -> Result<(), String> {
        Self::from_environment().map(|_| ())
    }

    fn from_environment() -> Result<Isa, String> {
        let isas = Self::available();
        let name = std::env::var_os(ISA_VARIABLE).filter(|name| !name.is_empty());
        let Some(name) = name else { return Ok(isas[0]) };
        // For tests: selected by its name only, and not in the list of the error.
        #[cfg(feature = "emulated-tiles")]
        if name == Self::emulated_tiles().name() {
            return Ok(Self::emulated_tiles());
        }
        isas.iter().copied().find(|isa| name == isa.name()).ok_or_else(|| {
            let names: Vec<&str> = isas.iter().map(|isa| isa.name()).collect();
            format!(
                "{ISA_VARIABLE}={}: this machine does not support this instruction set; it has {}",
                name.to_string_lossy(),
                names.join(", ")
            )
        })
    }

    /// The name, as in [`ISA_VARIABLE`].
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            IsaKind::Amx => "amx",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            IsaKind::NeonDotprod => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon => "neon",
            IsaKind::Portable => "portable",
            #[cfg(feature = "emulated-tiles")]
            IsaKind::EmulatedTiles => "emulated-tiles",
        }
    }

    /// Whether a GEMM in bf16 is faster than one in f32.
    pub fn has_fast_bf16(self) -> bool {
        struct FastBf16;
        impl Kernel for FastBf16 {
            type Output = bool;

            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> bool {
                S::FAST_BF16
            }
        }
        self.tile_unit().is_some() || self.run(FastBf16)
    }

    /// The tile unit of this ISA, if it has one.
    pub fn tile_unit(self) -> Option<TileUnit> {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            IsaKind::Amx => Some(TileUnit::Amx),
            #[cfg(feature = "emulated-tiles")]
            IsaKind::EmulatedTiles => Some(TileUnit::Emulated),
            _ => None,
        }
    }

    /// [`Isa::run`] of a kernel that is [`Kernel::TILES_ONLY`].
    #[inline]
    fn run_beside_tiles<K: Kernel>(self, kernel: K) -> K::Output {
        match self.tile_unit() {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Some(TileUnit::Amx) => self.run_beside_amx(kernel),
            #[cfg(feature = "emulated-tiles")]
            Some(TileUnit::Emulated) => kernel.run_portable(),
            None => panic!("{} has no tiles", self.name()),
        }
    }

    /// [`Isa::run`] with the vectors of AMX only, for a kernel that uses its tiles.
    ///
    /// # Panics
    /// If this ISA does not have AMX.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[inline]
    pub fn run_beside_amx<K: Kernel>(self, kernel: K) -> K::Output {
        assert_eq!(self.0, IsaKind::Amx, "the ISA has AMX");
        if K::F32_ONLY {
            // SAFETY: an `Isa` of this kind is made only after `available` has detected the features of
            // `Avx512`.
            return unsafe { kernel.run_avx512() };
        }
        // SAFETY: an `Isa` of this kind is made only after `available` has detected the features of
        // `Avx512Bf16`.
        unsafe { kernel.run_avx512_bf16() }
    }

    /// Runs a kernel with the vectors of this ISA.
    ///
    /// # Panics
    /// If the kernel is [`Kernel::TILES_ONLY`], and this ISA has no tile unit.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        if K::TILES_ONLY {
            return self.run_beside_tiles(kernel);
        }
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            IsaKind::Amx => self.run_beside_amx(kernel),
            // SAFETY: an `Isa` of these kinds is made only after AVX-512 F, BW, DQ and VL have been detected.
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512Bf16 | IsaKind::Avx512Vnni if K::F32_ONLY => unsafe { kernel.run_avx512() },
            // SAFETY: an `Isa` of this kind is made only after AVX-512 F, BW, DQ, VL, VNNI and BF16 have been
            // detected.
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512Bf16 => unsafe { kernel.run_avx512_bf16() },
            // SAFETY: an `Isa` of this kind is made only after AVX-512 F, BW, DQ, VL and VNNI have been
            // detected.
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512Vnni => unsafe { kernel.run_avx512_vnni() },
            // SAFETY: an `Isa` of this kind is made only after AVX-512 F, BW, DQ and VL have been detected.
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => unsafe { kernel.run_avx512() },
            // SAFETY: an `Isa` of this kind is made only after AVX2 and FMA have been detected.
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => unsafe { kernel.run_avx2() },
            // SAFETY: every AArch64 processor has NEON.
            #[cfg(target_arch = "aarch64")]
            IsaKind::NeonDotprod if K::F32_ONLY => unsafe { kernel.run_neon() },
            // SAFETY: an `Isa` of this kind is made only after the dot product extension has been detected;
            // AArch64 has NEON.
            #[cfg(target_arch = "aarch64")]
            IsaKind::NeonDotprod => unsafe { kernel.run_neon_dotprod() },
            // SAFETY: every AArch64 processor has NEON.
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon => unsafe { kernel.run_neon() },
            IsaKind::Portable => kernel.run_portable(),
            #[cfg(feature = "emulated-tiles")]
            IsaKind::EmulatedTiles => kernel.run_portable(),
        }
    }
}

/// Whether CPUID names Intel as the vendor.
#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
}
