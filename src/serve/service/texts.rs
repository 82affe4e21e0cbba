//! What the texts of a call have become, as answers need it.

use std::borrow::Cow;

use crate::engine::EncodedText;
use crate::formats::{write_arrow_rows, write_json_rows};
use crate::neighbours::{SparseVector, descending};
use crate::rows::{Content, ContentType, LabelScore, Row, VectorValues};
use crate::serve::schema::{Fault, FaultKind, Truncated};
use crate::task::{ModelTask, TextEncoder};

/// How the rows of a command are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum RowFormat {
    /// The objects of its jsonl.
    Json,
    /// An Arrow IPC stream.
    Arrow,
}

/// The texts of a call that was answered.
pub(in crate::serve) struct Texts {
    pub(super) texts: Vec<EncodedText>,
    /// The index of the first text in the list of the request: 1 if there is a query before it.
    pub(super) offset: usize,
}

impl Texts {
    /// Encoded tokens of all texts.
    pub(in crate::serve) fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens).sum()
    }

    /// The texts that were truncated, by their index in the request. A query has the index after those of the
    /// documents.
    pub(in crate::serve) fn truncated(&self) -> Vec<Truncated> {
        let of_text = |(index, text): (usize, &EncodedText)| {
            let index = index.checked_sub(self.offset).unwrap_or(self.texts.len() - self.offset);
            let tokens = text.tokens + text.truncated_tokens;
            (text.truncated_tokens > 0).then_some(Truncated { index, tokens, kept: text.tokens })
        };
        self.texts.iter().enumerate().filter_map(of_text).collect()
    }

    /// Elements of the vector of a token, if the texts have one for each of their tokens.
    pub(in crate::serve) fn token_width(&self) -> usize {
        let widths = self.dense().into_iter().zip(&self.texts);
        widths.map(|(values, text)| values.len() / text.tokens.max(1)).max().unwrap_or(0)
    }

    /// The rows of a command: of the best labels `top_k` only, and if they are ranked the best rows only,
    /// sorted; 0: all.
    ///
    /// # Errors
    /// A fault if rows do not have this content.
    pub(in crate::serve) fn write_rows(
        &self,
        content: &ContentType,
        top_k: Option<usize>,
        format: RowFormat,
    ) -> Result<Vec<u8>, Fault> {
        let ranked = matches!(content, ContentType::Scores { ranked: true });
        let mut contents: Vec<Cow<Content>> = self.contents().map(Cow::Borrowed).collect();
        let mut order: Vec<usize> = (0..contents.len()).collect();
        let kept = match top_k {
            Some(0) => usize::MAX,
            top_k => top_k.unwrap_or(1),
        };
        if let ContentType::Labels = content {
            for content in &mut contents {
                if let Content::Labels(labels) = content.to_mut() {
                    labels.truncate(kept);
                }
            }
        }
        if ranked {
            let score = |content: &Content| match content {
                Content::Score { score, .. } => *score,
                _ => 0.0,
            };
            order.sort_by_key(|&text| descending(score(&contents[text])));
            order.truncate(kept);
            for (place, &text) in order.iter().enumerate() {
                if let Content::Score { rank, .. } = contents[text].to_mut() {
                    *rank = Some(place as u64);
                }
            }
        }
        let row = |&index: &usize| Row {
            index: index as u64,
            id: None,
            chunk: None,
            tokens: self.texts[index].rows().first().map_or(0, |row| row.tokens),
            truncated: self.texts[index].truncated_tokens > 0,
            kept: &[],
            content: &contents[index],
        };
        let rows: Vec<Row> = order.iter().map(row).collect();
        let mut bytes = Vec::new();
        match format {
            RowFormat::Json => {
                bytes.extend_from_slice(b"{\"rows\":");
                write_json_rows(&rows, content, &mut bytes);
                bytes.push(b'}');
            }
            RowFormat::Arrow => write_arrow_rows(&rows, content, &mut bytes)
                .map_err(|error| Fault::new(FaultKind::Internal, format!("{error:#}")))?,
        }
        Ok(bytes)
    }

    /// What each text has become. Without chunks and with one query, a text has one row.
    fn contents(&self) -> impl Iterator<Item = &Content> {
        self.texts.iter().filter_map(|text| text.rows().first().map(|row| &row.content))
    }

    /// The dense vector of each text, or those of its tokens, concatenated.
    pub(in crate::serve) fn dense(&self) -> Vec<&[f32]> {
        self.contents().filter_map(dense).collect()
    }

    /// The sparse vector of each text.
    pub(in crate::serve) fn sparse(&self) -> Vec<&SparseVector> {
        let vectors = self.contents().filter_map(|content| match content {
            Content::Sparse(vector) => Some(&**vector),
            _ => None,
        });
        vectors.collect()
    }

    /// The labels of each text, best first.
    pub(in crate::serve) fn labels(&self) -> Vec<&[LabelScore]> {
        let labels = self.contents().filter_map(|content| match content {
            Content::Labels(labels) => Some(&labels[..]),
            _ => None,
        });
        labels.collect()
    }

    /// The score of each document: that of a cross-encoder, or its similarity with the first text.
    pub(in crate::serve) fn scores(&self, encoder: Option<&TextEncoder>) -> Result<Vec<f32>, Fault> {
        let Some(encoder) = encoder else {
            let scores = self.contents().filter_map(|content| match content {
                Content::Score { score, .. } => Some(*score),
                _ => None,
            });
            return Ok(scores.collect());
        };
        let content = encoder.content();
        let mut vectors = self.contents().filter_map(|row| row.encoded(&content));
        let Some(first) = vectors.next() else { return Ok(Vec::new()) };
        let first =
            encoder.compared(first).map_err(|error| Fault::new(FaultKind::Invalid, format!("{error:#}")))?;
        Ok(vectors.filter_map(|vector| first.score(&vector)).collect())
    }
}

fn dense(content: &Content) -> Option<&[f32]> {
    match content {
        Content::Vector(stored) => match &stored.values {
            VectorValues::F32(values) => Some(values),
            VectorValues::F16(_) | VectorValues::Int8(_) | VectorValues::Uint8(_) => None,
        },
        _ => None,
    }
}
