//! Scoring blocks of stored vectors against queries.
//!
//! # Arithmetic
//!
//! The score of a query and a row is computed in f64 from their f32 values and rounded to f32 once. Products
//! of two f32 are exact in f64, and sums have a fixed order, so a score has the same bits on every ISA, at
//! any number of threads, and for a query alone or with others. Rows of other types are converted first
//! ([`super::rows_f32`]). For a file of signs the query is reduced to its signs, too: with `h` different
//! signs of `D`, dot is `D − 2h`, cosine `1 − 2h/D`, euclidean `−2√h`.
//!
//! Nearly all rows are ruled out before, by dot products of lower precision: a query alone in f32 FMAs,
//! several by a GEMM in the type that is fastest on the ISA (bf16 on tiles). [`super::bound`] bounds what
//! these products round, so no row that belongs to the result is ruled out.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use thiserror::Error;

use super::block::{Block, Elements};
use super::bound::Bound;
use super::metric::Metric;
use super::rows::rows_f32;
use super::sink::{Neighbour, Sink};
use crate::kernels::dot::{dot_f64, dot_rows, squared_distance_f64, squared_norms};
use crate::kernels::gemm::{Epilogue, GemmType, LhsBuffer, OutputBlock, PackedMatrix, gemm};
use crate::kernels::isa::Isa;
use crate::kernels::quantized::{dot_signs, pack_signs, unpack_signs};
use crate::kernels::select::{reaching, reaching_each};

/// Rows that one rayon task scores: they and their products with a group of queries stay in L2.
const ROWS_PER_TASK: usize = 256;
/// Queries whose products with the rows of a task are computed together.
const QUERIES_PER_GROUP: usize = 512;

/// A vector with a value that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("row {row} has a value that is not finite (NaN or infinity); remove the row")]
pub struct NotFinite {
    /// Index of the row in its file, or of the query.
    pub row: usize,
}

/// The stored type that the queries are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// Numbers: f32, f16 or int8 with scales.
    Numbers,
    /// Signs.
    Signs,
}

impl Stored {
    /// What a block holds.
    pub fn of(elements: &Elements) -> Self {
        if matches!(elements, Elements::Binary(_)) { Stored::Signs } else { Stored::Numbers }
    }
}

/// Queries that are scored against blocks of stored vectors.
#[derive(Debug)]
pub struct Scorer {
    metric: Metric,
    stored: Stored,
    dimensions: usize,
    /// `(queries, dimensions)`; ±1 for a file of signs.
    queries: Vec<f32>,
    /// ‖q‖², in f64 as for scores.
    squared_norms: Vec<f64>,
    norms: Vec<f32>,
    products: Products,
    bound: Bound,
    scratch: Mutex<Vec<Scratch>>,
}

/// How the dot products that rule rows out are computed. The queries are scaled as [`Bound`] says.
#[derive(Debug)]
enum Products {
    /// Of one query, while the rows are read from memory.
    One(Vec<f32>),
    /// Of one query of packed signs.
    OneOfSigns(Vec<i8>),
    /// Of several queries, by a GEMM.
    Many(PackedMatrix),
}

/// Memory of a task.
#[derive(Debug, Default)]
struct Scratch {
    rows: Vec<f32>,
    lhs: LhsBuffer,
    products: Vec<f32>,
    squared_norms: Vec<f32>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
    limits: Vec<f32>,
    found: Vec<u32>,
}

impl Scorer {
    /// For queries `(queries.len() / dimensions, dimensions)`.
    ///
    /// # Panics
    /// If `dimensions` is 0 or the queries are not whole.
    pub fn new(
        metric: Metric,
        stored: Stored,
        queries: &[f32],
        dimensions: usize,
    ) -> Result<Self, NotFinite> {
        assert!(queries.len().is_multiple_of(dimensions), "every query has {dimensions} elements");
        if let Some(at) = queries.iter().position(|x| !x.is_finite()) {
            return Err(NotFinite { row: at / dimensions });
        }
        let mut queries = queries.to_vec();
        if stored == Stored::Signs {
            queries.iter_mut().for_each(|x| *x = if *x > 0.0 { 1.0 } else { -1.0 });
        }
        let isa = Isa::selected();
        let squared = queries.par_chunks_exact(dimensions).map(|query| dot_f64(isa, query, query));
        let squared_norms: Vec<f64> = squared.collect();
        let norms: Vec<f32> = squared_norms.iter().map(|squared| squared.sqrt() as f32).collect();
        let greatest = norms.iter().copied().fold(0.0, f32::max);
        let (products, unit) = Products::new(metric, stored, &queries, &squared_norms, dimensions);
        let bound = Bound::new(metric, dimensions, unit, greatest);
        let scratch = Mutex::default();
        Ok(Scorer { metric, stored, dimensions, queries, squared_norms, norms, products, bound, scratch })
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.norms.len()
    }

    /// Scores the rows of a block in parallel and offers those that can reach the least score of a query.
    ///
    /// # Panics
    /// If the block has vectors of another length or kind.
    pub fn scan(&self, block: &Block, sink: &impl Sink) -> Result<(), NotFinite> {
        assert_eq!(block.dimensions, self.dimensions, "queries and rows have equally many elements");
        assert_eq!(Stored::of(&block.elements), self.stored, "the scorer is for this kind of vectors");
        if self.queries() == 0 {
            return Ok(());
        }
        let tasks = (0..block.rows.div_ceil(ROWS_PER_TASK)).into_par_iter();
        tasks.try_for_each(|task| {
            let rows = task * ROWS_PER_TASK..block.rows.min((task + 1) * ROWS_PER_TASK);
            let mut scratch = self.spare_scratch().pop().unwrap_or_default();
            let result = self.scan_rows(block, rows, &mut scratch, sink);
            self.spare_scratch().push(scratch);
            result
        })
    }

    /// The exact score of a query and a vector of f32, as [`Scorer::scan`] computes it.
    ///
    /// # Panics
    /// If there is no such query, or `x` has another length.
    pub fn score(&self, query: usize, x: &[f32]) -> f32 {
        let squared_norm = if self.metric == Metric::Cosine { dot_f64(Isa::selected(), x, x) } else { 0.0 };
        self.score_with_norm(query, x, squared_norm)
    }

    fn score_with_norm(&self, query: usize, x: &[f32], squared_norm: f64) -> f32 {
        let (isa, q) = (Isa::selected(), &self.queries[query * self.dimensions..][..self.dimensions]);
        let score = match self.metric {
            Metric::Cosine => {
                let squares = self.squared_norms[query] * squared_norm;
                if squares > 0.0 { dot_f64(isa, q, x) / squares.sqrt() } else { 0.0 }
            }
            Metric::Dot => dot_f64(isa, q, x),
            Metric::Euclidean => -squared_distance_f64(isa, q, x).sqrt(),
        };
        // −0 would rank below 0.
        score as f32 + 0.0
    }

    fn spare_scratch(&self) -> std::sync::MutexGuard<'_, Vec<Scratch>> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scan_rows(
        &self,
        block: &Block,
        rows: Range<usize>,
        scratch: &mut Scratch,
        sink: &impl Sink,
    ) -> Result<(), NotFinite> {
        let first_row = block.first_row + rows.start;
        if let (Products::OneOfSigns(query), Elements::Binary(signs)) = (&self.products, block.elements) {
            let bytes = self.dimensions.div_ceil(8);
            self.scan_signs(query, &signs[rows.start * bytes..rows.end * bytes], first_row, scratch, sink);
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut scratch.rows);
        let x = rows_f32(block, rows, &mut buffer);
        let result = match &self.products {
            Products::One(query) => self.scan_one(query, x, first_row, scratch, sink),
            Products::Many(packed) => self.scan_many(packed, x, first_row, scratch, sink),
            Products::OneOfSigns(_) => unreachable!("`scan` has checked the kind of the block"),
        };
        scratch.rows = buffer;
        result
    }

    /// Computes scales and offsets of the rows from their squared norms.
    fn bound_rows(&self, x: &[f32], first_row: usize, scratch: &mut Scratch) -> Result<(), NotFinite> {
        let Scratch { squared_norms, scales, offsets, .. } = scratch;
        let is_finite =
            |row: usize| x[row * self.dimensions..][..self.dimensions].iter().all(|x| x.is_finite());
        let mut suspects = (0..squared_norms.len()).filter(|row| !squared_norms[*row].is_finite());
        if let Some(row) = suspects.find(|row| !is_finite(*row)) {
            return Err(NotFinite { row: first_row + row });
        }
        self.bound.of_rows(squared_norms, scales, offsets);
        Ok(())
    }

    fn scan_one(
        &self,
        query: &[f32],
        x: &[f32],
        first_row: usize,
        scratch: &mut Scratch,
        sink: &impl Sink,
    ) -> Result<(), NotFinite> {
        let rows = x.len() / self.dimensions;
        scratch.products.resize(rows, 0.0);
        scratch.squared_norms.resize(rows, 0.0);
        dot_rows(Isa::selected(), x, query, &mut scratch.products, &mut scratch.squared_norms);
        self.bound_rows(x, first_row, scratch)?;
        self.offer_reaching(scratch, first_row, sink, |row| {
            self.score(0, &x[row * self.dimensions..][..self.dimensions])
        });
        Ok(())
    }

    fn scan_signs(
        &self,
        query: &[i8],
        signs: &[i8],
        first_row: usize,
        scratch: &mut Scratch,
        sink: &impl Sink,
    ) {
        let (isa, bytes) = (Isa::selected(), self.dimensions.div_ceil(8));
        let rows = signs.len() / bytes;
        scratch.products.resize(rows, 0.0);
        dot_signs(isa, signs, query, self.dimensions, &mut scratch.products);
        if Bound::takes_unit_queries(self.metric) {
            scratch.products.iter_mut().for_each(|product| *product /= self.norms[0]);
        }
        scratch.squared_norms.clear();
        scratch.squared_norms.resize(rows, self.dimensions as f32);
        self.bound.of_rows(&scratch.squared_norms, &mut scratch.scales, &mut scratch.offsets);
        let mut x = std::mem::take(&mut scratch.rows);
        x.resize(self.dimensions, 0.0);
        self.offer_reaching(scratch, first_row, sink, |row| {
            unpack_signs(isa, &signs[row * bytes..][..bytes], self.dimensions, &mut x);
            self.score(0, &x)
        });
        scratch.rows = x;
    }

    /// Offers the rows that can reach the least score of the only query, with their exact scores.
    fn offer_reaching(
        &self,
        scratch: &mut Scratch,
        first_row: usize,
        sink: &impl Sink,
        mut score: impl FnMut(usize) -> f32,
    ) {
        let Scratch { products, scales, offsets, found, .. } = scratch;
        let limit = self.bound.of_query(self.norms[0], sink.least_score(0));
        found.clear();
        reaching(Isa::selected(), products, (scales, offsets), limit, found);
        for row in found.iter().map(|row| *row as usize) {
            if sink.wants(0, first_row + row) {
                sink.offer(0, Neighbour { index: first_row + row, score: score(row) });
            }
        }
    }

    fn scan_many(
        &self,
        packed: &PackedMatrix,
        x: &[f32],
        first_row: usize,
        scratch: &mut Scratch,
        sink: &impl Sink,
    ) -> Result<(), NotFinite> {
        let rows = x.len() / self.dimensions;
        scratch.squared_norms.resize(rows, 0.0);
        squared_norms(Isa::selected(), x, self.dimensions, &mut scratch.squared_norms);
        self.bound_rows(x, first_row, scratch)?;
        let Scratch { lhs, products, scales, offsets, limits, found, .. } = scratch;
        let lhs = lhs.convert(packed, x, self.dimensions, rows);
        let panels_per_group = (QUERIES_PER_GROUP / packed.columns(0..1).len()).max(1);
        for first_panel in (0..packed.panels()).step_by(panels_per_group) {
            let panels = first_panel..packed.panels().min(first_panel + panels_per_group);
            let queries = packed.columns(panels.clone());
            products.resize(rows * queries.len(), 0.0);
            let mut output = OutputBlock::whole(products, queries.len());
            gemm(lhs, packed, panels, &Epilogue::default(), &mut output);
            limits.clear();
            let limit = |query: usize| self.bound.of_query(self.norms[query], sink.least_score(query));
            limits.extend(queries.clone().map(limit));
            for r in 0..rows {
                let products = &products[r * queries.len()..][..queries.len()];
                found.clear();
                reaching_each(packed.isa(), products, (scales[r], offsets[r]), limits, found);
                if found.is_empty() {
                    continue;
                }
                let x = &x[r * self.dimensions..][..self.dimensions];
                let squared_norm = dot_f64(packed.isa(), x, x);
                for &i in found.iter() {
                    let (i, index) = (i as usize, first_row + r);
                    let query = queries.start + i;
                    if sink.wants(query, index) {
                        let score = self.score_with_norm(query, x, squared_norm);
                        sink.offer(query, Neighbour { index, score });
                        limits[i] = limit(query);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Products {
    /// The products of these queries, and the unit roundoff of their operands.
    fn new(
        metric: Metric,
        stored: Stored,
        queries: &[f32],
        squared_norms: &[f64],
        dimensions: usize,
    ) -> (Self, f32) {
        let count = squared_norms.len();
        if count == 1 && stored == Stored::Signs {
            return (Products::OneOfSigns(pack_signs(queries)), 0.0);
        }
        let mut scaled = queries.to_vec();
        if Bound::takes_unit_queries(metric) {
            for (query, squared_norm) in scaled.chunks_exact_mut(dimensions).zip(squared_norms) {
                let norm = squared_norm.sqrt();
                // A zero query stays as it is.
                query.iter_mut().filter(|_| norm > 0.0).for_each(|x| *x = (f64::from(*x) / norm) as f32);
            }
        }
        if count == 1 {
            return (Products::One(scaled), 0.0);
        }
        let isa = Isa::selected();
        let (gemm_type, unit) =
            if isa.has_fast_bf16() { (GemmType::Bf16, (-8f32).exp2()) } else { (GemmType::F32, 0.0) };
        (Products::Many(PackedMatrix::pack(isa, gemm_type, &scaled, count, dimensions)), unit)
    }
}
