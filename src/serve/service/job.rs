//! The texts of a request for a model, what messages call them, and estimates of the memory that they take.

use crate::engine::{Call, OwnedInput, TOKENIZER_BYTES_PER_TEXT_BYTE};
use crate::rows::ContentType;
use crate::serve::kind::Kind;
use crate::serve::models::Model;
use crate::serve::schema::OneOrMany;
use crate::text::OnLong;

/// The texts of a request with what becomes of them.
pub(in crate::serve) struct Job<'a> {
    /// The model that encodes them.
    pub model: &'a Model,
    pub(super) call: Call,
    /// Bytes of what a row holds, or of what it holds for one token or mask.
    pub(super) row_bytes: usize,
    /// The type of what its rows hold.
    pub content: ContentType,
    /// Tokens that the windows of a text over the limit share. `None`: it has one window, whose other tokens
    /// are truncated.
    pub(super) stride: Option<usize>,
    /// What messages call the texts.
    pub(super) names: Names,
    /// Names of ignored fields of the request.
    pub ignored: Vec<String>,
}

/// Bytes of an element of an answer: as `f32`, and as text.
const BYTES_PER_ELEMENT: usize = 4 + 13;

impl Job<'_> {
    /// An estimate of the memory in which whole texts are tokenized, in bytes. Other texts are tokenized in
    /// pieces.
    pub(in crate::serve) fn tokenizer_bytes(&self) -> u64 {
        let is_aligned = matches!(self.model.kind, Kind::Tagger(_) | Kind::Answerer(_));
        let is_whole = |input: &&OwnedInput| is_aligned || input.on_long == Some(OnLong::Mean);
        let whole = self.call.inputs.iter().filter(is_whole);
        (whole.map(OwnedInput::bytes).max().unwrap_or(0) * TOKENIZER_BYTES_PER_TEXT_BYTE) as u64
    }

    /// An estimate of the memory of the answer, in bytes.
    pub(in crate::serve) fn answer_bytes(&self) -> u64 {
        let Model { facts, workload, kind, .. } = self.model;
        let is_per_token = self.call.inputs.iter().any(|input| input.per_token);
        let row_bytes = if is_per_token { size_of::<f32>() * facts.hidden_size } else { self.row_bytes };
        let max_length = workload.max_length;
        let mask = kind.mask().unwrap_or_default();
        let parts = |input: &OwnedInput| match kind {
            Kind::Tagger(_) => {
                (self.windows(input) - 1).saturating_mul(max_length) + tokens(input).min(max_length)
            }
            Kind::MaskFiller(_) => occurrences(input, &mask).min(max_length),
            Kind::Answerer(_) => self.windows(input),
            _ if is_per_token || workload.is_per_token => tokens(input).min(max_length),
            _ => 1,
        };
        let parts = self.call.inputs.iter().map(parts).fold(0, usize::saturating_add);
        let bytes = match kind {
            // What a row holds, and about the same as text.
            Kind::Tagger(_) | Kind::MaskFiller(_) | Kind::Answerer(_) => row_bytes.saturating_mul(2),
            _ => row_bytes / size_of::<f32>() * BYTES_PER_ELEMENT,
        };
        parts.saturating_mul(bytes) as u64
    }

    /// An estimate of the number of windows of a text, with two bytes for each token of its question.
    fn windows(&self, input: &OwnedInput) -> usize {
        let Some(stride) = self.stride else { return 1 };
        let question = input.query.as_ref().map_or(0, |question| question.len() / 2);
        let shared = stride.saturating_add(question + MAX_SPECIAL_TOKENS);
        tokens(input) / self.model.workload.max_length.saturating_sub(shared).max(1) + 1
    }
}

/// Special tokens around a question and a text.
const MAX_SPECIAL_TOKENS: usize = 4;

/// An estimate of the tokens of a text, with four bytes for each.
fn tokens(input: &OwnedInput) -> usize {
    input.bytes() / 4 + 2
}

/// What messages call the texts and the options of a job.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub field: OneOrMany<()>,
    /// The name of the first text, which is not in the field.
    pub first: Option<&'static str>,
    /// Whether options are those of a command, in a field of their own.
    pub has_options: bool,
}

impl Names {
    pub(super) fn of<T>(values: &OneOrMany<T>, first: Option<&'static str>) -> Self {
        Names { field: values.without_values(), first, has_options: false }
    }

    /// The field of an option of rows.
    pub(super) fn option(&self, option: &str) -> String {
        match (option, self.has_options) {
            ("raw", false) => "raw_scores".into(),
            ("dtype", true) => "options.output_dtype".into(),
            (option, true) => format!("options.{option}"),
            (option, false) => option.into(),
        }
    }

    /// What truncates texts over the limit.
    pub(super) fn truncation(&self) -> &'static str {
        match &*self.field.field {
            _ if self.has_options => r#""on_long": "truncate" in options"#,
            "inputs.sentences" => r#""truncate": true in parameters"#,
            // Their schemas have no field for it.
            "documents" | "prompt" => "--on-long truncate when the server is started",
            _ => r#""truncate": true"#,
        }
    }

    pub(super) fn name(&self, index: usize) -> String {
        match self.first {
            Some(first) if index == 0 => first.into(),
            Some(_) => self.field.name(index - 1),
            None => self.field.name(index),
        }
    }
}

/// How often a text and its pair have this string.
fn occurrences(input: &OwnedInput, of: &str) -> usize {
    let texts = [Some(&input.text), input.pair.as_ref()];
    texts.into_iter().flatten().map(|text| text.matches(of).count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_is_that_of_the_route() {
        let truncation = |field: &str, has_options| {
            let field = OneOrMany { values: vec![()], is_list: true, field: field.into() };
            Names { has_options, ..Names::of(&field, None) }.truncation()
        };
        for (field, has_options, expected) in [
            ("inputs", false, r#""truncate": true"#),
            ("texts", false, r#""truncate": true"#),
            ("texts", true, r#""on_long": "truncate" in options"#),
            ("inputs.sentences", false, r#""truncate": true in parameters"#),
            ("documents", false, "--on-long truncate when the server is started"),
            ("prompt", false, "--on-long truncate when the server is started"),
        ] {
            assert_eq!(truncation(field, has_options), expected, "{field}");
        }
    }
}
