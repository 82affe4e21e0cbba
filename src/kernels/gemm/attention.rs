//! Attention of one head on tiles: both GEMMs, with the softmax between them.
//!
//! Everything is transposed, so that a column of vectors belongs to a query. The scores are `K Qᵀ`, whose maximum and
//! sum over the keys are taken without adding up the lanes of a vector; two rows of weights are the pairs of inputs of a
//! right operand; and the result is `Vᵀ W`, which is transposed once more on its way to the output.

use std::slice;

use super::blocking::{MAX_PARTS, TILE_MR, TILE_NR, TILES_PER_PANEL};
use super::cache_line::{CacheLine, LINE_ELEMENTS, elements_mut};
use super::convert::{BF16_PER_TILE_ROW, TileRow, split_bf16, split_bf16_pairs};
use super::layout::{F32_SIGNIFICAND_BITS, GemmType, OperandFormat};
use super::output::OutputBlock;
use super::tile_kernel::Bf16MicroKernel;
use crate::isa::{Isa, Kernel, TileUnit, define_runners};
use crate::math::{exp2, exp2_weight};
use crate::simd::Simd;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::tiles::amx::Amx;
#[cfg(feature = "emulated-tiles")]
use crate::tiles::emulated::EmulatedTiles;
use crate::tiles::{TILE_BYTES, TILE_ROWS, Tiles};

/// The queries, keys or values of one head, as rows of f32.
#[derive(Debug, Clone, Copy)]
pub struct HeadRows<'a> {
    /// The values, from the first row on.
    pub data: &'a [f32],
    /// Values from the start of one row to the start of the next.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// The head dim.
    pub dim: usize,
}

impl<'a> HeadRows<'a> {
    /// A row; empty after the last.
    #[inline(always)]
    fn row(&self, index: usize) -> &'a [f32] {
        if index < self.rows { &self.data[index * self.stride..][..self.dim] } else { &[] }
    }

    /// K steps of a row.
    fn steps(&self) -> usize {
        self.dim.div_ceil(BF16_PER_TILE_ROW)
    }
}

/// The operands of [`attend_head`].
#[derive(Debug, Clone, Copy)]
pub struct HeadAttention<'a> {
    /// `(queries, qk_head_dim)`.
    pub queries: HeadRows<'a>,
    /// `(keys, qk_head_dim)`, of which each query sees all.
    pub keys: HeadRows<'a>,
    /// `(keys, v_head_dim)`.
    pub values: HeadRows<'a>,
    /// The positive factor of the scores.
    pub scale: f32,
}

/// Memory for the packed operands of a head, reused from call to call.
#[derive(Debug, Default)]
pub struct AttentionBuffer {
    lines: Vec<CacheLine>,
}

/// Whether [`attend_head`] computes GEMMs of this type on this ISA.
pub fn attends_on_tiles(isa: Isa, gemm_type: GemmType) -> bool {
    matches!(OperandFormat::select(isa, gemm_type, F32_SIGNIFICAND_BITS), OperandFormat::Bf16Tiles { .. })
}

/// `softmax(scale · Q Kᵀ) V` for one head. Every element of the block is written.
///
/// # Panics
/// If shapes do not match, there is no key, or [`attends_on_tiles`] is false.
pub fn attend_head(
    isa: Isa,
    gemm_type: GemmType,
    head: HeadAttention,
    buffer: &mut AttentionBuffer,
    output: &mut OutputBlock,
) {
    let HeadAttention { queries, keys, values, .. } = head;
    assert_eq!((keys.rows, keys.dim), (values.rows, queries.dim), "queries, keys and values match");
    assert_eq!((output.rows, output.columns), (queries.rows, values.dim), "the block has the result's shape");
    assert!(keys.rows > 0, "there is a key");
    let OperandFormat::Bf16Tiles { parts, .. } = OperandFormat::select(isa, gemm_type, F32_SIGNIFICAND_BITS)
    else {
        panic!("attention on tiles needs bf16 tiles")
    };
    match isa.tile_unit() {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Some(TileUnit::Amx) => {
            // SAFETY: an `Isa` with this tile unit is made only after `amx::is_available` has returned true. The tiles
            // are released before this function returns, and the kernel calls no code that uses tiles, so this thread
            // has no other value of this type.
            let tiles = unsafe { Amx::new() };
            isa.run_beside_amx(AttendHead { parts, head, buffer, output, tiles });
        }
        #[cfg(feature = "emulated-tiles")]
        Some(TileUnit::Emulated) => {
            AttendHead { parts, head, buffer, output, tiles: EmulatedTiles::default() }.run_portable();
        }
        None => unreachable!("only an ISA with a tile unit has bf16 tiles"),
    }
}

/// The kernel of [`attend_head`].
struct AttendHead<'a, 'b, T> {
    parts: usize,
    head: HeadAttention<'a>,
    buffer: &'a mut AttentionBuffer,
    output: &'a mut OutputBlock<'b>,
    tiles: T,
}

impl<T: Tiles> Kernel for AttendHead<'_, '_, T> {
    type Output = ();

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.parts {
            1 => self.attend::<S, 1>(s),
            2 => self.attend::<S, 2>(s),
            _ => self.attend::<S, MAX_PARTS>(s),
        }
    }
}

/// A tile of packed elements.
type Tile = [TileRow; TILE_ROWS];
/// A row of scores or of results, one value per query of a block.
type QueryRow = [f32; TILE_NR];

/// The packed operands of a head for `P` bf16 parts.
struct Operands<'a> {
    /// A left operand: for every 16 keys and every K step the tiles of the parts.
    keys: &'a mut [Tile],
    /// A left operand: for every 16 columns of the values and every 32 keys the tiles of the parts.
    values: &'a mut [Tile],
    /// A panel: the queries of a block.
    queries: &'a mut [Tile],
    /// A panel: the unnormalised weights of a block.
    weights: &'a mut [Tile],
    /// The scores of a block, a row per key, then 32 rows of results.
    rows: &'a mut [QueryRow],
}

impl<'a> Operands<'a> {
    fn new(buffer: &'a mut AttentionBuffer, head: &HeadAttention, parts: usize) -> Self {
        let key_steps = head.keys.rows.div_ceil(BF16_PER_TILE_ROW);
        let keys = head.keys.rows.div_ceil(TILE_ROWS) * head.keys.steps() * parts;
        let values = head.values.dim.div_ceil(TILE_ROWS) * key_steps * parts;
        let queries = TILES_PER_PANEL * head.queries.steps() * parts;
        let weights = TILES_PER_PANEL * key_steps * parts;
        let rows = (key_steps + 1) * TILE_MR;
        let lines = (keys + values + queries + weights) * TILE_ROWS
            + rows * size_of::<QueryRow>() / size_of::<CacheLine>();
        if buffer.lines.len() < lines {
            buffer.lines.resize(lines, CacheLine([0; LINE_ELEMENTS]));
        }
        let (packed, plain) =
            buffer.lines[..lines].split_at_mut((keys + values + queries + weights) * TILE_ROWS);
        let (tile_rows, _) = elements_mut(packed).as_chunks_mut::<{ LINE_ELEMENTS }>();
        let (tiles, _) = tile_rows.as_chunks_mut::<TILE_ROWS>();
        let (keys, tiles) = tiles.split_at_mut(keys);
        let (values, tiles) = tiles.split_at_mut(values);
        let (queries, weights) = tiles.split_at_mut(queries);
        // SAFETY: every bit pattern is a valid f32, and the lines have the size of `rows` rows and at least their
        // alignment. The result borrows the lines mutably, so there is no other reference to them.
        let rows = unsafe { slice::from_raw_parts_mut(plain.as_mut_ptr().cast(), rows) };
        Operands { keys, values, queries, weights, rows }
    }
}

impl<T: Tiles> AttendHead<'_, '_, T> {
    #[inline(always)]
    fn attend<S: Simd, const P: usize>(self, s: S) {
        let AttendHead { head, buffer, output, mut tiles, .. } = self;
        let HeadAttention { queries, keys, values, scale } = head;
        let Operands { keys: packed_keys, values: packed_values, queries: panel, weights, rows } =
            Operands::new(buffer, &head, P);
        let (scores, results) = rows.split_at_mut(rows.len() - TILE_MR);
        pack_rows::<S, P>(s, keys, packed_keys);
        pack_columns::<S, P>(s, values, packed_values);
        let tiles_per_block = TILES_PER_PANEL * packed_values.len() / values.dim.div_ceil(TILE_ROWS);
        let mut sums = [0.0; TILE_NR];
        for first in (0..queries.rows).step_by(TILE_NR) {
            let count = TILE_NR.min(queries.rows - first);
            pack_queries::<S, P>(s, queries, first..first + count, panel);
            multiply::<T, P>(&mut tiles, packed_keys, keys.rows, panel, scores);
            softmax::<S, P>(s, &scores[..keys.rows], scale, count, weights, &mut sums);
            for (block, packed) in packed_values.chunks(tiles_per_block).enumerate() {
                let columns = block * TILE_MR..values.dim.min((block + 1) * TILE_MR);
                multiply::<T, P>(&mut tiles, packed, columns.len(), weights, results);
                for query in (0..count).step_by(TILE_ROWS) {
                    for column in columns.clone().step_by(TILE_ROWS) {
                        let results = &results[column - columns.start..][..TILE_ROWS];
                        let to = output.data.wrapping_add((first + query) * output.stride + column);
                        let shape = (TILE_ROWS.min(count - query), TILE_ROWS.min(columns.end - column));
                        // SAFETY: `output` is valid for writes of these rows and columns: `attend_head` has checked
                        // its shape.
                        unsafe { store_transposed(s, results, query, &sums, to, output.stride, shape) };
                    }
                }
            }
        }
    }
}

/// Packs rows as a left operand.
#[inline(always)]
fn pack_rows<S: Simd, const P: usize>(s: S, from: HeadRows, to: &mut [Tile]) {
    for (group, tiles) in to.chunks_mut(from.steps() * P).enumerate() {
        for (step, parts) in tiles.chunks_mut(P).enumerate() {
            for i in 0..TILE_ROWS.min(from.rows - group * TILE_ROWS) {
                let row = from.row(group * TILE_ROWS + i);
                let row = &row[step * BF16_PER_TILE_ROW..from.dim.min((step + 1) * BF16_PER_TILE_ROW)];
                split_bf16::<S, P>(s, row, part_rows(parts, i));
            }
        }
    }
}

/// Row `i` of the tile of each part.
#[inline(always)]
fn part_rows<const P: usize>(parts: &mut [Tile], i: usize) -> [&mut TileRow; P] {
    let parts: &mut [Tile; P] = parts.try_into().expect("there is a tile for every part");
    parts.each_mut().map(|part| &mut part[i])
}

/// Packs columns as a left operand whose inputs are the rows. Inputs after the last row are 0.
#[inline(always)]
fn pack_columns<S: Simd, const P: usize>(s: S, from: HeadRows, to: &mut [Tile]) {
    let steps = from.rows.div_ceil(BF16_PER_TILE_ROW);
    for (group, tiles) in to.chunks_mut(steps * P).enumerate() {
        let columns = group * TILE_ROWS..from.dim.min((group + 1) * TILE_ROWS);
        for (step, parts) in tiles.chunks_mut(P).enumerate() {
            for pair in 0..TILE_ROWS {
                let row = step * BF16_PER_TILE_ROW + 2 * pair;
                let [low, high] =
                    [row, row + 1].map(|row| from.row(row).get(columns.clone()).unwrap_or_default());
                split_bf16_pairs::<S, P>(s, low, high, part_rows(parts, pair));
            }
            for part in parts {
                s.transpose_u32(part);
            }
        }
    }
}

/// Packs up to 32 queries as a panel. Columns after the last query are arbitrary.
#[inline(always)]
fn pack_queries<S: Simd, const P: usize>(
    s: S,
    from: HeadRows,
    rows: std::ops::Range<usize>,
    to: &mut [Tile],
) {
    for (step, parts) in to.chunks_mut(P * TILES_PER_PANEL).enumerate() {
        let inputs = step * BF16_PER_TILE_ROW..from.dim.min((step + 1) * BF16_PER_TILE_ROW);
        let mut parts = parts.chunks_exact_mut(TILES_PER_PANEL);
        let mut parts: [&mut [Tile]; P] =
            std::array::from_fn(|_| parts.next().expect("there is a tile for every part"));
        for (i, row) in rows.clone().enumerate() {
            let to = parts.each_mut().map(|part| &mut part[i / TILE_ROWS][i % TILE_ROWS]);
            split_bf16::<S, P>(s, &from.row(row)[inputs.clone()], to);
        }
        let tiles = rows.len().div_ceil(TILE_ROWS);
        for part in parts {
            for tile in &mut part[..tiles] {
                s.transpose_u32(tile);
            }
        }
    }
}

/// Multiplies a left operand of `count` rows by a panel; writes `count` rows, rounded up to 32.
#[inline(always)]
fn multiply<T: Tiles, const P: usize>(
    tiles: &mut T,
    a: &[Tile],
    count: usize,
    b: &[Tile],
    to: &mut [QueryRow],
) {
    let steps = b.len() / (P * TILES_PER_PANEL);
    let group = steps * P;
    assert!(a.len() >= count.div_ceil(TILE_ROWS) * group, "the left operand has these rows");
    assert!(to.len() >= count.next_multiple_of(TILE_MR), "there is memory for the results");
    let mut previous: *mut u8 = to.as_mut_ptr().cast();
    for first in (0..count).step_by(TILE_MR) {
        let kernel = Bf16MicroKernel {
            a: a[first / TILE_ROWS * group..].as_ptr().cast(),
            a_second: group * TILE_BYTES,
            b: b.as_ptr().cast(),
            k_steps: 0..steps,
            partial_sums: None,
            previous,
        };
        // SAFETY: by the assertions `a` has the tiles of 16 rows, and of 32 if more than 16 are left; `b` has all K
        // steps. `previous` is 32 rows of `to`.
        unsafe {
            if count - first > TILE_ROWS {
                kernel.steps::<T, P, P, true>(tiles);
            } else {
                kernel.steps::<T, P, P, false>(tiles);
            }
        }
        previous = to[first..].as_mut_ptr().cast();
    }
    // SAFETY: `previous` is 32 rows of `to`.
    unsafe { Bf16MicroKernel::store_accumulators(tiles, previous) };
}

/// Writes the unnormalised softmax over the keys as a panel, and its sums. `scores` has a row per key, of which `count`
/// columns are queries.
#[inline(always)]
fn softmax<S: Simd, const P: usize>(
    s: S,
    scores: &[QueryRow],
    scale: f32,
    count: usize,
    weights: &mut [Tile],
    sums: &mut QueryRow,
) {
    for column in (0..count).step_by(S::LANES) {
        let mut maxima = [s.splat(f32::NEG_INFINITY); 4];
        let (fours, rest) = scores.as_chunks::<4>();
        for rows in fours {
            for (max, row) in maxima.iter_mut().zip(rows) {
                *max = s.max(*max, scores_at(s, row, column));
            }
        }
        for (max, row) in maxima.iter_mut().zip(rest) {
            *max = s.max(*max, scores_at(s, row, column));
        }
        let [a, b, c, d] = maxima;
        let max = s.max(s.max(a, b), s.max(c, d));
        let weight = Weight::<S, P>::new(s, max, scale);
        let mut sum = s.splat(0.0);
        let (tile, lane) = (column / TILE_ROWS, column % TILE_ROWS);
        for (scores, parts) in
            scores.chunks(BF16_PER_TILE_ROW).zip(weights.chunks_exact_mut(P * TILES_PER_PANEL))
        {
            let mut partial_sums = [s.splat(0.0); 2];
            for pair in 0..TILE_ROWS {
                let mut values = [s.splat(0.0); 2];
                for (i, value) in values.iter_mut().enumerate() {
                    if let Some(row) = scores.get(2 * pair + i) {
                        *value = weight.eval(s, scores_at(s, row, column));
                        partial_sums[i] = s.add(partial_sums[i], *value);
                    }
                }
                for (part, tiles) in parts.chunks_exact_mut(TILES_PER_PANEL).enumerate() {
                    let [low, high] = values;
                    // SAFETY: a tile row has 16 u32, and `lane` is a multiple of `LANES` below 16.
                    let rounded =
                        unsafe { s.store_bf16_pairs(tiles[tile][pair].as_mut_ptr().add(lane), low, high) };
                    if part + 1 < P {
                        values = [s.sub(low, rounded[0]), s.sub(high, rounded[1])];
                    }
                }
            }
            sum = s.add(sum, s.add(partial_sums[0], partial_sums[1]));
        }
        s.store_at(sums, column, sum);
    }
}

/// The scores of one key and `LANES` queries.
#[inline(always)]
fn scores_at<S: Simd>(s: S, row: &QueryRow, column: usize) -> S::F {
    let row = &row[column..column + S::LANES];
    // SAFETY: `row` has `LANES` values.
    unsafe { s.load(row.as_ptr()) }
}

/// `exp(scale · (score − max))`, as accurate as `P` bf16 parts need: `2ˣ` of `x = scale · log₂e · score + offset`. All weights of a query
/// have the rounding error of the offset in common, so that it cancels in the quotient with their sum.
struct Weight<S: Simd, const P: usize> {
    /// `scale · log₂e`.
    scale: S::F,
    /// `−scale · log₂e · max`.
    offset: S::F,
}

impl<S: Simd, const P: usize> Weight<S, P> {
    #[inline(always)]
    fn new(s: S, max: S::F, scale: f32) -> Self {
        let scale = s.splat(scale * std::f32::consts::LOG2_E);
        Weight { scale, offset: s.sub(s.splat(0.0), s.mul(scale, max)) }
    }

    #[inline(always)]
    fn eval(&self, s: S, score: S::F) -> S::F {
        let x = s.fma(score, self.scale, self.offset);
        if P == 1 { exp2_weight(s, x) } else { exp2(s, x) }
    }
}

/// Stores the transpose of 16 rows of `results`, of the queries from `query` on, divided by their sums.
///
/// # Safety
/// `to` is valid for writes of `columns` values in `rows` rows, which begin every `stride` values; `shape` is `(rows,
/// columns)`, each at most 16.
#[inline(always)]
unsafe fn store_transposed<S: Simd>(
    s: S,
    results: &[QueryRow],
    query: usize,
    sums: &QueryRow,
    to: *mut f32,
    stride: usize,
    (rows, columns): (usize, usize),
) {
    let mut tile: Tile = [[0; LINE_ELEMENTS]; TILE_ROWS];
    for start in (0..TILE_ROWS).step_by(S::LANES) {
        let factor = s.div(s.splat(1.0), s.load_at(sums, query + start, 0.0));
        for (to, row) in tile.iter_mut().zip(results) {
            let y = s.mul(s.load_at(row, query + start, 0.0), factor);
            // SAFETY: `to` has 16 u32, the size of 16 f32, and `start` is a multiple of `LANES` below 16.
            unsafe { s.store(to.as_mut_ptr().cast::<f32>().add(start), y) };
        }
    }
    s.transpose_u32(&mut tile);
    for (i, row) in tile.iter().enumerate().take(rows) {
        for start in (0..columns).step_by(S::LANES) {
            // SAFETY: `row` has 16 values and `start` is a multiple of `LANES` below 16. `to` is valid for writes by
            // the contract of this function.
            unsafe {
                let y = s.load(row.as_ptr().cast::<f32>().add(start));
                s.store_up_to(to.add(i * stride + start), y, columns - start);
            }
        }
    }
}
