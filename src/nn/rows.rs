//! The rows that a layer computes, where they are not the tokens of the batch one by one.

use std::collections::HashMap;

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::RaggedBatch;

/// Rows of a tensor, in any order; some may occur more than once.
pub(super) struct Rows {
    /// Their indices, `(R)`.
    pub indices: Vec<u32>,
    /// `indices` on the encoder's device.
    tensor: Tensor,
}

impl Rows {
    pub(super) fn new(indices: Vec<u32>, device: &Device) -> Result<Self> {
        let tensor = Tensor::new(&indices[..], device)?;
        Ok(Rows { indices, tensor })
    }

    /// `(T)` → `(R)`.
    pub(super) fn of(&self, values: &[u32]) -> Vec<u32> {
        self.indices.iter().map(|index| values[*index as usize]).collect()
    }

    /// `(T, H)` → `(R, H)`.
    pub(super) fn select(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.index_select(&self.tensor, 0)?)
    }
}

/// The tokens of a batch as a prefix tree: sequences with the same prefix share its nodes. With a causal mask
/// a token sees nothing but the path from the root, so that the hidden state of a node is that of all of its
/// tokens. As in RadixAttention (Zheng et al. 2024, §3), within one batch.
pub(super) struct PrefixTree {
    /// The node of each token, `(T)`.
    pub nodes: Rows,
    /// A token of each node, `(U)`.
    pub tokens: Rows,
}

/// The tree pays if it leaves out one of so many tokens, since attention needs copies of keys and values.
const TOKENS_PER_SAVED_TOKEN: usize = 8;

impl PrefixTree {
    /// The tree of a batch; `None` if its sequences share too few tokens.
    pub(super) fn of(batch: &RaggedBatch, device: &Device) -> Result<Option<Self>> {
        let [nodes, tokens] = prefix_nodes(batch);
        if tokens.len() + nodes.len().div_ceil(TOKENS_PER_SAVED_TOKEN) > nodes.len() {
            return Ok(None);
        }
        Ok(Some(PrefixTree { nodes: Rows::new(nodes, device)?, tokens: Rows::new(tokens, device)? }))
    }
}

/// The node of each token in the prefix tree, `(T)`, and the first token of each node, `(U)`. Nodes are
/// numbered in the order of these.
fn prefix_nodes(batch: &RaggedBatch) -> [Vec<u32>; 2] {
    let (mut nodes, mut tokens) = (Vec::with_capacity(batch.ids().len()), Vec::new());
    // By their parent and their token.
    let mut children: HashMap<(Option<u32>, u32, u32), u32> = HashMap::new();
    for bounds in batch.cu_seqlens().windows(2) {
        let mut parent = None;
        for token in bounds[0]..bounds[1] {
            let key = (parent, batch.ids()[token], batch.token_type_ids()[token]);
            let node = *children.entry(key).or_insert_with(|| {
                tokens.push(token as u32);
                tokens.len() as u32 - 1
            });
            nodes.push(node);
            parent = Some(node);
        }
    }
    [nodes, tokens]
}

/// The rows of the tokens at these offsets from each token of a batch, side by side: `(T, H)` →
/// `(T, offsets · H)`; zeros where a sequence has no such token.
pub(super) fn unfold(
    x: &Tensor,
    batch: &RaggedBatch,
    offsets: impl Iterator<Item = isize> + Clone,
) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    // The row after those of the tokens.
    let zeros = Tensor::zeros((1, width), x.dtype(), x.device())?;
    let mut rows = Vec::new();
    for bounds in batch.cu_seqlens().windows(2) {
        let sequence = bounds[0]..bounds[1];
        for token in sequence.clone() {
            rows.extend(offsets.clone().map(|offset| match token.checked_add_signed(offset) {
                Some(row) if sequence.contains(&row) => row as u32,
                _ => tokens as u32,
            }));
        }
    }
    let rows = Tensor::new(rows, x.device())?;
    Ok(Tensor::cat(&[x, &zeros], 0)?.index_select(&rows, 0)?.reshape((tokens, ()))?)
}

/// The tokens that the last layer is computed for.
pub(super) struct Selection {
    /// Their rows in the batch, `(R)`.
    pub tokens: Rows,
    /// Their rows in the hidden states, `(R)`: their nodes, if there is a tree.
    pub hidden: Rows,
}

impl Selection {
    pub(super) fn new(tokens: &[u32], tree: Option<&PrefixTree>, device: &Device) -> Result<Self> {
        let tokens = Rows::new(tokens.to_vec(), device)?;
        let hidden = match tree {
            Some(tree) => tokens.of(&tree.nodes.indices),
            None => tokens.indices.clone(),
        };
        Ok(Selection { tokens, hidden: Rows::new(hidden, device)? })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::{PrefixTree, RaggedBatch, prefix_nodes};

    /// Sequences of tokens of type 0, or of type 1 if the id is negative.
    fn batch(sequences: &[&[i32]]) -> RaggedBatch {
        let of = |sequence: &&[i32]| -> (Vec<u32>, Vec<u32>) {
            sequence.iter().map(|id| (id.unsigned_abs(), u32::from(*id < 0))).unzip()
        };
        let sequences: Vec<(Vec<u32>, Vec<u32>)> = sequences.iter().map(of).collect();
        RaggedBatch::new(sequences.iter().map(|(ids, types)| (&ids[..], &types[..]))).unwrap()
    }

    #[test]
    fn sequences_share_the_nodes_of_a_common_prefix_only() {
        let sequences: [&[i32]; 6] =
            [&[1, 2, 3], &[1, 2, 4, 3], &[5, 2, 3], &[1, 2], &[1, -2, 3], &[1, 2, 4, 3]];
        let [nodes, tokens] = prefix_nodes(&batch(&sequences));
        let expected: [&[u32]; 6] =
            [&[0, 1, 2], &[0, 1, 3, 4], &[5, 6, 7], &[0, 1], &[0, 8, 9], &[0, 1, 3, 4]];
        assert_eq!(nodes, expected.concat());
        assert_eq!(tokens, [0, 1, 2, 5, 6, 7, 8, 9, 13, 14]);
    }

    #[test]
    fn there_is_no_tree_where_it_does_not_pay() {
        let is_tree =
            |sequences: &[&[i32]]| PrefixTree::of(&batch(sequences), &Device::Cpu).unwrap().is_some();
        assert!(is_tree(&[&[1, 2, 3, 4], &[1, 5, 6, 7]]));
        assert!(!is_tree(&[&[1, 2, 3, 4, 5], &[1, 5, 6, 7]]));
        assert!(!is_tree(&[&[1, 2, 3]]));
        assert!(is_tree(&[&[9], &[9]]));
    }
}
