//! Hierarchical token pooling (Clavié et al. 2024): the vectors of a text are clustered, and each cluster is
//! replaced by its mean. As sentence-transformers computes it: Ward's linkage of cosine distances, with the
//! clusters and their order of scipy.

use super::{Isa, l2_normalize};

/// Reduces the `(n, dimensions)` vectors of a text to the first `protected` ones and the means of about
/// `(n − protected) / factor` clusters of the others, at least one; `normalize`: all to unit length.
pub fn pool_hierarchically(
    mut vectors: Vec<f32>,
    dimensions: usize,
    factor: f64,
    protected: usize,
    normalize: bool,
) -> Vec<f32> {
    let n = (vectors.len() / dimensions).saturating_sub(protected);
    let clusters = ((n as f64 / factor) as usize).max(1);
    if clusters < n {
        let rest = vectors.split_off(protected * dimensions);
        for members in Linkage::ward(cosine_distances(&rest, dimensions), n).clusters(clusters) {
            let mut mean = vec![0.0; dimensions];
            for member in &members {
                let vector = &rest[member * dimensions..][..dimensions];
                mean.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
            }
            vectors.extend(mean.iter().map(|sum| sum / members.len() as f32));
        }
    }
    if normalize {
        vectors.chunks_mut(dimensions).for_each(|vector| l2_normalize(Isa::selected(), vector));
    }
    vectors
}

/// The distances 1 − cosine of unit vectors, as a full matrix `(n, n)`.
fn cosine_distances(vectors: &[f32], dimensions: usize) -> Vec<f64> {
    let n = vectors.len() / dimensions;
    let mut distances = vec![0.0; n * n];
    for (i, a) in vectors.chunks_exact(dimensions).enumerate() {
        for (j, b) in vectors.chunks_exact(dimensions).enumerate().take(i) {
            let dot: f32 = a.iter().zip(b).map(|(x, y)| x * y).sum();
            let distance = f64::from((1.0 - dot).clamp(0.0, 2.0));
            (distances[i * n + j], distances[j * n + i]) = (distance, distance);
        }
    }
    distances
}

/// The tree of a hierarchical clustering of `n` points. Point `i` is node `i`; merge `i` makes node `n + i`.
struct Linkage {
    n: usize,
    /// The two nodes of each merge, the lower one first, in ascending order of heights.
    merges: Vec<(usize, usize)>,
    heights: Vec<f64>,
}

impl Linkage {
    /// Ward's linkage of `(n, n)` distances, by chains of nearest neighbours (Müllner 2011, §3.1).
    fn ward(mut distances: Vec<f64>, n: usize) -> Self {
        let mut sizes = vec![1.0; n];
        let mut chain: Vec<usize> = Vec::new();
        // Two points of each merged pair of clusters, and the height.
        let mut pairs: Vec<(usize, usize, f64)> = Vec::with_capacity(n.saturating_sub(1));
        while pairs.len() + 1 < n {
            if chain.is_empty() {
                chain.extend(sizes.iter().position(|size| *size > 0.0));
            }
            let (x, y, height) = loop {
                let x = chain[chain.len() - 1];
                // The previous cluster of the chain wins ties, so that the chain ends.
                let previous = chain.len().checked_sub(2).map(|i| chain[i]);
                let mut nearest = previous.map_or((usize::MAX, f64::INFINITY), |y| (y, distances[x * n + y]));
                for i in (0..n).filter(|&i| sizes[i] > 0.0 && i != x) {
                    if distances[x * n + i] < nearest.1 {
                        nearest = (i, distances[x * n + i]);
                    }
                }
                if previous == Some(nearest.0) {
                    break (x.min(nearest.0), x.max(nearest.0), nearest.1);
                }
                chain.push(nearest.0);
            };
            chain.truncate(chain.len() - 2);
            pairs.push((x, y, height));
            let (of_x, of_y) = (std::mem::take(&mut sizes[x]), sizes[y]);
            sizes[y] = of_x + of_y;
            for i in (0..n).filter(|&i| sizes[i] > 0.0 && i != y) {
                let (size, dx, dy) = (sizes[i], distances[i * n + x], distances[i * n + y]);
                let sum = (size + of_x) * dx * dx + (size + of_y) * dy * dy - size * height * height;
                let distance = (sum / (of_x + of_y + size)).sqrt();
                (distances[i * n + y], distances[y * n + i]) = (distance, distance);
            }
        }
        pairs.sort_by(|a, b| a.2.total_cmp(&b.2));
        Self::of_pairs(n, &pairs)
    }

    /// The tree of merges that are given by points of both clusters.
    fn of_pairs(n: usize, pairs: &[(usize, usize, f64)]) -> Self {
        let mut parents: Vec<usize> = (0..2 * n).collect();
        let root = |parents: &[usize], mut node: usize| {
            while parents[node] != node {
                node = parents[node];
            }
            node
        };
        let mut merges = Vec::with_capacity(pairs.len());
        for (i, (x, y, _)) in pairs.iter().enumerate() {
            let (x, y) = (root(&parents, *x), root(&parents, *y));
            merges.push((x.min(y), x.max(y)));
            (parents[x], parents[y]) = (n + i, n + i);
        }
        Linkage { n, merges, heights: pairs.iter().map(|pair| pair.2).collect() }
    }

    /// The points of at most `count` clusters, ascending, in the order of scipy's `fcluster`.
    fn clusters(&self, count: usize) -> Vec<Vec<usize>> {
        let cutoff = self.heights[self.n - count - 1];
        // The clusters below the cutoff, then their points.
        let is_cut = |node: usize| node >= self.n && self.heights[node - self.n] > cutoff;
        let roots = self.leaves(2 * self.n - 2, is_cut);
        let points = |root: usize| {
            let mut points = self.leaves(root, |node| node >= self.n);
            points.sort_unstable();
            points
        };
        roots.into_iter().map(points).collect()
    }

    /// The nodes below `root`, where a node with `descends` is replaced by those below it: from left to
    /// right, but points after merges.
    fn leaves(&self, root: usize, descends: impl Fn(usize) -> bool) -> Vec<usize> {
        let (mut stack, mut leaves) = (vec![root], Vec::new());
        while let Some(node) = stack.pop() {
            if descends(node) {
                let (left, right) = self.merges[node - self.n];
                let mut children = [left, right];
                children.sort_by_key(|child| *child < self.n);
                stack.extend(children.into_iter().rev());
            } else {
                leaves.push(node);
            }
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::pool_hierarchically;

    #[test]
    fn near_vectors_become_their_mean_and_protected_ones_stay() {
        let vectors = vec![1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
        let pooled = pool_hierarchically(vectors.clone(), 2, 2.0, 1, false);
        assert_eq!(pooled, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        assert_eq!(pool_hierarchically(vectors.clone(), 2, 1.0, 1, false), vectors);
        assert_eq!(pool_hierarchically(vectors, 2, 100.0, 1, false), [1.0, 0.0, 0.5, 0.5]);
    }

    #[test]
    fn texts_of_few_tokens_are_kept() {
        for vectors in [vec![], vec![3.0, 4.0], vec![3.0, 4.0, 0.0, 2.0]] {
            assert_eq!(pool_hierarchically(vectors.clone(), 2, 4.0, 1, false), vectors);
        }
        assert_eq!(pool_hierarchically(vec![3.0, 4.0], 2, 4.0, 1, true), [0.6, 0.8]);
    }
}
