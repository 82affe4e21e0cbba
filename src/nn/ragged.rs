//! A batch without padding.

use anyhow::{Result, ensure};

use super::Numbering;

/// The tokens of several texts, one text after another: text `i` has the tokens
/// `offsets[i]..offsets[i + 1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaggedBatch {
    ids: Vec<u32>,
    type_ids: Vec<u32>,
    offsets: Vec<usize>,
}

impl RaggedBatch {
    /// Joins texts, each given as its token ids and its segment ids.
    ///
    /// # Errors
    /// If there is no text, a text has no tokens, or not one segment id a token.
    pub fn new<'a>(texts: impl IntoIterator<Item = (&'a [u32], &'a [u32])>) -> Result<Self> {
        let mut batch = RaggedBatch { ids: vec![], type_ids: vec![], offsets: vec![0] };
        for (ids, type_ids) in texts {
            ensure!(!ids.is_empty(), "a text in a batch has no tokens");
            ensure!(ids.len() == type_ids.len(), "{} tokens, {} segment ids", ids.len(), type_ids.len());
            batch.ids.extend_from_slice(ids);
            batch.type_ids.extend_from_slice(type_ids);
            batch.offsets.push(batch.ids.len());
        }
        ensure!(!batch.ids.is_empty(), "a batch of no texts");
        Ok(batch)
    }

    /// Token ids, `(T)`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Segment ids, `(T)`.
    pub fn type_ids(&self) -> &[u32] {
        &self.type_ids
    }

    /// Where each text begins, and the end of the last: one more than there are texts.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The tokens of each text.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.offsets.windows(2).map(|bounds| bounds[1] - bounds[0])
    }

    /// The tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// The row of the position table for every token, `(T)`; each text counts for itself.
    pub fn positions(&self, numbering: Numbering) -> Vec<u32> {
        let mut positions = Vec::with_capacity(self.ids.len());
        for bounds in self.offsets.windows(2) {
            match numbering {
                Numbering::FromZero => positions.extend(0..(bounds[1] - bounds[0]) as u32),
                Numbering::AfterPadding(padding) => {
                    let mut last = padding;
                    positions.extend(self.ids[bounds[0]..bounds[1]].iter().map(|id| match *id == padding {
                        true => padding,
                        false => {
                            last += 1;
                            last
                        }
                    }));
                }
            }
        }
        positions
    }
}
