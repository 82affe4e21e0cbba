//! text-embeddings-inference 1.9: `/embed`, `/embed_all`, `/embed_sparse`, `/predict`, `/rerank`,
//! `/similarity`, `/tokenize`, `/decode`, `/info`, and the root, which has the model's default task. A
//! request may also name a `model`, and a reranker takes `top_n`.

mod answers;
mod info;

pub use answers::{
    TextToken, TokenVectors, decode_answer, embed_all_answer, embed_answer, embed_sparse_answer,
    predict_answer, rerank_answer, similarity_answer, tokenize_answer,
};
pub use info::{Info, InfoModelType};

use super::calls::{Decode, Embed, Predict, Rerank, SentenceSimilarity, TextOptions, Tokenize};
use super::error::Fault;
use super::fields::RequestFields;
use super::values;
use crate::task::PromptChoice;

/// What a model does with the texts of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultTask {
    /// A vector of each text.
    Embed,
    /// A sparse vector of each text.
    EmbedSparse,
    /// Labels.
    Predict,
    /// Scores for a query.
    Rerank,
}

/// A call of the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootCall {
    /// `/embed`.
    Embed(Embed),
    /// `/embed_sparse`.
    EmbedSparse(Embed),
    /// `/predict`.
    Predict(Predict),
    /// `/rerank`.
    Rerank(Rerank),
    /// `/similarity`, to which an embedding model's root leads if `inputs` is an object.
    Similarity(SentenceSimilarity),
}

/// The call of `/` and `/invocations`. `task_of` has the task of the model that the request names.
pub fn root(
    body: &[u8],
    task_of: impl FnOnce(Option<&str>) -> DefaultTask,
    max_texts: usize,
) -> Result<RootCall, Fault> {
    let fields = RequestFields::read(body)?;
    match task_of(fields.clone().model()?.as_deref()) {
        DefaultTask::Embed if fields.is_object("inputs") => {
            similarity_of(fields, max_texts).map(RootCall::Similarity)
        }
        DefaultTask::Embed => embed_of(fields, max_texts).map(RootCall::Embed),
        DefaultTask::EmbedSparse => outputs_of(fields, max_texts).map(RootCall::EmbedSparse),
        DefaultTask::Predict => predict_of(fields, max_texts).map(RootCall::Predict),
        DefaultTask::Rerank => rerank_of(fields, max_texts).map(RootCall::Rerank),
    }
}

/// The call of `/embed`.
pub fn embed(body: &[u8], max_texts: usize) -> Result<Embed, Fault> {
    embed_of(RequestFields::read(body)?, max_texts)
}

/// The call of `/embed_all` and `/embed_sparse`, which have neither `normalize` nor `dimensions`.
pub fn embed_outputs(body: &[u8], max_texts: usize) -> Result<Embed, Fault> {
    outputs_of(RequestFields::read(body)?, max_texts)
}

/// The call of `/predict`.
pub fn predict(body: &[u8], max_texts: usize) -> Result<Predict, Fault> {
    predict_of(RequestFields::read(body)?, max_texts)
}

/// The call of `/similarity`.
pub fn similarity(body: &[u8], max_texts: usize) -> Result<SentenceSimilarity, Fault> {
    similarity_of(RequestFields::read(body)?, max_texts)
}

/// The call of `/tokenize`.
pub fn tokenize(body: &[u8], max_texts: usize) -> Result<Tokenize, Fault> {
    let mut fields = RequestFields::read(body)?;
    Ok(Tokenize {
        inputs: fields.texts("inputs", max_texts)?,
        model: fields.model()?,
        prompt_name: fields.string("prompt_name")?,
        add_special_tokens: fields.flag("add_special_tokens")?.unwrap_or(true),
        ignored: fields.ignored(),
    })
}

/// The call of `/decode`.
pub fn decode(body: &[u8], max_texts: usize) -> Result<Decode, Fault> {
    let mut fields = RequestFields::read(body)?;
    let ids = fields.take("ids").ok_or_else(|| fields.missing("ids", "send a list of token ids"))?;
    Ok(Decode {
        ids: values::token_ids(ids, "ids", max_texts)?,
        model: fields.model()?,
        skip_special_tokens: fields.flag("skip_special_tokens")?.unwrap_or(true),
        ignored: fields.ignored(),
    })
}

fn embed_of(mut fields: RequestFields, max_texts: usize) -> Result<Embed, Fault> {
    let (normalize, dimensions) = (fields.flag("normalize")?, fields.integer("dimensions", 0)?);
    Ok(Embed { normalize, dimensions, ..outputs_of(fields, max_texts)? })
}

fn outputs_of(mut fields: RequestFields, max_texts: usize) -> Result<Embed, Fault> {
    Ok(Embed {
        inputs: fields.texts("inputs", max_texts)?,
        model: fields.model()?,
        options: prompted(&mut fields)?,
        normalize: None,
        dimensions: None,
        ignored: fields.ignored(),
    })
}

fn predict_of(mut fields: RequestFields, max_texts: usize) -> Result<Predict, Fault> {
    let inputs = fields.take("inputs");
    let inputs = inputs.ok_or_else(|| fields.missing("inputs", "send a string, a pair or a list of them"))?;
    Ok(Predict {
        inputs: values::texts_or_pairs(inputs, "inputs", max_texts)?,
        model: fields.model()?,
        options: truncation(&mut fields)?,
        raw_scores: fields.flag("raw_scores")?.unwrap_or(false),
        ignored: fields.ignored(),
    })
}

/// The call of `/rerank`, whose fields have been read to tell its schema.
pub(super) fn rerank_of(mut fields: RequestFields, max_texts: usize) -> Result<Rerank, Fault> {
    let texts = fields.take("texts").ok_or_else(|| fields.missing("texts", "send a list of strings"))?;
    let name = fields.name("texts");
    Ok(Rerank {
        query: fields.required("query")?,
        documents: values::text_list(texts, &name, max_texts)?,
        model: fields.model()?,
        options: truncation(&mut fields)?,
        max_tokens_per_document: None,
        top_n: fields.integer("top_n", 1)?,
        return_documents: fields.flag("return_text")?.unwrap_or(false),
        raw_scores: fields.flag("raw_scores")?.unwrap_or(false),
        ignored: fields.ignored(),
    })
}

fn similarity_of(mut fields: RequestFields, max_texts: usize) -> Result<SentenceSimilarity, Fault> {
    let remedy = r#"send {"source_sentence": "…", "sentences": ["…"]}"#;
    let mut inputs = fields.object("inputs")?.ok_or_else(|| fields.missing("inputs", remedy))?;
    let sentences = inputs.take("sentences");
    let sentences = sentences.ok_or_else(|| inputs.missing("sentences", "send a list of strings"))?;
    let source = inputs.required("source_sentence")?;
    let sentences = values::text_list(sentences, &inputs.name("sentences"), max_texts)?;
    let (model, mut ignored) = (fields.model()?, inputs.ignored());
    let mut options = TextOptions::default();
    if let Some(mut parameters) = fields.object("parameters")? {
        options = prompted(&mut parameters)?;
        ignored.extend(parameters.ignored());
    }
    ignored.extend(fields.ignored());
    Ok(SentenceSimilarity { source, sentences, model, options, ignored })
}

/// `truncate`, `truncation_direction` and `prompt_name`.
fn prompted(fields: &mut RequestFields) -> Result<TextOptions, Fault> {
    let prompt = fields.string("prompt_name")?.map(PromptChoice::Name);
    Ok(TextOptions { prompt, ..truncation(fields)? })
}

/// `truncate` and `truncation_direction`.
fn truncation(fields: &mut RequestFields) -> Result<TextOptions, Fault> {
    Ok(TextOptions {
        on_long: fields.truncate()?,
        truncation_side: fields.named("truncation_direction")?,
        ..TextOptions::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::schema::calls::{OneOrMany, TextAndPair};
    use crate::serve::schema::error::{FaultKind, Schema};
    use crate::text::OnLong;
    use crate::text::TruncationSide;

    fn many(field: &str, texts: &[&str]) -> OneOrMany<String> {
        OneOrMany {
            values: texts.iter().map(|text| (*text).into()).collect(),
            is_list: true,
            field: field.into(),
        }
    }

    fn one(field: &str, text: &str) -> OneOrMany<String> {
        OneOrMany { is_list: false, ..many(field, &[text]) }
    }

    fn plain(inputs: OneOrMany<String>) -> Embed {
        let options = TextOptions::default();
        Embed { inputs, model: None, options, normalize: None, dimensions: None, ignored: Vec::new() }
    }

    fn options(on_long: OnLong, side: Option<TruncationSide>) -> TextOptions {
        TextOptions { on_long: Some(on_long), truncation_side: side, ..TextOptions::default() }
    }

    #[test]
    fn embed_is_what_clients_send() {
        for (client, body, expected) in [
            ("Continue", r#"{"inputs":["a","b"]}"#, plain(many("inputs", &["a", "b"]))),
            (
                "llama-index",
                r#"{"inputs": ["a"], "truncate": true}"#,
                Embed { options: options(OnLong::Truncate, None), ..plain(many("inputs", &["a"])) },
            ),
            (
                "huggingface_hub",
                r#"{"inputs":"","normalize":false,"prompt_name":"query","truncate":false,"truncation_direction":"left","dimensions":64,"encoding_format":"float"}"#,
                Embed {
                    options: TextOptions {
                        prompt: Some(PromptChoice::Name("query".into())),
                        ..options(OnLong::Error, Some(TruncationSide::Left))
                    },
                    normalize: Some(false),
                    dimensions: Some(64),
                    ignored: vec!["encoding_format".into()],
                    ..plain(one("inputs", ""))
                },
            ),
            (
                "Elasticsearch",
                r#"{"inputs":["a"],"model":"BAAI/bge-small-en-v1.5:latest","truncate":null}"#,
                Embed { model: Some("BAAI/bge-small-en-v1.5".into()), ..plain(many("inputs", &["a"])) },
            ),
        ] {
            assert_eq!(embed(body.as_bytes(), 9), Ok(expected), "{client}");
        }
        let body = r#"{"inputs":"a","normalize":true,"dimensions":8,"truncation_direction":"Right"}"#;
        let expected = Embed {
            options: TextOptions { truncation_side: Some(TruncationSide::Right), ..TextOptions::default() },
            ignored: vec!["normalize".into(), "dimensions".into()],
            ..plain(one("inputs", "a"))
        };
        assert_eq!(embed_outputs(body.as_bytes(), 9), Ok(expected));
    }

    #[test]
    fn the_root_has_the_task_of_its_model() {
        let similarity = SentenceSimilarity {
            source: "a".into(),
            sentences: many("inputs.sentences", &["b", "c"]),
            model: None,
            options: TextOptions::default(),
            ignored: vec!["options".into()],
        };
        let litellm =
            r#"{"inputs":{"source_sentence":"a","sentences":["b","c"]},"options":{"wait_for_model":true}}"#;
        let pair = TextAndPair { text: "a".into(), pair: Some("b".into()) };
        let predict = Predict {
            inputs: OneOrMany { values: vec![pair], is_list: false, field: "inputs".into() },
            model: None,
            options: TextOptions::default(),
            raw_scores: true,
            ignored: Vec::new(),
        };
        let embed = Embed { normalize: Some(true), ..plain(one("inputs", "a")) };
        for (task, body, expected) in [
            (DefaultTask::Embed, litellm, RootCall::Similarity(similarity)),
            (DefaultTask::Embed, r#"{"inputs":"a","normalize":true}"#, RootCall::Embed(embed)),
            (
                DefaultTask::EmbedSparse,
                r#"{"inputs":["a"]}"#,
                RootCall::EmbedSparse(plain(many("inputs", &["a"]))),
            ),
            (DefaultTask::Predict, r#"{"inputs":["a","b"],"raw_scores":true}"#, RootCall::Predict(predict)),
        ] {
            let task_of = |name: Option<&str>| {
                assert_eq!(name, None);
                task
            };
            assert_eq!(root(body.as_bytes(), task_of, 9), Ok(expected), "{body}");
        }
        let task_of = |name: Option<&str>| {
            assert_eq!(name, Some("m"));
            DefaultTask::Rerank
        };
        let fault = root(br#"{"inputs":"a","model":"m:latest"}"#, task_of, 9).unwrap_err();
        assert_eq!(fault.message, "texts is missing; send a list of strings");
    }

    #[test]
    fn similarity_has_parameters_of_its_own() {
        let body = r#"{"inputs":{"source_sentence":"a","sentences":["b"],"x":1},"parameters":{"truncate":true,"prompt_name":"q","y":2},"z":3}"#;
        let expected = SentenceSimilarity {
            source: "a".into(),
            sentences: many("inputs.sentences", &["b"]),
            model: None,
            options: TextOptions {
                prompt: Some(PromptChoice::Name("q".into())),
                ..options(OnLong::Truncate, None)
            },
            ignored: ["inputs.x", "parameters.y", "z"].map(String::from).to_vec(),
        };
        assert_eq!(similarity(body.as_bytes(), 9), Ok(expected));
    }

    #[test]
    fn tokens_have_defaults() {
        let body = br#"{"inputs":"a","add_special_tokens":false,"prompt_name":"query"}"#;
        let expected = Tokenize {
            inputs: one("inputs", "a"),
            model: None,
            prompt_name: Some("query".into()),
            add_special_tokens: false,
            ignored: Vec::new(),
        };
        assert_eq!(tokenize(body, 9), Ok(expected));
        assert!(tokenize(br#"{"inputs":["a"]}"#, 9).unwrap().add_special_tokens);
        let decoded = decode(br#"{"ids":[[101,102]],"skip_special_tokens":false}"#, 9).unwrap();
        assert_eq!((decoded.ids.values, decoded.skip_special_tokens), (vec![vec![101, 102]], false));
        assert!(decode(br#"{"ids":[101]}"#, 9).unwrap().skip_special_tokens);
    }

    #[test]
    fn faults_have_the_status_of_text_embeddings_inference() {
        for (body, kind, status, message) in [
            (r#"{"inputs":[]}"#, FaultKind::Empty, 400, "inputs is an empty list; send at least one element"),
            (
                r#"{"input":"a"}"#,
                FaultKind::Invalid,
                422,
                "inputs is missing; send a string or a list of strings",
            ),
            (
                r#"{"inputs":"a","truncation_direction":"up"}"#,
                FaultKind::Invalid,
                422,
                r#"truncation_direction is "up"; send "left" or "right""#,
            ),
            (
                r#"{"inputs":"a","dimensions":-1}"#,
                FaultKind::Invalid,
                422,
                "dimensions is -1; send an integer from 0 to 4294967295",
            ),
        ] {
            let fault = embed(body.as_bytes(), 9).unwrap_err();
            assert_eq!((fault.kind, fault.status(Schema::Tei), &*fault.message), (kind, status, message));
        }
    }
}
