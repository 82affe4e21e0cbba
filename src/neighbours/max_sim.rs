//! Late interaction: the score of a query and a document that have one vector per token (Khattab & Zaharia
//! 2020, §3.3).

use crate::kernels::gemm::{Epilogue, GemmType, LhsBuffer, OutputBlock, PackedMatrix, gemm};
use crate::kernels::isa::Isa;

/// Document tokens whose products with the query tokens are in memory at a time.
const TOKENS_PER_BLOCK: usize = 256;

/// A query that documents are scored for: `Σᵢ maxⱼ qᵢ · dⱼ` over the tokens `i` of the query and `j` of the
/// document.
#[derive(Debug)]
pub struct MaxSim {
    query: PackedMatrix,
    /// Tokens of the query.
    tokens: usize,
    dimensions: usize,
    /// Whether the sum is divided by the number of query tokens.
    mean: bool,
}

/// Buffers for scoring.
#[derive(Debug, Default)]
pub struct MaxSimBuffer {
    lhs: LhsBuffer,
    products: Vec<f32>,
    maxima: Vec<f32>,
}

impl MaxSim {
    /// A query of `(tokens, dimensions)` values. `mean`: scores are divided by its tokens.
    ///
    /// # Panics
    /// If it has no token, or its vectors are not whole.
    pub fn new(query: &[f32], dimensions: usize, mean: bool) -> Self {
        assert!(!query.is_empty() && query.len().is_multiple_of(dimensions), "a query of whole vectors");
        let tokens = query.len() / dimensions;
        let query = PackedMatrix::pack(Isa::selected(), GemmType::F32, query, tokens, dimensions);
        MaxSim { query, tokens, dimensions, mean }
    }

    /// Dimensions of a vector.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The score of a document of `(tokens, dimensions)` values; −∞ for one without tokens. Products and sums
    /// over dimensions are f32, the sum over tokens is f64.
    ///
    /// # Panics
    /// If the vectors of the document are not whole.
    pub fn score(&self, document: &[f32], buffer: &mut MaxSimBuffer) -> f32 {
        assert!(document.len().is_multiple_of(self.dimensions), "a document of whole vectors");
        let MaxSimBuffer { lhs, products, maxima } = buffer;
        let columns = self.query.columns(0..self.query.panels()).len();
        maxima.clear();
        maxima.resize(columns, f32::NEG_INFINITY);
        for block in document.chunks(TOKENS_PER_BLOCK * self.dimensions) {
            let rows = block.len() / self.dimensions;
            products.resize(rows * columns, 0.0);
            let x = lhs.convert(&self.query, block, self.dimensions, rows);
            let mut output = OutputBlock::whole(products, columns);
            gemm(x, &self.query, 0..self.query.panels(), &Epilogue::default(), &mut output);
            for row in products.chunks_exact(columns) {
                maxima.iter_mut().zip(row).for_each(|(max, x)| *max = if *x > *max { *x } else { *max });
            }
        }
        let sum: f64 = maxima[..self.tokens].iter().map(|max| f64::from(*max)).sum();
        (if self.mean { sum / self.tokens as f64 } else { sum }) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::{MaxSim, MaxSimBuffer};

    #[test]
    fn each_query_token_counts_its_best_document_token() {
        let query = [1.0, 0.0, 0.0, 1.0, 0.5, 0.5];
        let (max_sim, mut buffer) = (MaxSim::new(&query, 2, false), MaxSimBuffer::default());
        assert_eq!(max_sim.score(&[1.0, 0.0, 0.0, -1.0, 0.25, 0.5], &mut buffer), 1.0 + 0.5 + 0.5);
        // More tokens than a block has, with the best one in the last block.
        let long: Vec<f32> = (0..1000).flat_map(|i| [-1.0, i as f32]).collect();
        assert_eq!(max_sim.score(&long, &mut buffer), -1.0 + 999.0 + 499.0);
        assert_eq!(max_sim.score(&[], &mut buffer), f32::NEG_INFINITY);
        assert_eq!(MaxSim::new(&query, 2, true).score(&[2.0, 1.0], &mut buffer), 1.5);
    }
}
