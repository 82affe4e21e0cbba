//! Emulated tiles against AMX, on a processor that has it. A crate of its own, so that the kernels are not
//! compiled again for one test.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use sconce_kernels::tiles::amx::{Amx, is_available};
use sconce_kernels::tiles::emulated::EmulatedTiles;
use sconce_kernels::tiles::{TILE_BYTES, TILE_ROW_BYTES, Tiles};

/// Deterministic bytes from a linear congruential generator.
fn bytes(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    }
}

/// A tile of bf16 values with magnitudes from 2⁻²⁰ to 2²⁰ of both signs, and zeros.
fn bf16_tile(seed: u64) -> Vec<u8> {
    let mut next = bytes(seed);
    (0..TILE_BYTES / 2)
        .flat_map(|_| {
            let (sign, exponent, mantissa) =
                (u16::from(next() & 1), 107 + u16::from(next() % 41), u16::from(next() & 127));
            let bits = if next() < 10 { sign << 15 } else { sign << 15 | exponent << 7 | mantissa };
            bits.to_le_bytes()
        })
        .collect()
}

/// Accumulates the products of all operands from `C = 0`; rows of `A` are loaded with a stride of two tile
/// rows.
fn chain<T: Tiles>(tiles: &mut T, int8: bool, operands: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    tiles.zero::<1>();
    for (a, b) in operands {
        let mut strided = vec![0; 2 * TILE_BYTES];
        for (to, row) in strided.chunks_mut(2 * TILE_ROW_BYTES).zip(a.chunks(TILE_ROW_BYTES)) {
            to[..TILE_ROW_BYTES].copy_from_slice(row);
        }
        // SAFETY: `strided` holds 16 rows of 128 bytes and `b` 16 rows of 64 bytes.
        unsafe {
            tiles.load::<4>(strided.as_ptr(), 2 * TILE_ROW_BYTES);
            tiles.load::<6>(b.as_ptr(), TILE_ROW_BYTES);
        }
        if int8 {
            tiles.dot_int8::<1, 4, 6>();
        } else {
            tiles.dot_bf16::<1, 4, 6>();
        }
    }
    let mut c = vec![0; TILE_BYTES];
    // SAFETY: `c` holds 16 rows of 64 bytes.
    unsafe { tiles.store::<1>(c.as_mut_ptr(), TILE_ROW_BYTES) };
    c
}

#[test]
fn emulated_tiles_compute_the_bits_of_amx() {
    if !is_available() {
        return;
    }
    let mut next = bytes(9);
    for round in 0..50 {
        let floats: Vec<_> =
            (0..5).map(|i| (bf16_tile(round * 10 + i), bf16_tile(round * 10 + i + 5))).collect();
        let ints: Vec<(Vec<u8>, Vec<u8>)> = (0..5)
            .map(|_| ((0..TILE_BYTES).map(|_| next()).collect(), (0..TILE_BYTES).map(|_| next()).collect()))
            .collect();
        for (int8, operands) in [(false, &floats), (true, &ints)] {
            // SAFETY: `is_available` has returned true, and this thread has no other value of this type.
            let found = chain(&mut unsafe { Amx::new() }, int8, operands);
            assert_eq!(
                found,
                chain(&mut EmulatedTiles::default(), int8, operands),
                "int8 {int8}, round {round}"
            );
        }
    }
}
