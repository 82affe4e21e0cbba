//! The instructions of tiles in plain Rust.

use super::{BYTES, ROW_BYTES, ROWS, Tiles};

/// Eight tiles in memory.
#[derive(Debug)]
pub struct Model([[u8; BYTES]; 8]);

/// All tiles are 0.
impl Default for Model {
    fn default() -> Self {
        Model([[0; BYTES]; 8])
    }
}

/// Values of a row of sums.
const OUTPUTS: usize = ROW_BYTES / 4;

/// Subnormal numbers count as 0.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

impl Model {
    fn word(&self, tile: usize, row: usize, word: usize) -> [u8; 4] {
        let at = row * ROW_BYTES + word * 4;
        std::array::from_fn(|i| self.0[tile][at + i])
    }

    /// The two bf16 of a word.
    fn pair(&self, tile: usize, row: usize, word: usize) -> [f32; 2] {
        let [a, b, c, d] = self.word(tile, row, word);
        [[a, b], [c, d]].map(|bits| flush(f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16)))
    }

    /// Replaces each of the 16 × 16 values of a tile by what `f` makes of it and of its row and column.
    fn update(&mut self, tile: usize, f: impl Fn(&Self, [u8; 4], usize, usize) -> [u8; 4]) {
        for (row, column) in (0..ROWS).flat_map(|row| (0..OUTPUTS).map(move |column| (row, column))) {
            let value = f(self, self.word(tile, row, column), row, column);
            let at = row * ROW_BYTES + column * 4;
            self.0[tile][at..at + 4].copy_from_slice(&value);
        }
    }
}

impl Tiles for Model {
    fn zero<const C: usize>(&mut self) {
        self.0[C].fill(0);
    }

    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        for (row, to) in self.0[T].chunks_exact_mut(ROW_BYTES).enumerate() {
            // SAFETY: the caller's pointer is valid for reads of 64 bytes at this offset; `to` is a part of this value.
            unsafe { std::ptr::copy_nonoverlapping(from.add(row * stride), to.as_mut_ptr(), ROW_BYTES) };
        }
    }

    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
        for (row, from) in self.0[T].chunks_exact(ROW_BYTES).enumerate() {
            // SAFETY: the caller's pointer is valid for writes of 64 bytes at this offset; `from` is a part of this value.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.add(row * stride), ROW_BYTES) };
        }
    }

    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.update(C, |tiles, sum, row, column| {
            let mut halves = [0f32; 2];
            for k in 0..OUTPUTS {
                let (a, b) = (tiles.pair(A, row, k), tiles.pair(B, k, column));
                for (half, (a, b)) in halves.iter_mut().zip(a.iter().zip(b)) {
                    *half = flush(a.mul_add(b, *half));
                }
            }
            let sum = flush(f32::from_le_bytes(sum)) + flush(halves[0] + halves[1]);
            flush(sum).to_le_bytes()
        });
    }

    fn dot_int8<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.update(C, |tiles, sum, row, column| {
            let mut sum = i32::from_le_bytes(sum);
            for k in 0..OUTPUTS {
                for (a, b) in tiles.word(A, row, k).into_iter().zip(tiles.word(B, k, column)) {
                    sum = sum.wrapping_add(i32::from(a as i8) * i32::from(b as i8));
                }
            }
            sum.to_le_bytes()
        });
    }
}
