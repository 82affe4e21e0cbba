//! Intel's Advanced Matrix Extensions (AMX) through inline assembly: the intrinsics are not stable in Rust.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{TILE_ROW_BYTES, TILE_ROWS, Tiles};

/// Whether the processor has AMX with dot products of bf16 and of int8, and Linux permits this process to use
/// it.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && request_permission())
}

/// CPUID leaf 7: EDX bits 24 (AMX-TILE), 22 (AMX-BF16) and 25 (AMX-INT8).
fn has_instructions() -> bool {
    let max_leaf = __cpuid_count(0, 0).eax;
    let edx = if max_leaf >= 7 { __cpuid_count(7, 0).edx } else { 0 };
    [24, 22, 25].iter().all(|bit| edx >> bit & 1 == 1)
}

/// Asks Linux (5.16 and later) to save the 8 KB of tile data of each thread: `arch_prctl(ARCH_REQ_XCOMP_PERM,
/// XFEATURE_XTILEDATA)`.
fn request_permission() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: the system call takes two integers, accesses no memory of this process and changes only the
    // permission. The kernel clobbers rcx and r11, which are declared as outputs. A kernel without this call
    // returns an error.
    unsafe {
        asm!("syscall", inlateout("rax") SYS_ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// The operand of LDTILECFG.
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
        config.bytes_per_row[tile] = TILE_ROW_BYTES as u16;
        config.rows[tile] = TILE_ROWS as u8;
        tile += 1;
    }
    config
};

/// The tiles of the current thread. The compiler does not use tile registers, so no other code changes them
/// while the value lives.
#[derive(Debug)]
pub struct Amx {
    /// Tile registers belong to the thread that configured them.
    not_send: PhantomData<*const ()>,
}

impl Amx {
    /// Configures the tiles of this thread as 16 rows of 64 bytes and sets them to 0.
    ///
    /// # Safety
    /// [`is_available`] has returned true, and this thread has no other value of this type.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        // SAFETY: the processor supports AMX by the contract of this function; `CONFIG` is a valid
        // configuration of 64 bytes, which is only read.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags))
        };
        Amx { not_send: PhantomData }
    }
}

impl Drop for Amx {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `self` exists only if the processor supports AMX. The instruction accesses no memory.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

impl Tiles for Amx {
    #[inline(always)]
    fn zero<const C: usize>(&mut self) {
        // SAFETY: `self` exists only while the tiles are configured. The instruction accesses no memory.
        unsafe { asm!("tilezero tmm{c}", c = const C, options(nostack, nomem, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the tiles are configured as 16 rows of 64 bytes. `from` is valid for reads of 64 bytes at
        // each of the 16 offsets that are multiples of `stride`, by the contract of this method.
        unsafe {
            asm!("tileloadd tmm{t}, [{from} + {stride}*1]", t = const T, from = in(reg) from, stride = in(reg) stride,
                options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_streamed<const T: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the tiles are configured as 16 rows of 64 bytes. `from` is valid for reads of 64 bytes at
        // each of the 16 offsets that are multiples of `stride`, by the contract of this method.
        unsafe {
            asm!("tileloaddt1 tmm{t}, [{from} + {stride}*1]", t = const T, from = in(reg) from, stride = in(reg) stride,
                options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: the tiles are configured as 16 rows of 64 bytes. `to` is valid for writes of 64 bytes at
        // each of the 16 offsets that are multiples of `stride`, by the contract of this method.
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{t}", t = const T, to = in(reg) to, stride = in(reg) stride,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: `self` exists only while the tiles are configured. The instruction accesses no memory.
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, nomem, preserves_flags));
        }
    }

    #[inline(always)]
    fn dot_int8<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: `self` exists only while the tiles are configured. The instruction accesses no memory.
        unsafe {
            asm!("tdpbusd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, nomem, preserves_flags));
        }
    }
}
