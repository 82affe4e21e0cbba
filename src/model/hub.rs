//! The Hugging Face cache, and the hub behind it.
//!
//! Files lie where every Hugging Face tool looks for them: `models--ORG--NAME/snapshots/COMMIT/…`, with
//! `refs/BRANCH` naming the commit. The reference is written after the last file, so a commit that a reference
//! names is there whole.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context, Result, bail};
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::files::Source;

/// How weights in pickle form become usable.
pub const CONVERT: &str = "pickles can run code, so Sconce does not read them: convert the model once with \
    transformers (AutoModel.from_pretrained(DIR).save_pretrained(OUT))";

/// Downloads that are tried again when the connection breaks in the middle.
const ATTEMPTS: u32 = 3;

/// The folder of a model's snapshot: from the cache if it is whole there, else from the hub.
///
/// # Errors
/// If the model is not in the cache and the hub may not or cannot be asked, or refuses.
pub fn snapshot(source: &Source) -> Result<PathBuf> {
    let place = Place::of(source);
    if let Some(folder) = place.cached(&source.revision) {
        return Ok(folder);
    }
    if source.offline {
        bail!(
            "model {} (revision {}) is not in the cache at {}, and the network is not to be used: run `sconce \
             download {}` with a network once, or pass --model DIR",
            source.model,
            source.revision,
            place.cache.path().display(),
            source.model
        );
    }
    place.download(source)
}

/// Where the cache and the hub are, and who asks.
struct Place {
    cache: Cache,
    endpoint: String,
    token: Option<String>,
    /// The model's folder in the cache.
    folder: PathBuf,
}

impl Place {
    /// From the environment that all Hugging Face tools share.
    fn of(source: &Source) -> Self {
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || env::home_dir().unwrap_or_default().join(".cache");
            cache.unwrap_or_else(home).join("huggingface")
        });
        let token = set("HF_TOKEN").or_else(|| {
            let path = set("HF_TOKEN_PATH").map(PathBuf::from).unwrap_or_else(|| home.join("token"));
            fs::read_to_string(path)
                .ok()
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty())
        });
        let cache = set("HF_HUB_CACHE").map(PathBuf::from).unwrap_or_else(|| home.join("hub"));
        let repo = Repo::model(source.model.clone());
        Place {
            folder: cache.join(repo.folder_name()),
            cache: Cache::new(cache),
            endpoint: set("HF_ENDPOINT")
                .map(|url| url.trim_end_matches('/').to_owned())
                .unwrap_or_else(|| "https://huggingface.co".into()),
            token,
        }
    }

    /// The snapshot of a revision if the cache has all of it.
    fn cached(&self, revision: &str) -> Option<PathBuf> {
        let commit = match fs::read_to_string(self.folder.join("refs").join(revision)) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => revision.to_owned(),
        };
        let snapshot = self.folder.join("snapshots").join(&commit);
        let absent = self.folder.join(".no_exist").join(&commit);
        let whole = ["config.json", "tokenizer.json", "model.safetensors"].iter().all(|f| snapshot.join(f).exists())
            // Another tool may have fetched the weights without the pipeline; only a known absence counts.
            && (snapshot.join("modules.json").exists() || absent.join("modules.json").exists());
        whole.then_some(snapshot)
    }

    /// Brings the files that Sconce needs into the cache.
    fn download(&self, source: &Source) -> Result<PathBuf> {
        let api = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false)
            .with_user_agent("sconce", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| self.explain(source, "its list of files", &error))?;
        let branch = Repo::with_revision(source.model.clone(), RepoType::Model, source.revision.clone());
        let (commit, names) = self.list(source, &api.repo(branch.clone()))?;
        let wanted = choose(&source.model, &names)?;

        // Files are asked for by commit: a branch that moves meanwhile cannot mix two states.
        let pinned = api.repo(Repo::with_revision(source.model.clone(), RepoType::Model, commit.clone()));
        let snapshot = self.folder.join("snapshots").join(&commit);
        for name in wanted {
            if !snapshot.join(name).exists() {
                self.fetch(source, &pinned, name)?;
            }
        }
        self.finish(&branch, &commit, &names)
            .with_context(|| format!("cannot write to the cache at {}", self.cache.path().display()))?;
        Ok(snapshot)
    }

    /// Notes what the commit lacks, and lets the branch point to it.
    fn finish(&self, branch: &Repo, commit: &str, names: &[String]) -> std::io::Result<()> {
        if !names.iter().any(|name| name == "modules.json") {
            let absent = self.folder.join(".no_exist").join(commit);
            fs::create_dir_all(&absent)?;
            fs::write(absent.join("modules.json"), "")?;
        }
        if branch.revision() != commit {
            self.cache.repo(branch.clone()).create_ref(commit)?;
            // hf-hub left a reference under the commit's own name, which other tools would list.
            let _ = fs::remove_file(self.folder.join("refs").join(commit));
        }
        Ok(())
    }

    /// The commit of a revision and the names of its files.
    fn list(&self, source: &Source, repo: &ApiRepo) -> Result<(String, Vec<String>)> {
        let request = repo.info_request().config().http_status_as_error(false).build();
        let mut response = match request.call() {
            Ok(response) => response,
            Err(error) => bail!(self.unreachable(source, &error.to_string())),
        };
        let status = response.status().as_u16();
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
        if status != 200 {
            if status == 404 && (code == Some("RevisionNotFound") || source.revision != "main") {
                bail!(
                    "model {} has no revision {:?} at {}; check --revision",
                    source.model,
                    source.revision,
                    self.endpoint
                );
            }
            bail!(self.refused(source, status, "its list of files"));
        }
        let listing: Option<Value> = response.body_mut().read_json().ok();
        let listed = listing.as_ref().and_then(|listing| {
            let commit = listing.get("sha")?.as_str()?;
            let files = listing.get("siblings")?.as_array()?;
            let names = files.iter().map(|file| Some(file.get("rfilename")?.as_str()?.to_owned()));
            Some((commit.to_owned(), names.collect::<Option<Vec<_>>>()?))
        });
        listed.with_context(|| {
            format!("{} does not answer like a Hugging Face hub; check HF_ENDPOINT", self.endpoint)
        })
    }

    /// Downloads one file, going on where an earlier attempt stopped.
    fn fetch(&self, source: &Source, repo: &ApiRepo, name: &str) -> Result<()> {
        let mut attempt = 1;
        let pointer = loop {
            let bar = ProgressBar::new(0);
            if !source.progress {
                bar.set_draw_target(ProgressDrawTarget::hidden());
            }
            match repo.download_with_progress(name, bar) {
                Ok(pointer) => break pointer,
                Err(ApiError::IoError(_)) if attempt < ATTEMPTS => thread::sleep(Duration::from_secs(1)),
                // What lies in the cache is not the beginning of this file: start over.
                Err(error) if attempt < ATTEMPTS && (status(&error) == Some(416) || is_stale(&error)) => {
                    self.remove_parts()
                }
                Err(error) => return Err(self.explain(source, name, &error)),
            }
            attempt += 1;
        };
        self.verify(&pointer, name)
    }

    /// Compares a file with its name in the cache, which for large files is the SHA-256 of the content.
    fn verify(&self, pointer: &Path, name: &str) -> Result<()> {
        let blob = fs::canonicalize(pointer)?;
        let expected = blob.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if expected.len() != 64 || !expected.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(());
        }
        let mut hash = Sha256::new();
        std::io::copy(&mut fs::File::open(&blob)?, &mut hash)?;
        let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found != expected {
            fs::remove_file(pointer)?;
            fs::remove_file(&blob)?;
            bail!(
                "{name} arrived damaged (its SHA-256 is not the hub's) and was removed; run the command again"
            );
        }
        Ok(())
    }

    fn remove_parts(&self) {
        for entry in fs::read_dir(self.folder.join("blobs")).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "part") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// One sentence on a failed download.
    fn explain(&self, source: &Source, what: &str, error: &ApiError) -> anyhow::Error {
        let sentence = match error {
            ApiError::RequestError(_) | ApiError::TooManyRetries(_) => match status(error) {
                Some(code) => self.refused(source, code, what),
                None => self.unreachable(source, &error.to_string()),
            },
            ApiError::IoError(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                format!("the disk of the cache at {} is full; free some space", self.cache.path().display())
            }
            ApiError::IoError(error) => format!(
                "the download of {what} of {} broke off ({error}); run the command again to go on from there",
                source.model
            ),
            ApiError::LockAcquisition(path) => format!(
                "another process is downloading {what} of {}; wait for it, or remove {}",
                source.model,
                path.display()
            ),
            _ => format!(
                "{} does not answer like a Hugging Face hub for {what} ({error}); check HF_ENDPOINT",
                self.endpoint
            ),
        };
        anyhow::Error::msg(sentence)
    }

    fn unreachable(&self, source: &Source, reason: &str) -> String {
        format!(
            "model {} is not in the cache at {}, and the hub at {} cannot be reached ({reason}); check the network \
             and HF_ENDPOINT, or pass --model DIR",
            source.model,
            self.cache.path().display(),
            self.endpoint
        )
    }

    fn refused(&self, source: &Source, status: u16, what: &str) -> String {
        let Self { endpoint, .. } = self;
        let model = &source.model;
        match (status, &self.token) {
            (401 | 403, Some(_)) => format!(
                "the hub at {endpoint} refuses {what} of {model} to your token (status {status}); check HF_TOKEN, \
                 and that its account has been given access at {endpoint}/{model}"
            ),
            (401 | 403, None) => format!(
                "the hub at {endpoint} refuses {what} of {model} (status {status}): there is no such model, or it \
                 is private or gated; check the id, or set HF_TOKEN"
            ),
            (404, _) => format!("the hub at {endpoint} has no {what} of {model}; check the id of the model"),
            _ => format!("the hub at {endpoint} answers {status} for {what} of {model}; try again later"),
        }
    }
}

/// The files that Sconce reads, the weights last: where they are, everything is.
fn choose<'a>(model: &str, names: &'a [String]) -> Result<Vec<&'a str>> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    for required in ["config.json", "tokenizer.json", "model.safetensors"] {
        if has(required) {
            continue;
        }
        if required == "model.safetensors" && has("pytorch_model.bin") {
            bail!("model {model} has its weights only as pytorch_model.bin; {CONVERT}");
        }
        bail!("model {model} has no {required} on the hub, which Sconce needs; choose another model");
    }
    let small = names.iter().map(String::as_str).filter(|name| match name.split_once('/') {
        None => [
            "config.json",
            "modules.json",
            "sentence_bert_config.json",
            "config_sentence_transformers.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        .contains(name),
        // 1_Pooling/config.json
        Some((folder, file)) => folder.starts_with(|c: char| c.is_ascii_digit()) && file == "config.json",
    });
    Ok(small.chain(["model.safetensors"]).collect())
}

/// The HTTP status in an error, if it is one.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        ApiError::TooManyRetries(error) => status(error),
        _ => None,
    }
}

fn is_stale(error: &ApiError) -> bool {
    matches!(error, ApiError::InvalidResume)
}

/// A variable of the environment that is set to something.
fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
