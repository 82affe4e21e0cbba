//! Tiles: eight registers of 16 rows of 64 bytes, and the instructions over them, which multiply two tiles and add to a third.
//!
//! There are two sets of them: [`amx::Amx`], which are those of Intel's processors (Intel 64 and IA-32 Architectures Software Developer's
//! Manual, volume 1, chapter 18), and [`model::Model`], which does the same in plain Rust, bit for bit, for tests on any machine.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod amx;
pub mod model;

/// Rows of a tile.
pub const ROWS: usize = 16;
/// Bytes of a row of a tile.
pub const ROW_BYTES: usize = 64;
/// Bytes of a tile.
pub const BYTES: usize = ROWS * ROW_BYTES;

/// Eight tiles, numbered from 0 to 7, that one thread has configured for itself. Dropping them releases them.
///
/// Operands of the products: `A` holds a row of the left matrix in each of its rows, `B` in row `k` what the values `k` of those rows are
/// multiplied by: for each of the 16 outputs two bf16 (or four bytes), which belong to neighbouring inputs. `C` holds 16 × 16 sums.
pub trait Tiles {
    /// Sets all values of a tile to 0.
    fn zero<const C: usize>(&mut self);

    /// Loads a tile whose rows begin `stride` bytes apart.
    ///
    /// # Safety
    /// `from` is valid for reads of 64 bytes at each of the 16 offsets `0, stride, …, 15 · stride`.
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize);

    /// Stores a tile; the reverse of [`Tiles::load`].
    ///
    /// # Safety
    /// `to` is valid for writes of 64 bytes at each of the 16 offsets `0, stride, …, 15 · stride`.
    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize);

    /// `C += A B` for `A` and `B` of bf16 and `C` of f32 (TDPBF16PS). The products of the even and those of the odd inputs are summed
    /// apart, beginning with 0 and in the order of inputs, then added to each other, and the result to `C`; subnormal operands and
    /// results count as 0.
    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `C += A B` for `A` and `B` of bytes with sign and `C` of 32-bit integers (TDPBSSD).
    fn dot_int8<const C: usize, const A: usize, const B: usize>(&mut self);
}
