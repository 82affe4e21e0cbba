//! OpenAI's embeddings and models: `/v1/embeddings`, `/v1/models`. Extensions: `prompt_name`, `truncate`, and
//! the role as `input_type`, or as Jina's `task`.

use serde::{Serialize, Serializer};

use super::calls::{Embed, TextOptions};
use super::error::Fault;
use super::fields::RequestFields;
use super::render::{Base64, Usage, base64_bytes, element_count, float_bytes, json, json_of, none_truncated};
use super::truncation::Truncated;
use super::values::{begins_with, texts};
use crate::model::modules::Role;
use crate::named::names;
use crate::task::PromptChoice;

/// How vectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// A list of numbers.
    #[default]
    Float,
    /// A string: base64 of little-endian `f32` values. OpenAI's own clients ask for it.
    Base64,
}

names!(Encoding {
    Float => "float",
    Base64 => "base64",
});

/// What the first element of token ids, or of lists of them, begins with.
const TOKEN_IDS: [char; 12] = ['[', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];

/// About the bytes of the object around a vector.
const OBJECT_BYTES: usize = 60;

/// The call of `/v1/embeddings`, and how its vectors are written.
pub fn embeddings(body: &[u8], max_texts: usize) -> Result<(Embed, Encoding), Fault> {
    let mut fields = RequestFields::read(body)?;
    let remedy = "send a string or a list of strings";
    let input = fields.take("input").ok_or_else(|| fields.missing("input", remedy))?;
    if begins_with(input, &TOKEN_IDS) {
        let message = "input has token ids, which are those of another model's vocabulary; send texts, with LangChain by \
                       OpenAIEmbeddings(check_embedding_ctx_length=False)";
        return Err(Fault::invalid("input", message));
    }
    let encoding = fields.named("encoding_format")?.unwrap_or_default();
    let task = fields.string("task")?;
    let role_of_task = match task.as_deref() {
        Some("retrieval.query") => Some(Role::Query),
        Some("retrieval.passage") => Some(Role::Document),
        _ => None,
    };
    let is_ignored = task.is_some() && role_of_task.is_none();
    let embed = Embed {
        inputs: texts(input, "input", max_texts)?,
        model: fields.model()?,
        options: TextOptions {
            prompt: fields.string("prompt_name")?.map(PromptChoice::Name),
            role: fields.named("input_type")?.or(role_of_task),
            on_long: fields.truncate()?,
            ..TextOptions::default()
        },
        normalize: None,
        dimensions: fields.integer("dimensions", 0)?,
        ignored: fields.ignored().into_iter().chain(is_ignored.then(|| "task".into())).collect(),
    };
    Ok((embed, encoding))
}

/// The answer of `/v1/embeddings`.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddingsAnswer<'a> {
    /// The vector of each text. All elements are finite.
    pub vectors: &'a [&'a [f32]],
    /// How they are written.
    pub encoding: Encoding,
    /// The name of the model.
    pub model: &'a str,
    /// Encoded tokens of all texts.
    pub tokens: usize,
    /// The texts that were truncated.
    pub truncated: &'a [Truncated],
}

impl EmbeddingsAnswer<'_> {
    /// The answer, as JSON.
    pub fn body(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Body<'a> {
            object: &'static str,
            data: Data<'a>,
            model: &'a str,
            usage: Usage,
            #[serde(skip_serializing_if = "none_truncated")]
            truncated: &'a [Truncated],
        }
        let EmbeddingsAnswer { vectors, encoding, model, tokens, truncated } = *self;
        let (data, usage) = (Data { vectors, encoding }, Usage::of(tokens));
        let body = Body { object: "list", data, model, usage, truncated };
        let vector_bytes = match encoding {
            Encoding::Float => float_bytes(element_count(vectors)),
            Encoding::Base64 => vectors.iter().map(|vector| base64_bytes(vector.len())).sum(),
        };
        json_of(&body, vector_bytes + vectors.len() * OBJECT_BYTES)
    }
}

/// The vectors, each as an object.
struct Data<'a> {
    vectors: &'a [&'a [f32]],
    encoding: Encoding,
}

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Item<'a> {
            object: &'static str,
            index: usize,
            embedding: Vector<'a>,
        }
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Vector<'a> {
            Float(&'a [f32]),
            Base64(Base64<'a>),
        }
        serializer.collect_seq(self.vectors.iter().enumerate().map(|(index, vector)| {
            let embedding = match self.encoding {
                Encoding::Float => Vector::Float(vector),
                Encoding::Base64 => Vector::Base64(Base64(vector)),
            };
            Item { object: "embedding", index, embedding }
        }))
    }
}

/// A model of `/v1/models`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedModel<'a> {
    /// Its name in requests.
    pub id: &'a str,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
}

impl Serialize for ListedModel<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            id: &'a str,
            object: &'static str,
            created: u64,
            owned_by: &'static str,
        }
        let ListedModel { id, created } = *self;
        Entry { id, object: "model", created, owned_by: "sconce" }.serialize(serializer)
    }
}

/// The answer of `/v1/models`.
pub fn models_answer(models: &[ListedModel]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        object: &'static str,
        data: &'a [ListedModel<'a>],
    }
    json(&Body { object: "list", data: models })
}

/// The answer of `/v1/models/{id}`.
pub fn model_answer(model: &ListedModel) -> Vec<u8> {
    json(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::schema::calls::OneOrMany;
    use crate::serve::schema::error::{FaultKind, Schema};
    use crate::text::Role;

    fn call(texts: &[&str], is_list: bool, model: &str) -> Embed {
        let values = texts.iter().map(|text| (*text).into()).collect();
        Embed {
            inputs: OneOrMany { values, is_list, field: "input".into() },
            model: Some(model.into()),
            options: TextOptions::default(),
            normalize: None,
            dimensions: None,
            ignored: Vec::new(),
        }
    }

    #[test]
    fn embeddings_are_what_clients_send() {
        for (client, body, embed, encoding) in [
            (
                "openai",
                r#"{"input":["a","b"],"model":"bge","encoding_format":"base64"}"#,
                call(&["a", "b"], true, "bge"),
                Encoding::Base64,
            ),
            (
                "langchain, an empty text",
                r#"{"input":"","model":"bge"}"#,
                call(&[""], false, "bge"),
                Encoding::Float,
            ),
            (
                "Spring AI",
                r#"{"input":["a"],"model":"bge","encoding_format":"float","dimensions":256,"user":"u"}"#,
                Embed { dimensions: Some(256), ignored: vec!["user".into()], ..call(&["a"], true, "bge") },
                Encoding::Float,
            ),
            (
                "Open WebUI",
                r#"{"input":["a"],"model":"bge","input_type":"query","prompt_name":"q","prefix":"p"}"#,
                Embed {
                    options: TextOptions {
                        role: Some(Role::Query),
                        prompt: Some(PromptChoice::Name("q".into())),
                        ..TextOptions::default()
                    },
                    ignored: vec!["prefix".into()],
                    ..call(&["a"], true, "bge")
                },
                Encoding::Float,
            ),
            (
                "Jina's, for queries",
                r#"{"input":["a"],"model":"bge","task":"retrieval.query"}"#,
                Embed {
                    options: TextOptions { role: Some(Role::Query), ..TextOptions::default() },
                    ..call(&["a"], true, "bge")
                },
                Encoding::Float,
            ),
            (
                "Jina's, for a task that is no role",
                r#"{"input":["a"],"model":"bge","task":"text-matching"}"#,
                Embed { ignored: vec!["task".into()], ..call(&["a"], true, "bge") },
                Encoding::Float,
            ),
        ] {
            assert_eq!(embeddings(body.as_bytes(), 2), Ok((embed, encoding)), "{client}");
        }
    }

    #[test]
    fn token_ids_are_refused_with_the_remedy() {
        for body in [r#"{"input":[[9906,1917],[15339]]}"#, r#"{"input":[ 9906]}"#, r#"{"input":[[]]}"#] {
            let fault = embeddings(body.as_bytes(), 9).unwrap_err();
            assert_eq!(fault.status(Schema::OpenAi), 400);
            assert_eq!(
                String::from_utf8(fault.body(Schema::OpenAi)).unwrap(),
                r#"{"error":{"message":"input has token ids, which are those of another model's vocabulary; send texts, with LangChain by OpenAIEmbeddings(check_embedding_ctx_length=False)","type":"invalid_request_error","param":"input","code":"invalid_value"}}"#
            );
        }
        for (body, kind, message) in [
            (r#"{"input":[]}"#, FaultKind::Empty, "input is an empty list; send at least one element"),
            (
                r#"{"input":["a",7]}"#,
                FaultKind::Invalid,
                "input[1] is a number; send each text as a string, not as token ids",
            ),
            (
                r#"{"input":"a","encoding_format":"int8"}"#,
                FaultKind::Invalid,
                r#"encoding_format is "int8"; send "float" or "base64""#,
            ),
        ] {
            let fault = embeddings(body.as_bytes(), 9).unwrap_err();
            assert_eq!((fault.kind, &*fault.message), (kind, message));
        }
    }

    #[test]
    fn answers_are_those_of_openai() {
        let vectors: [&[f32]; 2] = [&[0.5, -1.0], &[f32::MIN_POSITIVE, 0.1]];
        let truncated = [Truncated { index: 1, tokens: 530, kept: 512 }];
        for (encoding, truncated, expected) in [
            (
                Encoding::Float,
                &[][..],
                r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1.0]},{"object":"embedding","index":1,"embedding":[1.1754944e-38,0.1]}],"model":"bge","usage":{"prompt_tokens":514,"total_tokens":514}}"#,
            ),
            (
                Encoding::Base64,
                &truncated[..],
                r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AAAAPwAAgL8="},{"object":"embedding","index":1,"embedding":"AACAAM3MzD0="}],"model":"bge","usage":{"prompt_tokens":514,"total_tokens":514},"truncated":[{"index":1,"tokens":530,"kept":512}]}"#,
            ),
        ] {
            let answer =
                EmbeddingsAnswer { vectors: &vectors, encoding, model: "bge", tokens: 514, truncated };
            assert_eq!(String::from_utf8(answer.body()).unwrap(), expected);
        }
        let model = ListedModel { id: "bge", created: 7 };
        let entry = r#"{"id":"bge","object":"model","created":7,"owned_by":"sconce"}"#;
        assert_eq!(String::from_utf8(model_answer(&model)).unwrap(), entry);
        let list = format!(r#"{{"object":"list","data":[{entry}]}}"#);
        assert_eq!(String::from_utf8(models_answer(&[model])).unwrap(), list);
    }
}
