//! Lines about requests on standard error. No text, vector or key is in them.

use serde::Serialize;

use super::schema::Fault;
use super::service::Reply;
use crate::named::names;
use crate::sys::console::Verbosity;
use crate::sys::terminal;

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Lines for people: faults of the server, and with `-v` all requests.
    #[default]
    Text,
    /// A JSON object for each request.
    Json,
}

names!(LogFormat {
    Text => "text",
    Json => "json",
});

/// What is written about requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log {
    pub format: LogFormat,
    pub verbosity: Verbosity,
}

#[derive(Serialize)]
struct Line<'a> {
    request_id: &'a str,
    route: &'a str,
    status: u16,
    seconds: f64,
    texts: usize,
    tokens: usize,
    truncated: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Log {
    /// Writes a line in JSON that says where the server listens, as the first one.
    pub(super) fn listening(&self, listening: &str) {
        terminal::eprint_line(&serde_json::json!({ "message": listening }).to_string());
    }

    /// Writes a line about a request.
    pub(super) fn request(
        &self,
        route: &str,
        status: u16,
        seconds: f64,
        reply: Option<&Reply>,
        request_id: &str,
        fault: Option<&Fault>,
    ) {
        let is_wanted = match (self.format, self.verbosity) {
            (_, Verbosity::Quiet) => false,
            (LogFormat::Json, _) | (LogFormat::Text, Verbosity::Verbose) => true,
            (LogFormat::Text, Verbosity::Normal) => status >= 500 && status != 503,
        };
        if !is_wanted {
            return;
        }
        // The message of a fault may have a part of the request; its kind does not.
        let error = fault.map(|fault| format!("{:?}", fault.kind));
        let (texts, tokens, truncated) =
            reply.map_or((0, 0, 0), |reply| (reply.texts, reply.tokens, reply.truncated.len()));
        let line = Line { request_id, route, status, seconds, texts, tokens, truncated, error };
        match self.format {
            LogFormat::Json => terminal::eprint_line(&serde_json::to_string(&line).unwrap_or_default()),
            LogFormat::Text => terminal::eprint_message(&line.text()),
        }
    }
}

impl Line<'_> {
    fn text(&self) -> String {
        let Line { request_id, route, status, seconds, texts, tokens, error, .. } = self;
        let error = error.as_ref().map(|error| format!(" · {error}")).unwrap_or_default();
        format!(
            "{status} {route} · {texts} texts · {tokens} tokens · {:.1} ms{error} · {request_id}",
            1e3 * seconds
        )
    }
}
