//! AMX emulated in plain Rust.

use super::{TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, Tiles};

/// Eight tiles in memory.
#[derive(Debug)]
pub struct EmulatedTiles([[u8; TILE_BYTES]; 8]);

/// All tiles are 0.
impl Default for EmulatedTiles {
    fn default() -> Self {
        EmulatedTiles([[0; TILE_BYTES]; 8])
    }
}

/// Packed elements, or accumulators, of a tile row.
const ROW_ELEMENTS: usize = TILE_ROW_BYTES / 4;

/// Flushes subnormal numbers to 0.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

impl EmulatedTiles {
    /// The bytes of a packed element.
    fn element(&self, tile: usize, row: usize, index: usize) -> [u8; 4] {
        let start = row * TILE_ROW_BYTES + index * 4;
        std::array::from_fn(|i| self.0[tile][start + i])
    }

    /// The two bf16 of a packed element.
    fn bf16_pair(&self, tile: usize, row: usize, index: usize) -> [f32; 2] {
        let [a, b, c, d] = self.element(tile, row, index);
        [[a, b], [c, d]].map(|bits| flush(f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16)))
    }

    /// Replaces each of the 16 × 16 accumulators of a tile by `f(self, accumulator, row, column)`.
    fn update(&mut self, tile: usize, f: impl Fn(&Self, [u8; 4], usize, usize) -> [u8; 4]) {
        for (row, column) in (0..TILE_ROWS).flat_map(|row| (0..ROW_ELEMENTS).map(move |column| (row, column)))
        {
            let value = f(self, self.element(tile, row, column), row, column);
            let start = row * TILE_ROW_BYTES + column * 4;
            self.0[tile][start..start + 4].copy_from_slice(&value);
        }
    }
}

/// Not inlined: a kernel has hundreds of these instructions.
impl Tiles for EmulatedTiles {
    #[inline(never)]
    fn zero<const C: usize>(&mut self) {
        self.0[C].fill(0);
    }

    #[inline(never)]
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        for (row, to) in self.0[T].chunks_exact_mut(TILE_ROW_BYTES).enumerate() {
            // SAFETY: `from` is valid for reads of 64 bytes at the offset `row · stride` by the contract of
            // this method; `to` is a tile row of 64 bytes inside `self`, which `from` cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.add(row * stride), to.as_mut_ptr(), TILE_ROW_BYTES) };
        }
    }

    #[inline(never)]
    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
        for (row, from) in self.0[T].chunks_exact(TILE_ROW_BYTES).enumerate() {
            // SAFETY: `to` is valid for writes of 64 bytes at the offset `row · stride` by the contract of
            // this method; `from` is a tile row of 64 bytes inside `self`, which `to` cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.add(row * stride), TILE_ROW_BYTES) };
        }
    }

    #[inline(never)]
    fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.update(C, |tiles, accumulator, row, column| {
            // Sums of the even and of the odd inputs.
            let mut sums = [0f32; 2];
            for k in 0..ROW_ELEMENTS {
                let (a, b) = (tiles.bf16_pair(A, row, k), tiles.bf16_pair(B, k, column));
                for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
                    *sum = flush(a.mul_add(b, *sum));
                }
            }
            let accumulator = flush(f32::from_le_bytes(accumulator)) + flush(sums[0] + sums[1]);
            flush(accumulator).to_le_bytes()
        });
    }

    #[inline(never)]
    fn dot_int8<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.update(C, |tiles, accumulator, row, column| {
            let mut accumulator = i32::from_le_bytes(accumulator);
            for k in 0..ROW_ELEMENTS {
                for (a, b) in tiles.element(A, row, k).into_iter().zip(tiles.element(B, k, column)) {
                    accumulator = accumulator.wrapping_add(i32::from(a) * i32::from(b as i8));
                }
            }
            accumulator.to_le_bytes()
        });
    }
}
