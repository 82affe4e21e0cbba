//! Why a request has no answer, in the status and the body of its schema.

use std::fmt;

use serde::Serialize;

use super::render::json;

/// The schema of a route, which decides the bodies of its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// text-embeddings-inference.
    Tei,
    /// OpenAI's embeddings and models.
    OpenAi,
    /// The rerank routes of Cohere and Jina.
    Cohere,
    /// Ollama.
    Ollama,
    /// All other routes.
    Plain,
}

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The key is missing or unknown.
    Unauthorized,
    /// There is no such route.
    NotFound,
    /// The route has other methods.
    Method,
    /// The request comes from a page of another origin.
    Origin,
    /// Models are being loaded, or the server stops.
    NotReady,
    /// The body is over the limit.
    BodyTooLarge,
    /// The body is not JSON by its content type, or is compressed.
    MediaType,
    /// As many requests as the limit wait, or memory is short.
    Overloaded,
    /// The body is not a JSON object.
    MalformedJson,
    /// No model has the name, or none has the capability of the route.
    Model,
    /// A list of texts is empty.
    Empty,
    /// A field is missing, or has a value that cannot be used.
    Invalid,
    /// A text cannot be tokenized.
    Text,
    /// A text is over the model's limit and was not to be truncated.
    TooLong,
    /// The body did not come in time.
    SlowBody,
    /// The server failed.
    Internal,
    /// The answer took longer than the limit.
    Timeout,
}

/// What the schemas say of a kind of fault.
struct Wording {
    status: u16,
    /// `error_type` of text-embeddings-inference.
    tei: &'static str,
    /// `error.type` of OpenAI.
    openai: &'static str,
    /// `error.code` of OpenAI.
    code: &'static str,
}

impl FaultKind {
    /// The HTTP status. text-embeddings-inference answers 422 to values that cannot be used, the others 400.
    pub fn status(self, schema: Schema) -> u16 {
        match (self, schema) {
            (FaultKind::Invalid | FaultKind::Text, Schema::Tei) => 422,
            _ => self.wording().status,
        }
    }

    /// What is wrong, in a few words.
    pub fn reason(self) -> &'static str {
        match self {
            FaultKind::Unauthorized => "the key is missing or unknown",
            FaultKind::NotFound => "there is no such route",
            FaultKind::Method => "the route has another method",
            FaultKind::Origin => "the request comes from a page of another origin",
            FaultKind::NotReady => "models are being loaded, or the server stops",
            FaultKind::BodyTooLarge => "the body or its answer is over the limit",
            FaultKind::MediaType => "the body is not JSON by its type, or is compressed",
            FaultKind::Overloaded => "too many requests wait, or their memory is in use",
            FaultKind::MalformedJson => "the body is not a JSON object",
            FaultKind::Model => "no model has the name, or none can do what the route needs",
            FaultKind::Empty => "a list is empty",
            FaultKind::Invalid => "a field is missing, or has a value that cannot be used",
            FaultKind::Text => "a text cannot be encoded",
            FaultKind::TooLong => "a text is over the model's limit and was not to be truncated",
            FaultKind::SlowBody => "the body did not come in time",
            FaultKind::Internal => "the server failed",
            FaultKind::Timeout => "the answer took longer than the limit",
        }
    }

    fn wording(self) -> Wording {
        let wording = |status, tei, openai, code| Wording { status, tei, openai, code };
        let client = |status, tei, code| wording(status, tei, "invalid_request_error", code);
        match self {
            FaultKind::Unauthorized => client(401, "Validation", "invalid_api_key"),
            FaultKind::NotFound => client(404, "Validation", "unknown_url"),
            FaultKind::Method => client(405, "Validation", "method_not_supported"),
            FaultKind::Origin => client(403, "Validation", "origin_not_allowed"),
            FaultKind::NotReady => wording(503, "Unhealthy", "server_error", "not_ready"),
            FaultKind::BodyTooLarge => client(413, "Validation", "request_too_large"),
            FaultKind::MediaType => client(415, "Validation", "unsupported_media_type"),
            FaultKind::Overloaded => wording(429, "Overloaded", "rate_limit_error", "rate_limit_exceeded"),
            FaultKind::MalformedJson => client(400, "Validation", "invalid_json"),
            FaultKind::Model => client(404, "Validation", "model_not_found"),
            FaultKind::Empty => client(400, "Empty", "empty_array"),
            FaultKind::Invalid => client(400, "Validation", "invalid_value"),
            FaultKind::Text => client(400, "Tokenizer", "invalid_value"),
            FaultKind::TooLong => client(413, "Validation", "context_length_exceeded"),
            FaultKind::SlowBody => client(408, "Validation", "request_timeout"),
            FaultKind::Internal => wording(500, "Backend", "server_error", "internal_error"),
            FaultKind::Timeout => wording(504, "Backend", "server_error", "timeout"),
        }
    }
}

/// Why a request has no answer: a sentence for people, and a kind that decides the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind of fault it is.
    pub kind: FaultKind,
    /// A sentence that names the field or the text, what was found and what to do.
    pub message: String,
    /// The field at fault, such as `input` or `inputs.sentences`.
    pub param: Option<String>,
}

#[derive(Serialize)]
struct TeiBody<'a> {
    error: &'a str,
    error_type: &'static str,
}

#[derive(Serialize)]
struct OpenAiBody<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    error_type: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

#[derive(Serialize)]
struct CohereBody<'a> {
    message: &'a str,
}

#[derive(Serialize)]
struct PlainBody<'a> {
    error: &'a str,
}

impl Fault {
    /// A fault of no field.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into(), param: None }
    }

    /// A fault of the field `param`.
    pub fn of(kind: FaultKind, param: impl Into<String>, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into(), param: Some(param.into()) }
    }

    /// A value that cannot be used of the field `param`.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Fault::of(FaultKind::Invalid, param, message)
    }

    /// The HTTP status.
    pub fn status(&self, schema: Schema) -> u16 {
        self.kind.status(schema)
    }

    /// The body, as JSON.
    pub fn body(&self, schema: Schema) -> Vec<u8> {
        let (message, wording) = (&*self.message, self.kind.wording());
        match schema {
            Schema::Tei => json(&TeiBody { error: message, error_type: wording.tei }),
            Schema::OpenAi => {
                let (param, code) = (self.param.as_deref(), wording.code);
                json(&OpenAiBody { error: OpenAiError { message, error_type: wording.openai, param, code } })
            }
            Schema::Cohere => json(&CohereBody { message }),
            Schema::Ollama | Schema::Plain => json(&PlainBody { error: message }),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_the_schema() {
        for (kind, tei, others) in [
            (FaultKind::Unauthorized, 401, 401),
            (FaultKind::NotFound, 404, 404),
            (FaultKind::Method, 405, 405),
            (FaultKind::Origin, 403, 403),
            (FaultKind::NotReady, 503, 503),
            (FaultKind::BodyTooLarge, 413, 413),
            (FaultKind::MediaType, 415, 415),
            (FaultKind::Overloaded, 429, 429),
            (FaultKind::MalformedJson, 400, 400),
            (FaultKind::Model, 404, 404),
            (FaultKind::Empty, 400, 400),
            (FaultKind::Invalid, 422, 400),
            (FaultKind::Text, 422, 400),
            (FaultKind::TooLong, 413, 413),
            (FaultKind::SlowBody, 408, 408),
            (FaultKind::Internal, 500, 500),
            (FaultKind::Timeout, 504, 504),
        ] {
            let fault = Fault::new(kind, "");
            assert_eq!(fault.status(Schema::Tei), tei, "{kind:?}");
            for schema in [Schema::OpenAi, Schema::Cohere, Schema::Ollama, Schema::Plain] {
                assert_eq!(fault.status(schema), others, "{kind:?} {schema:?}");
            }
        }
    }

    #[test]
    fn bodies_are_those_of_the_schema() {
        let field = Fault::of(FaultKind::Invalid, "input", r#"input is "a", expected b"#);
        let server = Fault::new(FaultKind::Overloaded, "512 requests wait; send fewer at once");
        for (fault, schema, expected) in [
            (&field, Schema::Tei, r#"{"error":"input is \"a\", expected b","error_type":"Validation"}"#),
            (
                &field,
                Schema::OpenAi,
                r#"{"error":{"message":"input is \"a\", expected b","type":"invalid_request_error","param":"input","code":"invalid_value"}}"#,
            ),
            (&field, Schema::Cohere, r#"{"message":"input is \"a\", expected b"}"#),
            (&field, Schema::Ollama, r#"{"error":"input is \"a\", expected b"}"#),
            (
                &server,
                Schema::Tei,
                r#"{"error":"512 requests wait; send fewer at once","error_type":"Overloaded"}"#,
            ),
            (
                &server,
                Schema::OpenAi,
                r#"{"error":{"message":"512 requests wait; send fewer at once","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}"#,
            ),
            (&server, Schema::Plain, r#"{"error":"512 requests wait; send fewer at once"}"#),
        ] {
            assert_eq!(String::from_utf8(fault.body(schema)).unwrap(), expected);
        }
    }
}
