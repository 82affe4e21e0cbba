//! Tiles: eight registers of 16 rows of 64 bytes, and the instructions that multiply two tiles and accumulate
//! into a third.
//!
//! [`amx::Amx`] uses Intel's AMX (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
//! chapter 18). [`emulated::EmulatedTiles`] computes the same bits in plain Rust, for tests on any machine.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod amx;
pub mod emulated;

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Bytes of a tile row.
pub const TILE_ROW_BYTES: usize = 64;
/// Bytes of a tile.
pub const TILE_BYTES: usize = TILE_ROWS * TILE_ROW_BYTES;

/// Eight tiles, numbered 0 to 7, that one thread has configured for itself. Dropping the value releases them.
///
/// Operands of the dot products `C += A B`: row `i` of `A` holds packed elements of row `i` of the left
/// matrix. Row `k` of `B` holds the packed element `k` of each of the 16 output columns. A packed element is
/// two bf16 or four bytes of consecutive inputs. `C` holds 16 × 16 accumulators of 32 bits.
pub trait Tiles {
    /// Sets a tile to 0.
    fn zero<const C: usize>(&mut self);

    /// Loads a tile from 16 rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// `from` is valid for reads of 64 bytes at each of the 16 offsets `0, stride, …, 15 · stride`.
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize);

    /// [`Tiles::load`] of an operand that does not stay in L1.
    ///
    /// # Safety
    /// As [`Tiles::load`].
    unsafe fn load_streamed<const T: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the contract of this method is that of `load`.
        unsafe { self.load::<T>(from, stride) }
    }

    /// Stores a tile to 16 rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// `to` is valid for writes of 64 bytes at each of the 16 offsets `0, stride, …, 15 · stride`.
    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize);

    /// `C += A B` for `A` and `B` in bf16 and `C` in f32 (TDPBF16PS). Products of even inputs and of odd
    /// inputs are accumulated separately, from 0 and in the order of the inputs; the two sums are added, then
    /// the result is added to `C`. Subnormal operands and results are flushed to 0.
    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `C += A B` for `A` in u8, `B` in i8 and `C` in i32 (TDPBUSD).
    fn dot_int8<const C: usize, const A: usize, const B: usize>(&mut self);
}
