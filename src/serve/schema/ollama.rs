//! Ollama's embedding clients: `/api/embed`, `/api/embeddings`, `/api/tags`, `/api/version`, `/api/show`.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::calls::{Embed, OneOrMany, TextOptions};
use super::error::Fault;
use super::fields::RequestFields;
use super::render::{element_count, float_bytes, json, json_of, none_truncated};
use super::truncation::Truncated;

/// The call of `/api/embed`.
pub fn embed(body: &[u8], max_texts: usize) -> Result<Embed, Fault> {
    let mut fields = RequestFields::read(body)?;
    Ok(Embed {
        inputs: fields.texts("input", max_texts)?,
        model: fields.model()?,
        options: TextOptions { on_long: fields.truncate()?, ..TextOptions::default() },
        normalize: None,
        dimensions: fields.integer("dimensions", 0)?,
        ignored: fields.ignored(),
    })
}

/// The call of `/api/embeddings`, the older route, whose vector is not normalized.
pub fn embeddings(body: &[u8]) -> Result<Embed, Fault> {
    let mut fields = RequestFields::read(body)?;
    let values = vec![fields.required("prompt")?];
    Ok(Embed {
        inputs: OneOrMany { values, is_list: false, field: "prompt".into() },
        model: fields.model()?,
        options: TextOptions::default(),
        normalize: Some(false),
        dimensions: None,
        ignored: fields.ignored(),
    })
}

/// The name of the model that `/api/show` is asked about, under its present or its former field; `None` if
/// there is none.
pub fn show(body: &[u8]) -> Result<Option<String>, Fault> {
    let mut fields = RequestFields::read(body)?;
    let model = fields.model()?;
    model.map_or_else(|| fields.model_in("name"), |model| Ok(Some(model)))
}

/// The answer of `/api/embed`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct EmbedAnswer<'a> {
    /// The name of the model in the request.
    pub model: &'a str,
    /// The vector of each text. All elements are finite.
    #[serde(rename = "embeddings")]
    pub vectors: &'a [&'a [f32]],
    /// Nanoseconds from the request to the answer.
    pub total_duration: u64,
    /// Nanoseconds in which the model was loaded for this request.
    pub load_duration: u64,
    /// Encoded tokens of all texts.
    #[serde(rename = "prompt_eval_count")]
    pub tokens: usize,
    /// The texts that were truncated.
    #[serde(skip_serializing_if = "none_truncated")]
    pub truncated: &'a [Truncated],
}

impl EmbedAnswer<'_> {
    /// The answer, as JSON.
    pub fn body(&self) -> Vec<u8> {
        json_of(self, float_bytes(element_count(self.vectors)))
    }
}

/// The answer of `/api/embeddings`. That to an empty prompt is an empty vector.
pub fn embedding_answer(vector: &[f32], truncated: &[Truncated]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        embedding: &'a [f32],
        #[serde(skip_serializing_if = "none_truncated")]
        truncated: &'a [Truncated],
    }
    json_of(&Body { embedding: vector, truncated }, float_bytes(vector.len()))
}

/// A model of `/api/tags` and `/api/show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaggedModel<'a> {
    /// Its name in requests.
    pub name: &'a str,
    /// When its files changed, as RFC 3339.
    pub modified_at: &'a str,
    /// Bytes of its weights.
    pub size: u64,
    /// SHA-256 of its weights, or what else tells them apart.
    pub digest: &'a str,
    /// Its model type, such as `bert`.
    pub family: &'a str,
    /// Its number of parameters, such as `22.7M`.
    pub parameter_size: &'a str,
    /// The type of its weights, such as `F32`.
    pub quantization_level: &'a str,
    /// Dimensions of its vectors.
    pub dimensions: usize,
    /// Maximum tokens of a text.
    pub max_length: usize,
}

#[derive(Serialize)]
struct Details<'a> {
    parent_model: &'static str,
    format: &'static str,
    family: &'a str,
    families: [&'a str; 1],
    parameter_size: &'a str,
    quantization_level: &'a str,
}

impl<'a> TaggedModel<'a> {
    fn details(&self) -> Details<'a> {
        let TaggedModel { family, parameter_size, quantization_level, .. } = *self;
        let (parent_model, format, families) = ("", "safetensors", [family]);
        Details { parent_model, format, family, families, parameter_size, quantization_level }
    }
}

/// The answer of `/api/tags`. Names without a tag get `:latest`, as clients compare them.
pub fn tags_answer(models: &[TaggedModel]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        models: Vec<Entry<'a>>,
    }
    #[derive(Serialize)]
    struct Entry<'a> {
        name: String,
        model: String,
        modified_at: &'a str,
        size: u64,
        digest: &'a str,
        details: Details<'a>,
    }
    let entries = models.iter().map(|model| {
        let TaggedModel { name, modified_at, size, digest, .. } = *model;
        let name = if name.contains(':') { name.into() } else { format!("{name}:latest") };
        Entry { model: name.clone(), name, modified_at, size, digest, details: model.details() }
    });
    json(&Body { models: entries.collect() })
}

/// The answer of `/api/version`.
pub fn version_answer(version: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        version: &'a str,
    }
    json(&Body { version })
}

/// The answer of `/api/show`.
pub fn show_answer(model: &TaggedModel) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        modelfile: &'static str,
        parameters: &'static str,
        template: &'static str,
        details: Details<'a>,
        model_info: ModelInfo<'a>,
        capabilities: [&'static str; 1],
        modified_at: &'a str,
    }
    json(&Body {
        modelfile: "",
        parameters: "",
        template: "",
        details: model.details(),
        model_info: ModelInfo(model),
        capabilities: ["embedding"],
        modified_at: model.modified_at,
    })
}

struct ModelInfo<'a>(&'a TaggedModel<'a>);

impl Serialize for ModelInfo<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TaggedModel { family, dimensions, max_length, .. } = self.0;
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("general.architecture", family)?;
        map.serialize_entry(&format!("{family}.context_length"), max_length)?;
        map.serialize_entry(&format!("{family}.embedding_length"), dimensions)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::OnLong;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn requests_are_what_clients_send() {
        let call = |texts: &[&str], is_list, field: &str| Embed {
            inputs: OneOrMany {
                values: texts.iter().map(|text| (*text).into()).collect(),
                is_list,
                field: field.into(),
            },
            model: Some("all-minilm".into()),
            options: TextOptions::default(),
            normalize: None,
            dimensions: None,
            ignored: Vec::new(),
        };
        let on_long = |on_long| TextOptions { on_long: Some(on_long), ..TextOptions::default() };
        for (client, body, expected) in [
            ("Open WebUI", r#"{"input":["a","b"],"model":"all-minilm"}"#, call(&["a", "b"], true, "input")),
            (
                "ollama",
                r#"{"model":"all-minilm:latest","input":"a","truncate":true,"dimensions":64,"options":{"num_ctx":9},"keep_alive":"5m"}"#,
                Embed {
                    options: on_long(OnLong::Truncate),
                    dimensions: Some(64),
                    ignored: ["options", "keep_alive"].map(String::from).to_vec(),
                    ..call(&["a"], false, "input")
                },
            ),
            (
                "ollama, strict",
                r#"{"model":"all-minilm","input":"","truncate":false}"#,
                Embed { options: on_long(OnLong::Error), ..call(&[""], false, "input") },
            ),
        ] {
            assert_eq!(embed(body.as_bytes(), 2), Ok(expected), "{client}");
        }
        let older = Embed { normalize: Some(false), ..call(&["a"], false, "prompt") };
        assert_eq!(embeddings(br#"{"model":"all-minilm","prompt":"a"}"#), Ok(older));
        for (body, expected) in [
            (r#"{"model":"a:latest","verbose":true}"#, Ok(Some("a".into()))),
            (r#"{"name":"a:v2"}"#, Ok(Some("a:v2".into()))),
            ("{}", Ok(None)),
        ] {
            assert_eq!(show(body.as_bytes()), expected);
        }
    }

    #[test]
    fn answers_are_those_of_ollama() {
        let truncated = [Truncated { index: 0, tokens: 530, kept: 512 }];
        let answer = EmbedAnswer {
            model: "all-minilm",
            vectors: &[&[0.6, 0.8], &[1.0, 0.0]],
            total_duration: 14143917,
            load_duration: 0,
            tokens: 8,
            truncated: &[],
        };
        let model = TaggedModel {
            name: "all-minilm",
            modified_at: "2026-11-28T10:00:00Z",
            size: 90868376,
            digest: "53aa51",
            family: "bert",
            parameter_size: "22.7M",
            quantization_level: "F32",
            dimensions: 384,
            max_length: 512,
        };
        let details = r#"{"parent_model":"","format":"safetensors","family":"bert","families":["bert"],"parameter_size":"22.7M","quantization_level":"F32"}"#;
        let tag = |name: &str| {
            format!(
                r#"{{"name":"{name}","model":"{name}","modified_at":"2026-11-28T10:00:00Z","size":90868376,"digest":"53aa51","details":{details}}}"#
            )
        };
        for (bytes, expected) in [
            (
                answer.body(),
                r#"{"model":"all-minilm","embeddings":[[0.6,0.8],[1.0,0.0]],"total_duration":14143917,"load_duration":0,"prompt_eval_count":8}"#.to_owned(),
            ),
            (embedding_answer(&[0.5], &[]), r#"{"embedding":[0.5]}"#.into()),
            (embedding_answer(&[], &[]), r#"{"embedding":[]}"#.into()),
            (
                embedding_answer(&[0.5], &truncated),
                r#"{"embedding":[0.5],"truncated":[{"index":0,"tokens":530,"kept":512}]}"#.into(),
            ),
            (
                tags_answer(&[model, TaggedModel { name: "bge:v2", ..model }]),
                format!(r#"{{"models":[{},{}]}}"#, tag("all-minilm:latest"), tag("bge:v2")),
            ),
            (version_answer("0.1.0"), r#"{"version":"0.1.0"}"#.into()),
            (
                show_answer(&model),
                format!(
                    r#"{{"modelfile":"","parameters":"","template":"","details":{details},"model_info":{{"general.architecture":"bert","bert.context_length":512,"bert.embedding_length":384}},"capabilities":["embedding"],"modified_at":"2026-11-28T10:00:00Z"}}"#
                ),
            ),
        ] {
            assert_eq!(text(bytes), expected);
        }
        assert!(
            text(EmbedAnswer { truncated: &truncated, ..answer }.body())
                .ends_with(r#""prompt_eval_count":8,"truncated":[{"index":0,"tokens":530,"kept":512}]}"#)
        );
    }
}
