//! The peak of the processor: the rate of the instructions of a GEMM on registers alone, and of loads from
//! memory. For benchmarks, and compiled as kernels are.

use std::hint::black_box;
use std::time::Instant;

use crate::gemm::GemmType;
use crate::isa::{Isa, Kernel, TileUnit, define_runners};
use crate::simd::{INT8_PER_LANE, Simd, fold};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::tiles::amx::Amx;
use crate::tiles::{TILE_ROW_BYTES, TILE_ROWS, Tiles};

/// The peak rate of the current thread in GEMMs of a type, in 10⁹ operations per second; multiplications and
/// additions count alike. Takes some milliseconds.
pub fn rate(isa: Isa, gemm_type: GemmType) -> f64 {
    match isa.tile_unit() {
        // SAFETY: an `Isa` with this tile unit exists only if `amx::is_available` has returned true; this
        // thread has no other value of the type.
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Some(TileUnit::Amx) => tile_peak(&mut unsafe { Amx::new() }, gemm_type),
        _ => isa.run(VectorPeak(gemm_type)),
    }
}

/// The peak of the tile unit. f32 takes six bf16 dot products, bf16x3 three.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tile_peak(tiles: &mut impl Tiles, gemm_type: GemmType) -> f64 {
    const TIMES: usize = 500_000;
    let start = Instant::now();
    for _ in 0..TIMES {
        if gemm_type == GemmType::Int8 {
            tiles.dot_int8::<0, 4, 6>();
            tiles.dot_int8::<1, 4, 7>();
            tiles.dot_int8::<2, 5, 6>();
            tiles.dot_int8::<3, 5, 7>();
        } else {
            tiles.dot_bf16::<0, 4, 6>();
            tiles.dot_bf16::<1, 4, 7>();
            tiles.dot_bf16::<2, 5, 6>();
            tiles.dot_bf16::<3, 5, 7>();
        }
    }
    let (inputs, products) = match gemm_type {
        GemmType::F32 => (TILE_ROW_BYTES / 2, 6),
        GemmType::Bf16x3 => (TILE_ROW_BYTES / 2, 3),
        GemmType::Bf16 => (TILE_ROW_BYTES / 2, 1),
        GemmType::Int8 => (TILE_ROW_BYTES, 1),
    };
    let operations = 4 * TIMES * 2 * TILE_ROWS * TILE_ROWS * inputs / products;
    operations as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// The kernel that measures the peak of the vector unit.
struct VectorPeak(GemmType);

impl Kernel for VectorPeak {
    type Output = f64;

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        const TIMES: usize = 2_000_000;
        // Independent accumulators, enough to hide the latency of the instruction.
        const ACCUMULATORS: usize = 12;
        // A macro: a closure might not be compiled with the target features of the ISA.
        macro_rules! times {
            ($first:expr, $a:expr, $b:expr, |$sum:ident, $x:ident, $y:ident| $step:expr) => {{
                let ($x, $y) = (black_box($a), black_box($b));
                let mut sums = [$first; ACCUMULATORS];
                for _ in 0..TIMES {
                    for $sum in &mut sums {
                        *$sum = $step;
                    }
                }
                black_box(sums);
            }};
        }
        let start = Instant::now();
        let per_lane = match self.0 {
            GemmType::Bf16 if S::FAST_BF16 => {
                let (a, b) = (s.splat_u32(0x3f80_3f80), s.splat_u32(0x3000_3000));
                times!(s.splat(0.0), a, b, |sum, x, y| s.dot_bf16(*sum, x, y));
                2
            }
            GemmType::F32 | GemmType::Bf16x3 | GemmType::Bf16 => {
                times!(s.splat(0.0), s.splat(1.0), s.splat(1e-9), |sum, x, y| s.fma(x, y, *sum));
                1
            }
            GemmType::Int8 => {
                let (x, y) = (s.splat_u32(0x0001_0001), s.splat_u32(0x0100_0100));
                // The accumulator is also an operand, so the compiler cannot hoist anything out of the loop.
                if S::INT8.adds_in_i16 {
                    times!(s.splat_u32(0), x, y, |sum, x, y| s.dot_int8(*sum, [*sum, *sum], [x, y]));
                    2 * INT8_PER_LANE
                } else {
                    times!(s.splat_u32(0), x, y, |sum, _x, y| s.dot_int8(*sum, [*sum], [y]));
                    INT8_PER_LANE
                }
            }
        };
        (2 * per_lane * S::LANES * ACCUMULATORS * TIMES) as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}

/// Loads values, as many in one instruction as the vector unit can.
pub fn load(isa: Isa, values: &[f32]) {
    isa.run(Loads(values));
}

struct Loads<'a>(&'a [f32]);

impl Kernel for Loads<'_> {
    type Output = ();

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        black_box(fold!(s, self.0, 0.0, 0.0, |sum, x| s.add(sum, x)));
    }
}
