//! `/rerank`, `/v1/rerank` and `/v2/rerank`: text-embeddings-inference if the request has `texts`, Cohere and
//! Jina if it has `documents`.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::calls::{OneOrMany, Rerank, ScoredDocument, TextOptions};
use super::error::{Fault, Schema};
use super::fields::RequestFields;
use super::render::{Usage, json, none_truncated};
use super::tei;
use super::truncation::Truncated;
use super::values::{ValueName, list, string};
use crate::task::PromptChoice;

/// Documents that Cohere counts as one unit.
const SEARCH_UNIT: usize = 100;

/// The call of a rerank route, and the schema of its answer. `schema` is that of a request with neither
/// `texts` nor `documents`.
///
/// # Errors
/// The fault, with the schema in which it is answered.
pub fn rerank(body: &[u8], schema: Schema, max_texts: usize) -> Result<(Rerank, Schema), (Fault, Schema)> {
    let fields = RequestFields::read(body).map_err(|fault| (fault, schema))?;
    let schema = match (fields.has("texts"), fields.has("documents")) {
        (true, false) => Schema::Tei,
        (false, true) => Schema::Cohere,
        _ => schema,
    };
    let rerank = match schema {
        Schema::Tei => tei::rerank_of(fields, max_texts),
        _ => cohere(fields, max_texts),
    };
    rerank.map(|rerank| (rerank, schema)).map_err(|fault| (fault, schema))
}

fn cohere(mut fields: RequestFields, max_texts: usize) -> Result<Rerank, Fault> {
    let documents = fields.take("documents");
    let documents = documents.ok_or_else(|| fields.missing("documents", "send a list of strings"))?;
    let mut ignored = Vec::new();
    let name = ValueName::of("documents");
    let texts = list(documents, name, max_texts, |raw, name| document(raw, name, &mut ignored))?;
    let mut rerank = Rerank {
        query: fields.required("query")?,
        documents: OneOrMany { values: texts, is_list: true, field: "documents".into() },
        model: fields.model()?,
        options: TextOptions {
            truncation_side: fields.named("truncation_side")?,
            prompt: fields.string("instruction")?.map(PromptChoice::Text),
            ..TextOptions::default()
        },
        max_tokens_per_document: fields.integer("max_tokens_per_doc", 1)?,
        top_n: fields.integer("top_n", 1)?,
        return_documents: fields.flag("return_documents")?.unwrap_or(false),
        raw_scores: fields.flag("raw_scores")?.unwrap_or(false),
        ignored: fields.ignored(),
    };
    rerank.ignored.extend(ignored);
    Ok(rerank)
}

/// Maximum names of ignored fields of documents.
const MAX_IGNORED: usize = 16;

/// The text of a document: a string, or an object with the field `text`. Names of its other fields are added
/// to `ignored` once.
fn document(raw: &RawValue, name: ValueName, ignored: &mut Vec<String>) -> Result<String, Fault> {
    let remedy = r#"send a string, or an object with the field "text""#;
    if !raw.get().starts_with('{') {
        return string(raw, name, remedy);
    }
    let mut fields = RequestFields::of(raw, format!("{name}."))?;
    let text = fields.take("text").ok_or_else(|| name.invalid(&format!(r#"has no "text"; {remedy}"#)))?;
    let text = string(text, name, r#"send "text" as a string"#)?;
    for field in fields.ignored() {
        let field = field.replacen(&name.to_string(), name.field, 1);
        if ignored.len() < MAX_IGNORED && !ignored.contains(&field) {
            ignored.push(field);
        }
    }
    Ok(text)
}

/// The answer to a request with `documents`: what the clients of Cohere and Jina read.
#[derive(Debug, Clone, Copy)]
pub struct RerankAnswer<'a> {
    /// The id of the request.
    pub id: &'a str,
    /// The name of the model.
    pub model: &'a str,
    /// The documents, best first: [`Rerank::ranked`].
    pub documents: &'a [ScoredDocument<'a>],
    /// Documents of the request.
    pub scored: usize,
    /// Encoded tokens of all pairs.
    pub tokens: usize,
    /// The documents that were truncated.
    pub truncated: &'a [Truncated],
}

#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    model: &'a str,
    results: RankedResults<'a>,
    usage: Usage,
    meta: Meta,
    #[serde(skip_serializing_if = "none_truncated")]
    truncated: &'a [Truncated],
}

#[derive(Serialize)]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
    tokens: Tokens,
}

#[derive(Serialize)]
struct ApiVersion {
    version: &'static str,
}

#[derive(Serialize)]
struct BilledUnits {
    search_units: usize,
}

#[derive(Serialize)]
struct Tokens {
    input_tokens: usize,
    output_tokens: usize,
}

impl RerankAnswer<'_> {
    /// The answer, as JSON.
    pub fn body(&self) -> Vec<u8> {
        let RerankAnswer { id, model, documents, scored, tokens, truncated } = *self;
        json(&Body {
            id,
            model,
            results: RankedResults(documents),
            usage: Usage::of(tokens),
            meta: Meta {
                api_version: ApiVersion { version: "2" },
                billed_units: BilledUnits { search_units: scored.div_ceil(SEARCH_UNIT) },
                tokens: Tokens { input_tokens: tokens, output_tokens: 0 },
            },
            truncated,
        })
    }
}

struct RankedResults<'a>(&'a [ScoredDocument<'a>]);

impl Serialize for RankedResults<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            text: &'a str,
        }
        #[derive(Serialize)]
        struct Scored<'a> {
            index: usize,
            relevance_score: f32,
            #[serde(skip_serializing_if = "Option::is_none")]
            document: Option<Document<'a>>,
        }
        serializer.collect_seq(self.0.iter().map(|document| {
            let ScoredDocument { index, score, text } = *document;
            Scored { index, relevance_score: score, document: text.map(|text| Document { text }) }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{OnLong, TruncationSide};

    fn call(field: &str, documents: &[&str]) -> Rerank {
        let values = documents.iter().map(|text| (*text).into()).collect();
        Rerank {
            query: "q".into(),
            documents: OneOrMany { values, is_list: true, field: field.into() },
            model: None,
            options: TextOptions::default(),
            max_tokens_per_document: None,
            top_n: None,
            return_documents: false,
            raw_scores: false,
            ignored: Vec::new(),
        }
    }

    fn side(truncation_side: TruncationSide) -> TextOptions {
        TextOptions { truncation_side: Some(truncation_side), ..TextOptions::default() }
    }

    #[test]
    fn texts_are_what_clients_of_text_embeddings_inference_send() {
        let texts = |texts: &[&str]| call("texts", texts);
        for (client, body, expected) in [
            ("Dify", r#"{"query":"q","texts":["a",""]}"#, texts(&["a", ""])),
            (
                "haystack",
                r#"{"query":"q","texts":["a"],"raw_scores":false,"truncate":true,"truncation_direction":"Left"}"#,
                Rerank {
                    options: TextOptions { on_long: Some(OnLong::Truncate), ..side(TruncationSide::Left) },
                    ..texts(&["a"])
                },
            ),
            (
                "LiteLLM, huggingface",
                r#"{"query":"q","texts":["a"],"raw_scores":false,"truncate":false,"truncation_direction":"Right","top_n":3,"return_text":true}"#,
                Rerank {
                    options: TextOptions { on_long: Some(OnLong::Error), ..side(TruncationSide::Right) },
                    top_n: Some(3),
                    return_documents: true,
                    ..texts(&["a"])
                },
            ),
        ] {
            for default in [Schema::Tei, Schema::Cohere] {
                let found = rerank(body.as_bytes(), default, 3);
                assert_eq!(found, Ok((expected.clone(), Schema::Tei)), "{client}");
            }
        }
    }

    #[test]
    fn documents_are_what_clients_of_cohere_and_jina_send() {
        let documents = |texts: &[&str]| Rerank { model: Some("m".into()), ..call("documents", texts) };
        for (client, body, expected) in [
            (
                "Open WebUI",
                r#"{"model":"m","query":"q","documents":["a","b"],"top_n":2}"#,
                Rerank { top_n: Some(2), ..documents(&["a", "b"]) },
            ),
            (
                "LiteLLM, hosted_vllm",
                r#"{"model":"m","query":"q","documents":["a"],"top_n":null,"return_documents":true,"instruction":"i","max_tokens_per_doc":512,"truncate_prompt_tokens":9,"truncation_side":"left"}"#,
                Rerank {
                    options: TextOptions {
                        prompt: Some(PromptChoice::Text("i".into())),
                        ..side(TruncationSide::Left)
                    },
                    max_tokens_per_document: Some(512),
                    return_documents: true,
                    ignored: vec!["truncate_prompt_tokens".into()],
                    ..documents(&["a"])
                },
            ),
            (
                "cohere v1",
                r#"{"model":"m","query":"q","documents":[{"text":"a","title":"t"},"b",{"title":"u","text":"c"}],"rank_fields":["text"],"raw_scores":true}"#,
                Rerank {
                    raw_scores: true,
                    ignored: ["rank_fields", "documents.title"].map(String::from).to_vec(),
                    ..documents(&["a", "b", "c"])
                },
            ),
        ] {
            for default in [Schema::Tei, Schema::Cohere] {
                let found = rerank(body.as_bytes(), default, 3);
                assert_eq!(found, Ok((expected.clone(), Schema::Cohere)), "{client}");
            }
        }
    }

    #[test]
    fn faults_have_the_schema_of_the_request() {
        for (body, default, schema, message) in [
            (
                r#"{"query":"q"}"#,
                Schema::Cohere,
                Schema::Cohere,
                "documents is missing; send a list of strings",
            ),
            (r#"{"query":"q"}"#, Schema::Tei, Schema::Tei, "texts is missing; send a list of strings"),
            (r#"{"texts":["a"]}"#, Schema::Cohere, Schema::Tei, "query is missing; send a string"),
            (
                r#"{"query":"q","documents":"a"}"#,
                Schema::Tei,
                Schema::Cohere,
                "documents is a string; send a list",
            ),
            (
                r#"{"query":"q","documents":["a",{"title":"t"}]}"#,
                Schema::Tei,
                Schema::Cohere,
                r#"documents[1] has no "text"; send a string, or an object with the field "text""#,
            ),
            (
                r#"{"query":"q","documents":[{"text":1}]}"#,
                Schema::Tei,
                Schema::Cohere,
                r#"documents[0] is a number; send "text" as a string"#,
            ),
            (
                r#"{"query":"q","documents":["a"],"top_n":0}"#,
                Schema::Tei,
                Schema::Cohere,
                "top_n is 0; send an integer from 1 to 4294967295",
            ),
            ("[", Schema::Tei, Schema::Tei, "the body is an array; send a JSON object"),
        ] {
            let (fault, found) = rerank(body.as_bytes(), default, 3).unwrap_err();
            assert_eq!((&*fault.message, found), (message, schema));
        }
    }

    #[test]
    fn the_answer_is_one_for_all_clients() {
        let document = |index, score, text| ScoredDocument { index, score, text };
        let truncated = [Truncated { index: 1, tokens: 530, kept: 512 }];
        let answer = RerankAnswer {
            id: "r-1",
            model: "m",
            documents: &[document(1, 0.75, Some("b")), document(0, 0.1, None)],
            scored: 101,
            tokens: 600,
            truncated: &truncated,
        };
        let start = r#"{"id":"r-1","model":"m","results":[{"index":1,"relevance_score":0.75,"document":{"text":"b"}},{"index":0,"relevance_score":0.1}],"usage":{"prompt_tokens":600,"total_tokens":600},"meta":{"api_version":{"version":"2"},"billed_units":{"search_units":2},"tokens":{"input_tokens":600,"output_tokens":0}}"#;
        let end = r#","truncated":[{"index":1,"tokens":530,"kept":512}]}"#;
        assert_eq!(String::from_utf8(answer.body()).unwrap(), format!("{start}{end}"));
        let whole = RerankAnswer { truncated: &[], ..answer };
        assert_eq!(String::from_utf8(whole.body()).unwrap(), format!("{start}}}"));
    }
}
