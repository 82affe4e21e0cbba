//! Intel's Advanced Matrix Extensions, through inline assembly: their intrinsics are not in stable Rust.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{ROW_BYTES, ROWS, Tiles};

/// Whether the processor has tiles with products of bf16 and of bytes, and Linux lets this process use them.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && request_permission())
}

/// CPUID leaf 7: EDX bits 24 (tiles), 22 (bf16) and 25 (int8).
fn has_instructions() -> bool {
    let most = __cpuid_count(0, 0).eax;
    let edx = if most >= 7 { __cpuid_count(7, 0).edx } else { 0 };
    [24, 22, 25].iter().all(|bit| edx >> bit & 1 == 1)
}

/// Linux 5.16 and later saves the 8 KB of tiles of a thread once its process has asked for it:
/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
fn request_permission() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: the system call takes two numbers, reads and writes no memory, and changes nothing but what it is asked for. The kernel
    // clobbers rcx and r11. An older kernel returns an error.
    unsafe {
        asm!("syscall", inlateout("rax") SYS_ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// What LDTILECFG reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = {
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };
    let mut tile = 0;
    while tile < 8 {
        config.bytes_per_row[tile] = ROW_BYTES as u16;
        config.rows[tile] = ROWS as u8;
        tile += 1;
    }
    config
};

/// The tiles of the thread that has made it. The compiler knows nothing of tiles, so nobody else uses them meanwhile.
#[derive(Debug)]
pub struct Amx {
    /// Tiles belong to a thread.
    not_send: PhantomData<*const ()>,
}

impl Amx {
    /// Configures the tiles of this thread; all of them are 0.
    ///
    /// # Safety
    /// [`is_available`] has returned true, and this thread has no other value of this type.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        // SAFETY: the caller answers for the instruction; `CONFIG` is 64 bytes of a valid configuration, which are only read.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags))
        };
        Amx { not_send: PhantomData }
    }
}

impl Drop for Amx {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a value of this type exists only where the processor has the instruction. It touches no memory.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

impl Tiles for Amx {
    #[inline(always)]
    fn zero<const C: usize>(&mut self) {
        // SAFETY: a value of this type exists only where the tiles are configured. It touches no memory.
        unsafe { asm!("tilezero tmm{c}", c = const C, options(nostack, nomem, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the tiles are configured as 16 rows of 64 bytes, which the caller's pointer is valid for reads of.
        unsafe {
            asm!("tileloadd tmm{t}, [{from} + {stride}*1]", t = const T, from = in(reg) from, stride = in(reg) stride,
                options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: the tiles are configured as 16 rows of 64 bytes, which the caller's pointer is valid for writes of.
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{t}", t = const T, to = in(reg) to, stride = in(reg) stride,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the tiles are configured. It touches no memory.
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, nomem, preserves_flags));
        }
    }

    #[inline(always)]
    fn dot_int8<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the tiles are configured. It touches no memory.
        unsafe {
            asm!("tdpbssd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, nomem, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tiles::BYTES;
    use crate::kernels::tiles::model::Model;

    /// Bytes that are the same in every run: a linear congruential generator.
    fn bytes(seed: u64) -> impl FnMut() -> u8 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        }
    }

    /// bf16 from 2⁻²⁰ to 2²⁰ of both signs, and zeros.
    fn bf16_tile(seed: u64) -> Vec<u8> {
        let mut next = bytes(seed);
        (0..BYTES / 2)
            .flat_map(|_| {
                let (sign, exponent, mantissa) =
                    (u16::from(next() & 1), 107 + u16::from(next() % 41), u16::from(next() & 127));
                let bits = if next() < 10 { sign << 15 } else { sign << 15 | exponent << 7 | mantissa };
                bits.to_le_bytes()
            })
            .collect()
    }

    /// A chain of products, from `C = 0`, from loads with a stride and to a store with one.
    fn chain<T: Tiles>(tiles: &mut T, int8: bool, operands: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        tiles.zero::<1>();
        for (a, b) in operands {
            let mut spread = vec![0; 2 * BYTES];
            for (to, row) in spread.chunks_mut(2 * ROW_BYTES).zip(a.chunks(ROW_BYTES)) {
                to[..ROW_BYTES].copy_from_slice(row);
            }
            // SAFETY: the vectors hold a tile each, the first in rows that are two rows apart.
            unsafe {
                tiles.load::<4>(spread.as_ptr(), 2 * ROW_BYTES);
                tiles.load::<6>(b.as_ptr(), ROW_BYTES);
            }
            if int8 {
                tiles.dot_int8::<1, 4, 6>();
            } else {
                tiles.dot_bf16::<1, 4, 6>();
            }
        }
        let mut c = vec![0; BYTES];
        // SAFETY: it holds a tile.
        unsafe { tiles.store::<1>(c.as_mut_ptr(), ROW_BYTES) };
        c
    }

    #[test]
    fn the_model_computes_the_bits_of_the_processor() {
        if !is_available() {
            return;
        }
        let mut next = bytes(9);
        for round in 0..50 {
            let floats: Vec<_> =
                (0..5).map(|i| (bf16_tile(round * 10 + i), bf16_tile(round * 10 + i + 5))).collect();
            let ints: Vec<(Vec<u8>, Vec<u8>)> = (0..5)
                .map(|_| ((0..BYTES).map(|_| next()).collect(), (0..BYTES).map(|_| next()).collect()))
                .collect();
            for (int8, operands) in [(false, &floats), (true, &ints)] {
                // SAFETY: tiles are available, and this thread has no others.
                let found = chain(&mut unsafe { Amx::new() }, int8, operands);
                assert_eq!(found, chain(&mut Model::default(), int8, operands), "int8 {int8}, round {round}");
            }
        }
    }
}
