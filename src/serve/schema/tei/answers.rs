//! The answers of text-embeddings-inference's routes: arrays, which say about truncated texts only in
//! headers. Values are finite: a row that is not has a fault in place of an answer.

use serde::{Serialize, Serializer};

use crate::neighbours::SparseVector;
use crate::rows::LabelScore;
use crate::serve::schema::calls::ScoredDocument;
use crate::serve::schema::render::{element_count, float_bytes, json, json_of};

/// The vectors of the tokens of a text.
#[derive(Debug, Clone, Copy)]
pub struct TokenVectors<'a> {
    /// The elements, `(tokens, width)`.
    pub values: &'a [f32],
    /// Elements of a vector.
    pub width: usize,
}

impl Serialize for TokenVectors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.values.chunks_exact(self.width.max(1)))
    }
}

/// A token of `/tokenize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TextToken {
    /// Its vocabulary id.
    pub id: u32,
    /// Its characters.
    pub text: String,
    /// Whether the tokenizer has added it.
    pub special: bool,
    /// Its first character in the text.
    pub start: Option<usize>,
    /// The end of its characters.
    pub stop: Option<usize>,
}

/// The answer of `/embed`: a vector for each text.
pub fn embed_answer(vectors: &[&[f32]]) -> Vec<u8> {
    json_of(&vectors, float_bytes(element_count(vectors)))
}

/// The answer of `/embed_all`: a vector for each token of each text.
pub fn embed_all_answer(texts: &[TokenVectors]) -> Vec<u8> {
    json_of(&texts, float_bytes(texts.iter().map(|text| text.values.len()).sum()))
}

/// The answer of `/embed_sparse`.
pub fn embed_sparse_answer(vectors: &[&SparseVector]) -> Vec<u8> {
    let elements: usize = vectors.iter().map(|vector| vector.values.len()).sum();
    let vectors: Vec<SparseElements> = vectors.iter().map(|vector| SparseElements(vector)).collect();
    // An index and two names take as much as two more elements.
    json_of(&vectors, float_bytes(3 * elements))
}

struct SparseElements<'a>(&'a SparseVector);

impl Serialize for SparseElements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct SparseElement {
            index: u32,
            value: f32,
        }
        let SparseVector { indices, values, .. } = self.0;
        serializer
            .collect_seq(indices.iter().zip(values).map(|(&index, &value)| SparseElement { index, value }))
    }
}

/// The answer of `/predict`: the labels of each text, best first; of a text that was not sent in a list,
/// without an array around.
pub fn predict_answer(texts: &[&[LabelScore]], is_list: bool) -> Vec<u8> {
    let texts: Vec<Predictions> = texts.iter().map(|labels| Predictions(labels)).collect();
    match &texts[..] {
        [text] if !is_list => json(text),
        texts => json(&texts),
    }
}

struct Predictions<'a>(&'a [LabelScore]);

impl Serialize for Predictions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Prediction<'a> {
            score: f32,
            label: &'a str,
        }
        let predictions =
            self.0.iter().map(|LabelScore { label, score }| Prediction { score: *score, label });
        serializer.collect_seq(predictions)
    }
}

/// The answer of `/rerank`.
pub fn rerank_answer(documents: &[ScoredDocument]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Rank<'a> {
        index: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<&'a str>,
        score: f32,
    }
    let ranks = documents.iter().map(|document| {
        let ScoredDocument { index, score, text } = *document;
        Rank { index, text, score }
    });
    json(&ranks.collect::<Vec<_>>())
}

/// The answer of `/similarity`: the similarity of each sentence.
pub fn similarity_answer(similarities: &[f32]) -> Vec<u8> {
    json_of(&similarities, float_bytes(similarities.len()))
}

/// The answer of `/tokenize`: the tokens of each text.
pub fn tokenize_answer(texts: &[Vec<TextToken>]) -> Vec<u8> {
    json(&texts)
}

/// The answer of `/decode`: a text for each list of ids.
pub fn decode_answer(texts: &[String]) -> Vec<u8> {
    json(&texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn elements_read_back_as_the_same_bits() {
        let vector = [0.1, -0.0, f32::MIN_POSITIVE / 4.0, 1.0 / 3.0, f32::MAX, 16_777_216.0, 1e-7];
        let bytes = embed_answer(&[&vector, &[1.0]]);
        assert_eq!(
            text(bytes.clone()),
            "[[0.1,-0.0,2.938736e-39,0.33333334,3.4028235e+38,16777216.0,1e-7],[1.0]]"
        );
        let back: Vec<Vec<f32>> = serde_json::from_slice(&bytes).unwrap();
        let bits = |vector: &[f32]| vector.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back[0]), bits(&vector));
    }

    #[test]
    fn answers_are_arrays() {
        let sparse = SparseVector { indices: vec![3, 70], values: vec![0.5, 1.25], tokens: Vec::new() };
        let label = |label: &str, score| LabelScore { label: label.into(), score };
        let labels = [label("joy", 0.75), label("\"x\"", 0.25)];
        let document = |index, text| ScoredDocument { index, score: 0.5, text };
        let token = |id, start: Option<usize>| TextToken {
            id,
            text: "a".into(),
            special: start.is_none(),
            start,
            stop: start,
        };
        for (bytes, expected) in [
            (
                embed_all_answer(&[
                    TokenVectors { values: &[1.0, 2.0, 3.0, 4.0], width: 2 },
                    TokenVectors { values: &[], width: 2 },
                ]),
                "[[[1.0,2.0],[3.0,4.0]],[]]",
            ),
            (embed_sparse_answer(&[&sparse]), r#"[[{"index":3,"value":0.5},{"index":70,"value":1.25}]]"#),
            (
                predict_answer(&[&labels], false),
                r#"[{"score":0.75,"label":"joy"},{"score":0.25,"label":"\"x\""}]"#,
            ),
            (predict_answer(&[&labels[..1]], true), r#"[[{"score":0.75,"label":"joy"}]]"#),
            (
                rerank_answer(&[document(1, Some("b")), document(0, None)]),
                r#"[{"index":1,"text":"b","score":0.5},{"index":0,"score":0.5}]"#,
            ),
            (similarity_answer(&[0.5, -1.0]), "[0.5,-1.0]"),
            (
                tokenize_answer(&[vec![token(101, None), token(7, Some(2))]]),
                r#"[[{"id":101,"text":"a","special":true,"start":null,"stop":null},{"id":7,"text":"a","special":false,"start":2,"stop":2}]]"#,
            ),
            (decode_answer(&["a".into(), String::new()]), r#"["a",""]"#),
        ] {
            assert_eq!(text(bytes), expected);
        }
    }
}
