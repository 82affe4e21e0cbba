//! What a request asks for, whatever its schema. A choice that is `None` is as the server was started.

use crate::neighbours::descending;
use crate::task::PromptChoice;
use crate::text::{OnLong, Role, TruncationSide};

/// The values of a field that takes one or a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneOrMany<T> {
    /// The values; at least one, but for [`OneOrMany::without_values`].
    pub values: Vec<T>,
    /// Whether they were sent as a list.
    pub is_list: bool,
    /// The name of the field, such as `inputs`.
    pub field: String,
}

impl<T> OneOrMany<T> {
    /// What a message calls the value at `index`: `inputs[3]`, or `inputs` if it was not sent as a list.
    pub fn name(&self, index: usize) -> String {
        if self.is_list { format!("{}[{index}]", self.field) } else { self.field.clone() }
    }

    /// The same field without its values.
    pub fn without_values(&self) -> OneOrMany<()> {
        OneOrMany { values: Vec::new(), is_list: self.is_list, field: self.field.clone() }
    }
}

/// A text, or a pair that is encoded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextAndPair {
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
}

impl From<String> for TextAndPair {
    fn from(text: String) -> Self {
        TextAndPair { text, pair: None }
    }
}

/// How the texts of a request are tokenized.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// What becomes of texts over the limit.
    pub on_long: Option<OnLong>,
    /// The end at which they are truncated.
    pub truncation_side: Option<TruncationSide>,
    /// What is put before each text; the instruction of a chat template.
    pub prompt: Option<PromptChoice>,
    /// What the texts are.
    pub role: Option<Role>,
}

/// Vectors of texts: one per text, one per token, or sparse ones, as the route says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Embed {
    /// The texts.
    pub inputs: OneOrMany<String>,
    /// The model.
    pub model: Option<String>,
    /// How they are tokenized.
    pub options: TextOptions,
    /// Whether vectors are scaled to unit length.
    pub normalize: Option<bool>,
    /// The number of first dimensions that are kept.
    pub dimensions: Option<usize>,
    /// Names of ignored fields.
    pub ignored: Vec<String>,
}

/// Scores of documents for a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rerank {
    /// The query.
    pub query: String,
    /// The documents.
    pub documents: OneOrMany<String>,
    /// The model.
    pub model: Option<String>,
    /// How queries and documents are tokenized; the prompt is that of the query.
    pub options: TextOptions,
    /// Maximum tokens of a document; more are truncated.
    pub max_tokens_per_document: Option<usize>,
    /// How many of the best documents are answered. `None`: all.
    pub top_n: Option<usize>,
    /// Whether the answer has the documents.
    pub return_documents: bool,
    /// Whether scores are logits, without the model's activation.
    pub raw_scores: bool,
    /// Names of ignored fields.
    pub ignored: Vec<String>,
}

/// A document of an answer to [`Rerank`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredDocument<'a> {
    /// The index of the document in the request.
    pub index: usize,
    /// Its score.
    pub score: f32,
    /// Its text, if the request wants it back.
    pub text: Option<&'a str>,
}

impl Rerank {
    /// The documents that the answer has, best first; of equal scores, the first in the request. `scores` has
    /// one for each document.
    pub fn ranked(&self, scores: &[f32]) -> Vec<ScoredDocument<'_>> {
        let documents = self.documents.values.iter().zip(scores).enumerate();
        let mut ranked: Vec<ScoredDocument> = documents
            .map(|(index, (document, score))| {
                let text = self.return_documents.then_some(&**document);
                ScoredDocument { index, score: *score, text }
            })
            .collect();
        ranked.sort_by_key(|document| descending(document.score));
        ranked.truncate(self.top_n.unwrap_or(usize::MAX));
        ranked
    }
}

/// Labels of texts or pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predict {
    /// The texts or pairs.
    pub inputs: OneOrMany<TextAndPair>,
    /// The model.
    pub model: Option<String>,
    /// How they are tokenized.
    pub options: TextOptions,
    /// Whether scores are logits, without the model's activation.
    pub raw_scores: bool,
    /// Names of ignored fields.
    pub ignored: Vec<String>,
}

/// Similarities of a text with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceSimilarity {
    /// The text.
    pub source: String,
    /// The texts that it is compared with.
    pub sentences: OneOrMany<String>,
    /// The model.
    pub model: Option<String>,
    /// How all of them are tokenized.
    pub options: TextOptions,
    /// Names of ignored fields.
    pub ignored: Vec<String>,
}

/// Tokens of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenize {
    /// The texts.
    pub inputs: OneOrMany<String>,
    /// The model.
    pub model: Option<String>,
    /// The name of the prompt before each text.
    pub prompt_name: Option<String>,
    /// Whether special tokens are added.
    pub add_special_tokens: bool,
    /// Names of ignored fields.
    pub ignored: Vec<String>,
}

/// Texts of token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decode {
    /// The ids of each text.
    pub ids: OneOrMany<Vec<u32>>,
    /// The model.
    pub model: Option<String>,
    /// Whether special tokens are left out.
    pub skip_special_tokens: bool,
    /// Names of ignored fields.
    pub ignored: Vec<String>,
}

/// Maximum names in the header of ignored fields.
const MAX_NAMES: usize = 32;

/// Maximum characters of a name in it.
const MAX_NAME: usize = 64;

/// The value of the header `x-ignored-fields`: the first 32 names. `None` if no field was ignored. Characters
/// that a header cannot have are `?`, and of long names it has the beginning.
pub fn ignored_header(ignored: &[String]) -> Option<String> {
    let printable = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
    let names = ignored
        .iter()
        .take(MAX_NAMES)
        .map(|name| name.chars().take(MAX_NAME).map(printable).collect::<String>());
    (!ignored.is_empty()).then(|| names.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_ranked_by_score_and_index() {
        let rerank = |top_n, return_documents| Rerank {
            query: "q".into(),
            documents: OneOrMany {
                values: ["a", "b", "c", "d"].map(String::from).to_vec(),
                is_list: true,
                field: "texts".into(),
            },
            model: None,
            options: TextOptions::default(),
            max_tokens_per_document: None,
            top_n,
            return_documents,
            raw_scores: false,
            ignored: Vec::new(),
        };
        let scores = [0.5, 0.9, 0.5, -0.0];
        let indices = |top_n| -> Vec<usize> {
            rerank(top_n, false).ranked(&scores).iter().map(|document| document.index).collect()
        };
        assert_eq!(indices(None), [1, 0, 2, 3]);
        assert_eq!(indices(Some(2)), [1, 0]);
        assert_eq!(indices(Some(9)), [1, 0, 2, 3]);
        let ranked = rerank(Some(1), true);
        assert_eq!(ranked.ranked(&scores), [ScoredDocument { index: 1, score: 0.9, text: Some("b") }]);
    }

    #[test]
    fn values_have_the_names_of_their_fields() {
        let name = |is_list| OneOrMany { values: vec![(); 4], is_list, field: "inputs".into() }.name(3);
        assert_eq!([name(true), name(false)], ["inputs[3]", "inputs"]);
    }

    #[test]
    fn the_header_of_ignored_fields_is_printable() {
        let header =
            |names: &[&str]| ignored_header(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(header(&[]), None);
        assert_eq!(header(&["user", "a,b\r\n灯", ""]).as_deref(), Some("user,a?b???,"));
        assert_eq!(header(&[&"x".repeat(1000)]), Some("x".repeat(64)));
        assert_eq!(header(&["a"; 100]).map(|header| header.len()), Some(63));
    }
}
