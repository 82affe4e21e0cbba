//! `sconce serve`: its arguments, and the options that they become.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use clap::builder::PossibleValue;

use super::args::{DEFAULT_MODEL, HardwareArgs, HubArgs, VectorArgs, VerbosityArgs, size};
use super::choice::{named, one_of};
use super::resolve::{for_vectors, model_on, source, vectors, verbosity};
use crate::error::UsageError;
use crate::load::ModelOptions;
use crate::serve::{Address, LogFormat, ServeOptions, ServedModel, TlsFiles};
use crate::task::{OnLong, VectorOptions};

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce serve -m BAAI/bge-small-en-v1.5                     embeddings on http://127.0.0.1:8080
  sconce serve -m BAAI/bge-small-en-v1.5 -m BAAI/bge-reranker-base --port 9000
  sconce serve -m small=./model --dtype int8 --api-key-file keys.txt --host 0.0.0.0";

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Model to serve, as a directory or an id on the Hugging Face Hub; NAME=MODEL gives it another name in
    /// requests. May be repeated: the first one that a route can use is its default
    #[arg(short, long = "model", value_name = "[NAME=]DIR or HUB_ID", env = "SCONCE_MODEL", default_value = DEFAULT_MODEL, help_heading = "Model")]
    pub models: Vec<String>,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    pub vectors: VectorArgs,

    /// Longer texts: truncate, error, mean
    ///
    /// A request may say otherwise. mean: encode the text in chunks and take the mean of their vectors,
    /// weighted by tokens
    #[arg(long, value_name = "ACTION", default_value = "truncate", value_parser = on_long(), help_heading = "Vectors")]
    pub on_long: OnLong,

    /// Address to listen on
    #[arg(
        long,
        value_name = "HOST",
        env = "SCONCE_HOST",
        default_value = "127.0.0.1",
        help_heading = "Server"
    )]
    pub host: String,

    /// Port to listen on; 0: a free one, which is printed, with --quiet, too
    #[arg(
        short,
        long,
        value_name = "PORT",
        env = "SCONCE_PORT",
        default_value_t = 8080,
        help_heading = "Server"
    )]
    pub port: u16,

    /// Listen on a Unix socket in place of a host and a port
    #[cfg(unix)]
    #[arg(long, value_name = "PATH", env = "SCONCE_UNIX_SOCKET", help_heading = "Server")]
    pub unix_socket: Option<PathBuf>,

    /// Certificate of the server in PEM: https in place of http
    #[arg(long, value_name = "FILE", env = "SCONCE_TLS_CERT", requires = "tls_key", help_heading = "Server")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", env = "SCONCE_TLS_KEY", requires = "tls_cert", help_heading = "Server")]
    pub tls_key: Option<PathBuf>,

    /// Origin (scheme, host and port) of pages that may use the server from a browser, or * for all; may be
    /// repeated. Others are answered with 403
    #[arg(long, value_name = "ORIGIN", env = "SCONCE_CORS_ALLOW_ORIGIN", value_parser = origin, help_heading = "Server")]
    pub cors_allow_origin: Vec<String>,

    /// Maximum tokens of a batch of several texts [default: by the processor and --dtype]
    #[arg(long, value_name = "N", env = "SCONCE_MAX_BATCH_TOKENS", value_parser = count, help_heading = "Server")]
    pub max_batch_tokens: Option<usize>,

    /// Maximum requests that wait or run; more are answered with 429
    #[arg(long, value_name = "N", env = "SCONCE_MAX_CONCURRENT_REQUESTS", default_value = "512", value_parser = count, help_heading = "Server")]
    pub max_concurrent_requests: usize,

    /// Maximum texts of a request
    #[arg(long, value_name = "N", env = "SCONCE_MAX_CLIENT_BATCH_SIZE", default_value = "2048", value_parser = count, help_heading = "Server")]
    pub max_client_batch_size: usize,

    /// Maximum bytes of the body of a request, such as 32MB
    #[arg(
        long,
        value_name = "SIZE",
        env = "SCONCE_PAYLOAD_LIMIT",
        default_value = "32MB",
        value_parser = payload,
        help_heading = "Server"
    )]
    pub payload_limit: ByteSize,

    /// Maximum memory of the process, such as 4GB: weights, the batches of all workers, and requests with
    /// their answers. A model with larger weights is not loaded, and requests that do not fit beside models
    /// and batches are refused with 413 or 429, but for one at --payload-limit [default: four fifths of the
    /// memory of the machine or the container]
    #[arg(long, value_name = "SIZE", env = "SCONCE_MAX_MEMORY", value_parser = size, help_heading = "Server")]
    pub max_memory: Option<ByteSize>,

    /// Maximum time of a request, in seconds; then it is answered with 504
    #[arg(long, value_name = "SECONDS", env = "SCONCE_REQUEST_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Server")]
    pub request_timeout: u32,

    /// How long a stop waits for admitted requests, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        env = "SCONCE_SHUTDOWN_TIMEOUT",
        default_value_t = 30,
        help_heading = "Server"
    )]
    pub shutdown_timeout: u32,

    /// File with the keys of clients: each line that is not blank is one, without the blanks around it; also
    /// SCONCE_API_KEY with one key. Requests without one are answered with 401
    #[arg(long, value_name = "FILE", env = "SCONCE_API_KEY_FILE", help_heading = "Server")]
    pub api_key_file: Option<PathBuf>,

    /// Format of the log on standard error
    #[arg(long, value_name = "FORMAT", env = "SCONCE_LOG_FORMAT", default_value = "text", value_parser = named::<LogFormat>(), help_heading = "Server")]
    pub log_format: LogFormat,

    /// Ask the server at this address whether it answers requests, and exit with 0 or 1: the health check of
    /// a container. With --tls-cert, whether it takes connections
    #[arg(long, help_heading = "Server")]
    pub probe: bool,

    /// Stop when standard input ends, as it does with the process that holds its other end, however that ends
    #[arg(long, hide = true)]
    pub stop_with_input: bool,

    #[command(flatten)]
    pub hardware: HardwareArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// A number from 1 on.
fn count(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(0) | Err(_) => Err("expected a number from 1 on".into()),
        Ok(count) => Ok(count),
    }
}

/// A size of bodies, of which none would be taken with 0.
fn payload(value: &str) -> Result<ByteSize, String> {
    match size(value)? {
        ByteSize(0) => Err("expected a size above 0, for example 32MB".into()),
        size => Ok(size),
    }
}

/// An origin as browsers send it, or `*`.
fn origin(value: &str) -> Result<String, String> {
    let is_origin = |(scheme, host): (&str, &str)| {
        let is_host = |c: char| c.is_ascii_graphic() && !"/?#@*".contains(c) && !c.is_ascii_uppercase();
        !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !host.is_empty()
            && host.chars().all(is_host)
    };
    match value {
        "*" | "null" => Ok(value.into()),
        _ if value.split_once("://").is_some_and(is_origin) => Ok(value.into()),
        _ => Err(
            "expected a scheme and a host, for example https://app.example or http://localhost:3000, or *"
                .into(),
        ),
    }
}

/// What becomes of long texts: all but leaving them out, as each text of a request has an answer.
fn on_long() -> impl clap::builder::TypedValueParser<Value = OnLong> {
    one_of(vec![
        (PossibleValue::new("truncate"), OnLong::Truncate),
        (PossibleValue::new("error"), OnLong::Error),
        (PossibleValue::new("mean"), OnLong::Mean),
    ])
}

/// The options of `serve`.
///
/// # Errors
/// [`UsageError`] if arguments contradict each other.
pub(super) fn options(args: ServeArgs) -> Result<ServeOptions> {
    let of_options = VectorOptions { on_long: args.on_long, ..vectors(&args.vectors) };
    let normalize = if args.vectors.no_normalize { None } else { Some(true) };
    let models = args.models.iter().map(|model| served(model, &args)).collect::<Result<_>>()?;
    Ok(ServeOptions {
        models,
        vectors: of_options,
        normalize,
        address: address(&args),
        tls: tls(&args),
        origins: args.cors_allow_origin,
        max_batch_tokens: args.max_batch_tokens,
        max_concurrent_requests: args.max_concurrent_requests,
        max_client_batch_size: args.max_client_batch_size,
        payload_limit: args.payload_limit.as_u64(),
        max_memory: args.max_memory.map(|size| size.as_u64()),
        request_timeout: Duration::from_secs(args.request_timeout.into()),
        shutdown_timeout: Duration::from_secs(args.shutdown_timeout.into()),
        keys: keys(args.api_key_file.as_deref())?,
        stop_with_input: args.stop_with_input,
        log_format: args.log_format,
        verbosity: verbosity(&args.verbosity),
    })
}

/// Where to listen.
pub(super) fn address(args: &ServeArgs) -> Address {
    #[cfg(unix)]
    if let Some(path) = &args.unix_socket {
        return Address::Unix(path.clone());
    }
    Address::Tcp(args.host.clone(), args.port)
}

/// The certificate of the server.
pub(super) fn tls(args: &ServeArgs) -> Option<TlsFiles> {
    let (certificate, key) = args.tls_cert.clone().zip(args.tls_key.clone())?;
    Some(TlsFiles { certificate, key })
}

/// A model with its name in requests: what is before `=`, else the id, or the last part of a directory.
fn served(model: &str, args: &ServeArgs) -> Result<ServedModel> {
    let (name, model) = match model.split_once('=') {
        Some(("", _)) => bail!(UsageError(format!("--model {model}: the name is empty; pass NAME=MODEL"))),
        Some((_, "")) => bail!(UsageError(format!("--model {model}: the model is empty; pass NAME=MODEL"))),
        Some((name, model)) => (name.to_owned(), model),
        None => (name_of(model), model),
    };
    let options = model_on(&args.hardware, source(model.to_owned(), &args.hub, &args.verbosity)?)?;
    let max_memory = args.max_memory.map(|size| size.as_u64());
    let options = ModelOptions { max_memory, ..for_vectors(options, &args.vectors) };
    Ok(ServedModel { name, options })
}

/// The name of a model that is given without one.
fn name_of(model: &str) -> String {
    let path = Path::new(model);
    match path.file_name().filter(|_| path.is_dir()) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => model.to_owned(),
    }
}

/// The keys of clients: one per line of the file, and the one of the environment.
fn keys(file: Option<&Path>) -> Result<Vec<String>> {
    let mut keys: Vec<String> =
        std::env::var("SCONCE_API_KEY").into_iter().filter(|key| !key.is_empty()).collect();
    if let Some(path) = file {
        let text = fs::read_to_string(path)
            .with_context(|| format!("--api-key-file {}: cannot be read; check the path", path.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        keys.extend(lines.map(str::to_owned));
        if keys.is_empty() {
            bail!("--api-key-file {}: the file has no keys; write one per line", path.display());
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_that_browsers_send() {
        for (value, expected) in [
            ("*", true),
            ("null", true),
            ("https://app.example", true),
            ("http://localhost:3000", true),
            ("http://[::1]:3000", true),
            ("chrome-extension://abcdef", true),
            ("", false),
            ("foo", false),
            ("app.example:443", false),
            ("https://", false),
            ("://app.example", false),
            ("https://app.example/", false),
            ("https://App.example", false),
            ("https://*.example", false),
            ("https://a.example, https://b.example", false),
        ] {
            assert_eq!(origin(value).is_ok(), expected, "{value:?}");
        }
    }
}
