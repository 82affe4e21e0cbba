//! Attention of one head in one kernel: both GEMMs, with the softmax between them. On an ISA with tiles it is
//! the kernel in this file, on others that of `few_keys`.
//!
//! On tiles everything is transposed, so that a column of vectors belongs to a query. The scores are `K Qᵀ`,
//! whose maximum and sum over the keys are taken without adding up the lanes of a vector; two rows of weights
//! are the pairs of inputs of a right operand; and the result is `Vᵀ W`, which is transposed once more on its
//! way to the output.
//!
//! There keys are taken in blocks, whose packed operands and scores stay in L2. From block to block, every
//! query keeps its maximum, its sum and its result, which are rescaled when the maximum grows (Milakov and
//! Gimelshein 2018; Dao et al. 2022).

mod few_keys;
mod head;
mod pack;
mod softmax;

use std::ops::Range;
use std::slice;

use super::blocking::{ATTENTION_KC, MAX_PARTS, TILE_MR, TILE_NR, TILES_PER_PANEL};
use super::cache_line::{CacheLine, LINE_ELEMENTS, at_least, elements_mut};
use super::convert::BF16_PER_TILE_ROW;
use super::layout::{F32_SIGNIFICAND_BITS, GemmType, OperandFormat, PackedLayout};
use super::output::OutputBlock;
use super::tile_kernel::Bf16MicroKernel;
use crate::isa::{Isa, Kernel, TileUnit, define_runners};
use crate::simd::Simd;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::tiles::amx::Amx;
#[cfg(feature = "emulated-tiles")]
use crate::tiles::emulated::EmulatedTiles;
use crate::tiles::{TILE_BYTES, TILE_ROWS, Tiles};
use few_keys::AttendFewKeys;
pub use head::{AttentionWindow, HeadAttention, HeadRows};
use head::{QueryRow, Tile};
use pack::{pack_columns, pack_queries, pack_rows};
use softmax::{OnlineSoftmax, RelativeTable};

/// Memory for the packed operands of a head, reused from call to call.
#[derive(Debug, Default)]
pub struct AttentionBuffer {
    lines: Vec<CacheLine>,
}

/// The most keys with which [`attend_head`] computes heads of these dims, of queries and keys and of values.
/// There is no limit where the GEMM type is in bf16 tiles; on vectors keys and values have to fit in L1, in
/// f32 and where it is fast in bf16.
pub fn max_attended_keys(isa: Isa, gemm_type: GemmType, head_dims: [usize; 2]) -> usize {
    match OperandFormat::select(isa, gemm_type, F32_SIGNIFICAND_BITS) {
        OperandFormat::Bf16Tiles { .. } => usize::MAX,
        format => few_keys::max_keys(format, head_dims),
    }
}

/// `softmax(scale · Q Kᵀ + bias) V` for one head, over the keys that each query sees; 0 if it sees none.
/// Every element of the block is written.
///
/// # Panics
/// If shapes do not match, there is no query or no key, the bias does not cover the positions, or there are
/// more keys than [`max_attended_keys`].
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
    assert!(queries.rows > 0 && keys.rows > 0, "there are queries and keys");
    assert!([queries, keys, values].iter().all(|rows| rows.stride >= rows.dim), "rows do not overlap");
    let farthest = keys.rows.max(head.first_query + queries.rows) - 1;
    assert!(head.bias.is_empty() || head.bias.len() > 2 * farthest, "the bias covers the positions");
    let layout = |inputs: usize| PackedLayout::new(isa, gemm_type, inputs, F32_SIGNIFICAND_BITS);
    match OperandFormat::select(isa, gemm_type, F32_SIGNIFICAND_BITS) {
        OperandFormat::Bf16Tiles { parts, .. } => attend_on_tiles(isa, parts, head, buffer, output),
        format => {
            let max_keys = few_keys::max_keys(format, [keys.dim, values.dim]);
            assert!(keys.rows <= max_keys, "there is a kernel for this head");
            let (layouts, lines) = ([layout(keys.dim), layout(keys.rows)], &mut buffer.lines);
            if format == OperandFormat::Bf16 {
                isa.run(AttendFewKeys::<true> { layouts, head, lines, output });
            } else {
                isa.run(AttendFewKeys::<false> { layouts, head, lines, output });
            }
        }
    }
}

/// [`attend_head`] in `parts` bf16 parts.
fn attend_on_tiles(
    isa: Isa,
    parts: usize,
    head: HeadAttention,
    buffer: &mut AttentionBuffer,
    output: &mut OutputBlock,
) {
    match isa.tile_unit() {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Some(TileUnit::Amx) => {
            // SAFETY: an `Isa` with this tile unit is made only after `amx::is_available` has returned true.
            // The tiles are released before this function returns, and the kernel calls no code that uses
            // tiles, so this thread has no other value of this type.
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

/// The kernel of [`attend_head`] on tiles.
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

/// Memory for the operands of a block of keys and of the queries, packed in bf16 parts.
struct Operands<'a> {
    /// A left operand: for every 16 keys and every K step the tiles of the parts.
    keys: &'a mut [Tile],
    /// A left operand: for every 16 columns of the values and every 32 keys the tiles of the parts.
    values: &'a mut [Tile],
    /// The scores of a query block, a row per key.
    scores: &'a mut [QueryRow],
    /// A panel: the unnormalised weights of a query block.
    weights: &'a mut [Tile],
    /// All query blocks; only one if there is only one block of keys.
    query_blocks: QueryBlocks<'a>,
    /// For [`RelativeTable`].
    relative: &'a mut [QueryRow],
}

/// What query blocks keep from one block of keys to the next.
struct QueryBlocks<'a> {
    /// For each the panel of the queries.
    panels: &'a mut [Tile],
    /// For each the maxima of the scores, the sums of the weights, and the unnormalised results: a row per
    /// column of the values, rounded up to 32.
    rows: &'a mut [QueryRow],
    count: usize,
}

impl QueryBlocks<'_> {
    /// The panel, the softmax and the results of a query block.
    fn block(&mut self, index: usize) -> (&mut [Tile], OnlineSoftmax<'_>, &mut [QueryRow]) {
        let index = index % self.count;
        let (tiles, rows) = (self.panels.len() / self.count, self.rows.len() / self.count);
        let [maxima, sums, results @ ..] = &mut self.rows[index * rows..][..rows] else {
            unreachable!("a query block has at least 34 rows")
        };
        (&mut self.panels[index * tiles..][..tiles], OnlineSoftmax { maxima, sums }, results)
    }
}

impl<'a> Operands<'a> {
    fn new(buffer: &'a mut AttentionBuffer, head: &HeadAttention, parts: usize) -> Self {
        let HeadAttention { queries, keys, values, .. } = head;
        let block_keys = keys.rows.min(ATTENTION_KC);
        let key_steps = block_keys.div_ceil(BF16_PER_TILE_ROW);
        let count = if block_keys < keys.rows { queries.rows.div_ceil(TILE_NR) } else { 1 };
        let key_tiles = block_keys.div_ceil(TILE_ROWS) * keys.steps() * parts;
        let value_tiles = values.dim.div_ceil(TILE_ROWS) * key_steps * parts;
        let weight_tiles = TILES_PER_PANEL * key_steps * parts;
        let panel_tiles = count * TILES_PER_PANEL * queries.steps() * parts;
        let score_rows = key_steps * TILE_MR;
        let query_rows = count * (2 + values.dim.next_multiple_of(TILE_MR));
        let relative_rows = RelativeTable::rows(head);
        let tiles = key_tiles + value_tiles + weight_tiles + panel_tiles;
        let rows = score_rows + query_rows + relative_rows;
        let lines = tiles * TILE_ROWS + rows * size_of::<QueryRow>() / size_of::<CacheLine>();
        let (packed, plain) = at_least(&mut buffer.lines, lines).split_at_mut(tiles * TILE_ROWS);
        let (tile_rows, _) = elements_mut(packed).as_chunks_mut::<{ LINE_ELEMENTS }>();
        let (tiles, _) = tile_rows.as_chunks_mut::<TILE_ROWS>();
        let (keys, tiles) = tiles.split_at_mut(key_tiles);
        let (values, tiles) = tiles.split_at_mut(value_tiles);
        let (weights, panels) = tiles.split_at_mut(weight_tiles);
        // SAFETY: every bit pattern is a valid f32, and the lines have the size of `rows` rows and at least
        // their alignment. The result borrows the lines mutably, so there is no other reference to them.
        let rows: &mut [QueryRow] = unsafe { slice::from_raw_parts_mut(plain.as_mut_ptr().cast(), rows) };
        let (scores, rows) = rows.split_at_mut(score_rows);
        let (rows, relative) = rows.split_at_mut(query_rows);
        Operands {
            keys,
            values,
            scores,
            weights,
            query_blocks: QueryBlocks { panels, rows, count },
            relative,
        }
    }
}

impl<T: Tiles> AttendHead<'_, '_, T> {
    #[inline(always)]
    fn attend<S: Simd, const P: usize>(self, s: S) {
        let AttendHead { head, buffer, output, mut tiles, .. } = self;
        let HeadAttention { queries, keys, values, .. } = head;
        let Operands {
            keys: packed_keys,
            values: packed_values,
            scores,
            weights,
            mut query_blocks,
            relative,
        } = Operands::new(buffer, &head, P);
        let relative = RelativeTable::new(&head, relative);
        let key_group = keys.steps() * P;
        for first_key in (0..keys.rows).step_by(ATTENTION_KC) {
            let block = first_key..keys.rows.min(first_key + ATTENTION_KC);
            let value_group = block.len().div_ceil(BF16_PER_TILE_ROW) * P;
            let packed_keys = &mut packed_keys[..block.len().div_ceil(TILE_ROWS) * key_group];
            let packed_values = &mut packed_values[..values.dim.div_ceil(TILE_ROWS) * value_group];
            pack_rows::<S, P>(s, keys.slice(&block), packed_keys);
            pack_columns::<S, P>(s, values.slice(&block), packed_values);
            for (index, first) in (0..queries.rows).step_by(TILE_NR).enumerate() {
                let rows = first..queries.rows.min(first + TILE_NR);
                let (panel, mut softmax, results) = query_blocks.block(index);
                if first_key == 0 {
                    pack_queries::<S, P>(s, queries, rows.clone(), panel);
                    softmax.begin();
                }
                let visible = head.visible(&rows);
                let seen = visible.start.max(first_key)..visible.end.min(block.end);
                if !seen.is_empty() {
                    // From a K step of the second GEMM on. The table masks what a query does not see.
                    let first_step = (seen.start - first_key) / BF16_PER_TILE_ROW;
                    let steps = first_step..(seen.end - first_key).div_ceil(BF16_PER_TILE_ROW);
                    let seen = first_key + first_step * BF16_PER_TILE_ROW..seen.end;
                    let tiles_before = first_step * TILES_PER_PANEL * key_group;
                    let keys = LeftOperand {
                        tiles: &packed_keys[tiles_before..],
                        group: key_group,
                        rows: seen.len(),
                    };
                    multiply::<S, T, P>(s, &mut tiles, keys, panel, 0..queries.steps(), scores, None);
                    if head.adds_to_scores(&rows, &seen) {
                        relative.add_to(s, &mut scores[..seen.len()], &rows, seen.start);
                    }
                    let is_first = visible.start >= first_key;
                    softmax.extend::<S, P>(
                        s,
                        (&scores[..seen.len()], rows.len()),
                        relative.scale,
                        &mut weights[first_step * TILES_PER_PANEL * P..],
                        if is_first { &mut [] } else { results },
                    );
                    let values = LeftOperand { tiles: packed_values, group: value_group, rows: values.dim };
                    // The scores are not read any more.
                    let spare = if is_first { None } else { Some(&mut *scores) };
                    multiply::<S, T, P>(s, &mut tiles, values, weights, steps, results, spare);
                }
                if block.contains(&(visible.end - 1)) {
                    if visible.is_empty() {
                        results.fill([0.0; TILE_NR]);
                    }
                    for query in rows.clone().filter(|query| head.visible(&(*query..query + 1)).is_empty()) {
                        softmax.sums[query - first] = 1.0;
                    }
                    store_results(s, results, softmax.sums, &rows, output);
                }
            }
        }
    }
}

/// A left operand of a GEMM.
struct LeftOperand<'a> {
    tiles: &'a [Tile],
    /// Tiles of 16 rows: all K steps.
    group: usize,
    rows: usize,
}

/// Multiplies some K steps of a left operand by those of a panel, of `P` parts each. Writes the rows of the
/// left operand, rounded up to 32; with `spare`, memory of 32 rows that is overwritten, adds to them.
#[inline(always)]
fn multiply<S: Simd, T: Tiles, const P: usize>(
    s: S,
    tiles: &mut T,
    a: LeftOperand,
    b: &[Tile],
    steps: Range<usize>,
    to: &mut [QueryRow],
    spare: Option<&mut [QueryRow]>,
) {
    assert!(
        steps.end * P <= a.group && steps.end * P * TILES_PER_PANEL <= b.len(),
        "both have these K steps"
    );
    assert!(a.tiles.len() >= a.rows.div_ceil(TILE_ROWS) * a.group, "the left operand has these rows");
    assert!(to.len() >= a.rows.next_multiple_of(TILE_MR), "there is memory for the results");
    let adds = spare.is_some();
    let to: *mut QueryRow = to.as_mut_ptr();
    // What the tiles still hold must not be stored to rows that are to be added to.
    let mut previous: *mut u8 = match spare {
        Some(spare) => spare[..TILE_MR].as_mut_ptr().cast(),
        None => to.cast(),
    };
    for first in (0..a.rows).step_by(TILE_MR) {
        let results: *mut u8 = to.wrapping_add(first).cast();
        let kernel = Bf16MicroKernel {
            a: a.tiles[first / TILE_ROWS * a.group..].as_ptr().cast(),
            a_second: a.group * TILE_BYTES,
            b: b.as_ptr().cast(),
            k_steps: steps.clone(),
            partial_sums: adds.then_some(results.cast_const()),
            previous,
        };
        // SAFETY: by the assertions `a` has the tiles of 16 rows, and of 32 if more than 16 are left; `b` has
        // these K steps. `previous` and `results` are 32 rows of `spare` or `to` each, and `to` is
        // initialised.
        unsafe {
            if a.rows - first > TILE_ROWS {
                kernel.steps::<S, T, P, P, true>(s, tiles);
            } else {
                kernel.steps::<S, T, P, P, false>(s, tiles);
            }
        }
        previous = results;
    }
    // SAFETY: `previous` is 32 rows of `to`.
    unsafe { Bf16MicroKernel::store_accumulators(tiles, previous) };
}

/// Writes the results of some queries, divided by the sums of their weights.
#[inline(always)]
fn store_results<S: Simd>(
    s: S,
    results: &[QueryRow],
    sums: &QueryRow,
    queries: &Range<usize>,
    output: &mut OutputBlock,
) {
    for query in (0..queries.len()).step_by(TILE_ROWS) {
        for column in (0..output.columns).step_by(TILE_ROWS) {
            let to = output.data.wrapping_add((queries.start + query) * output.stride + column);
            let shape = (TILE_ROWS.min(queries.len() - query), TILE_ROWS.min(output.columns - column));
            // SAFETY: `output` is valid for writes of these rows and columns: `attend_head` has checked its
            // shape.
            unsafe {
                store_transposed(s, &results[column..][..TILE_ROWS], query, sums, to, output.stride, shape);
            }
        }
    }
}

/// Stores the transpose of 16 rows of `results`, of the queries from `query` on, divided by their sums.
///
/// # Safety
/// `to` is valid for writes of `columns` values in `rows` rows, which begin every `stride` values; `shape` is
/// `(rows, columns)`, each at most 16.
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
            // SAFETY: `row` has 16 values and `start` is a multiple of `LANES` below 16. `to` is valid for
            // writes by the contract of this function.
            unsafe {
                let y = s.load(row.as_ptr().cast::<f32>().add(start));
                s.store_up_to(to.add(i * stride + start), y, columns - start);
            }
        }
    }
}
