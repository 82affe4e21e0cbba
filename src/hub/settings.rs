//! The settings of the hub, by the variables that `huggingface_hub` reads.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::sys::environment::{is_true, path, text};
use crate::sys::regular_file;

/// Default of `HF_HUB_DOWNLOAD_TIMEOUT`: seconds without data after which a server counts as stalled.
const TIMEOUT: f64 = 30.0;
/// Maximum of that timeout in seconds: a day.
const MAX_TIMEOUT: f64 = 86_400.0;
/// Maximum size of the file of a token.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

/// What is the same for all models.
pub(super) struct Settings {
    /// The URL of the hub.
    pub endpoint: String,
    pub token: Option<String>,
    /// Maximum time without a byte from the server.
    pub timeout: Duration,
    /// Whether the files of a snapshot are links to blobs; otherwise they are copies.
    pub has_links: bool,
    /// Why nothing can be downloaded with these settings: a sentence.
    pub fault: Option<String>,
}

impl Settings {
    /// The settings of the environment.
    pub(super) fn read() -> Self {
        let token = if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token() };
        let is_malformed = |token: &String| !token.bytes().all(|b| b.is_ascii_graphic());
        let fault = token.as_ref().is_some_and(is_malformed).then(|| {
            "the token of HF_TOKEN, of the file HF_TOKEN_PATH or of the token file in HF_HOME has characters that no token has; \
             copy it from the hub again"
                .to_owned()
        });
        let (timeout, fault) = match seconds("HF_HUB_DOWNLOAD_TIMEOUT") {
            Ok(seconds) => (seconds.unwrap_or(TIMEOUT).min(MAX_TIMEOUT), fault),
            Err(reason) => (TIMEOUT, fault.or(Some(reason))),
        };
        Settings {
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token,
            timeout: Duration::from_secs_f64(timeout),
            has_links: !is_true("HF_HUB_DISABLE_SYMLINKS"),
            fault,
        }
    }
}

/// The directory of the cache.
pub(super) fn cache_directory() -> Result<PathBuf> {
    let given = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
    let cache = given.unwrap_or_else(|| home().join("hub"));
    if cache.iter().next().is_some_and(|first| first.as_encoded_bytes().starts_with(b"~")) {
        bail!(
            "the cache of models is {}, and there is no user of that name; write the path in HF_HOME or HF_HUB_CACHE in full",
            cache.display()
        )
    }
    Ok(std::path::absolute(cache)?)
}

/// The directory of all Hugging Face tools.
fn home() -> PathBuf {
    path("HF_HOME").unwrap_or_else(|| {
        let cache = path("XDG_CACHE_HOME");
        cache.unwrap_or_else(|| env::home_dir().unwrap_or_default().join(".cache")).join("huggingface")
    })
}

/// The token of the environment, else that of the file in which Hugging Face tools store it.
fn token() -> Option<String> {
    let clean = |token: String| token.replace(['\r', '\n'], "").trim().to_owned();
    let given = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).map(clean);
    given.filter(|token| !token.is_empty()).or_else(|| {
        let file = path("HF_TOKEN_PATH").unwrap_or_else(|| home().join("token"));
        read_text(&file).map(clean).filter(|token| !token.is_empty())
    })
}

/// The text of a file that has one line, such as a reference or a token. `None` if it cannot be read.
pub(super) fn read_text(path: &Path) -> Option<String> {
    String::from_utf8(regular_file::read(path, MAX_TOKEN_BYTES).ok()?).ok()
}

/// The number of seconds in a variable; `None` if it is not set, or 0, which `huggingface_hub` takes for its
/// default.
///
/// # Errors
/// If it is no number of seconds: a sentence.
fn seconds(variable: &str) -> Result<Option<f64>, String> {
    let Some(value) = text(variable) else { return Ok(None) };
    match value.trim().parse::<f64>() {
        Ok(seconds) if seconds >= 0.0 => Ok(Some(seconds).filter(|seconds| *seconds > 0.0)),
        _ => {
            Err(format!("{variable} is {value:?}, which is no number of seconds; set it to one, such as 30"))
        }
    }
}
