//! The Hugging Face cache, and the hub behind it.
//!
//! Files lie where every Hugging Face tool looks for them: `models--ORG--NAME/snapshots/COMMIT/…`, with
//! `refs/BRANCH` naming the commit. The reference is written after the last file, so a commit that a reference
//! names is there whole.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Error, Result, bail};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::pipeline::{Module, read_modules};
use super::weights::read_index;
use super::{
    CONVERT_PIPELINE, INDEX, NO_TOKENIZER, SENTENCE_CONFIGS, Source, other_weights, tokenizer_files,
};

/// How often a file is tried where the connection breaks, or what comes is not the file.
const ATTEMPTS: u32 = 3;

/// What takes the place of a vocabulary, or changes how it or a `tokenizer.json` is read.
const BESIDE_VOCABULARY: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];

/// How long a hub may take to say anything at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// What decides how a tokenizer is read.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// What sentence-transformers says of a model as a whole: its prompts, and what it is.
const SETTINGS: &str = "config_sentence_transformers.json";

/// What the cache has of a model.
enum Cached {
    Nothing,
    /// All that is needed, but it is not known whether this file, which changes vectors, exists.
    Unsure(PathBuf, &'static str),
    Whole(PathBuf),
}

/// The folder of a model's snapshot: from the cache if it is whole there, else from the hub. Where the cache may lack a
/// file that changes vectors and the hub does not say whether it exists, a warning comes with the folder.
///
/// # Errors
/// If the model is not in the cache and the hub may not or cannot be asked, or refuses.
pub fn snapshot(source: &Source) -> Result<(PathBuf, Option<String>)> {
    let hub = Hub::of(source)?;
    let (folder, file) = match hub.cached() {
        Cached::Whole(folder) => return Ok((folder, None)),
        Cached::Unsure(folder, file) => (folder, file),
        Cached::Nothing if source.offline => {
            let Source { model, revision, .. } = source;
            let option = if revision == "main" { String::new() } else { format!(" --revision {revision}") };
            bail!(
                "{}, and the network is not to be used (--offline): run `sconce download {model}{option}` with a \
                 network once, or pass --model DIR",
                hub.absence()
            );
        }
        Cached::Nothing => return hub.download().map(|folder| (folder, None)),
    };
    let reason = match source.offline {
        true => Error::msg("the network is not to be used (--offline)"),
        false => match hub.download() {
            Ok(folder) => return Ok((folder, None)),
            Err(error) => error,
        },
    };
    let warning = format!(
        "the cache has {} without {file}, and whether the hub has that file is not known: {reason:#}; texts may be cut at \
         another length, or have another casing or prompt, than the model's own files say",
        source.model
    );
    Ok((folder, Some(warning)))
}

/// A model, its place in the cache, and the hub that has it.
struct Hub<'a> {
    source: &'a Source,
    cache: Cache,
    /// The model's folder in the cache.
    folder: PathBuf,
    endpoint: String,
    token: Option<String>,
}

impl<'a> Hub<'a> {
    /// From the environment that all Hugging Face tools share.
    ///
    /// # Errors
    /// If there is no working directory for a relative cache folder.
    fn of(source: &'a Source) -> Result<Self> {
        let home = match (set("HF_HOME"), set("XDG_CACHE_HOME")) {
            (Some(home), _) => PathBuf::from(home),
            (None, Some(cache)) => Path::new(&cache).join("huggingface"),
            (None, None) => env::home_dir().unwrap_or_default().join(".cache/huggingface"),
        };
        let token = set("HF_TOKEN").or_else(|| {
            let file = set("HF_TOKEN_PATH").map_or(home.join("token"), PathBuf::from);
            fs::read_to_string(file).ok()
        });
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        // hf-hub links files relative to each other, and asks for absolute paths to do so.
        let cache = std::path::absolute(set("HF_HUB_CACHE").map_or(home.join("hub"), PathBuf::from))?;
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Ok(Hub {
            source,
            folder: cache.join(Repo::model(source.model.clone()).folder_name()),
            cache: Cache::new(cache),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
        })
    }

    /// The snapshot, as far as the cache has it.
    fn cached(&self) -> Cached {
        let revision = &self.source.revision;
        let commit = fs::read_to_string(self.folder.join("refs").join(revision));
        let commit = commit.as_ref().map_or(revision.as_str(), |commit| commit.trim());
        let snapshot = self.folder.join("snapshots").join(commit);
        // Another tool may have fetched a part of the model; only a known absence counts.
        let absent = |name: &str| self.folder.join(".no_exist").join(commit).join(name).exists();
        let modules = read_modules(&snapshot.join("modules.json"));
        let modules = match &modules {
            Ok(modules) => &modules[..],
            Err(_) if absent("modules.json") => &[],
            Err(_) => return Cached::Nothing,
        };
        let encoder = modules.iter().find_map(Module::encoder).unwrap_or_default();
        let beside = |name: &str| Path::new(encoder).join(name);
        let has = |name: &str| snapshot.join(beside(name)).exists();
        let lacks = |name: &str| absent(&beside(name).display().to_string());
        let pipeline = modules.iter().flat_map(Module::files).all(|file| snapshot.join(file).exists());
        let tokenizer = has("tokenizer.json")
            || tokenizer_files(has).is_ok_and(|files| files.is_some())
                && BESIDE_VOCABULARY.into_iter().all(|name| has(name) || lacks(name));
        let index = snapshot.join(beside(INDEX));
        let weights = has("model.safetensors")
            || read_index(&index).is_ok_and(|index| index.values().all(|shard| has(shard)));
        if !(pipeline && weights && tokenizer && has("config.json")) {
            return Cached::Nothing;
        }
        let configured =
            SENTENCE_CONFIGS.iter().any(|name| has(name)) || SENTENCE_CONFIGS.into_iter().all(lacks);
        match () {
            () if !has(TOKENIZER_CONFIG) && !lacks(TOKENIZER_CONFIG) => {
                Cached::Unsure(snapshot, TOKENIZER_CONFIG)
            }
            () if modules.is_empty() => Cached::Whole(snapshot),
            () if !configured => Cached::Unsure(snapshot, SENTENCE_CONFIGS[0]),
            () if !snapshot.join(SETTINGS).exists() && !absent(SETTINGS) => {
                Cached::Unsure(snapshot, SETTINGS)
            }
            () => Cached::Whole(snapshot),
        }
    }

    /// Brings the files that Sconce needs into the cache.
    fn download(&self) -> Result<PathBuf> {
        if self.token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            bail!(
                "what stands in HF_TOKEN, in the file of HF_TOKEN_PATH or in the token file of HF_HOME cannot be a \
                 token; take it from the hub anew"
            );
        }
        let api = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false)
            .with_user_agent("sconce", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| self.explain("its list of files", &error))?;
        let repo = |revision: &str| {
            Repo::with_revision(self.source.model.clone(), RepoType::Model, revision.to_owned())
        };
        let branch = repo(&self.source.revision);
        let (commit, names) = self.list(&api.repo(branch.clone()))?;
        let wanted = choose(&self.source.model, &names)?;
        fs::create_dir_all(self.folder.join("blobs")).map_err(|error| self.unusable(&error))?;
        // Files are asked for by commit: a branch that moves meanwhile cannot mix two states.
        let pinned = api.repo(repo(&commit));
        let snapshot = self.folder.join("snapshots").join(&commit);
        for name in wanted {
            if !snapshot.join(name).exists() {
                let fetched = self.fetch(&api, &pinned, name, &snapshot.join(name));
                // hf-hub notes the commit as if it were a branch.
                let _ = fs::remove_file(self.folder.join("refs").join(&commit));
                fetched?;
            }
        }
        self.finish(&branch, &commit, &names).map_err(|error| self.unusable(&error))?;
        Ok(snapshot)
    }

    /// Notes what the commit lacks, and lets the branch point to it.
    fn finish(&self, branch: &Repo, commit: &str, names: &[String]) -> io::Result<()> {
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        let folder = encoder_folder(has);
        let inside = |name: &&str| format!("{folder}{name}");
        // Beside a tokenizer.json the others hardly ever change anything.
        let whole = has(&inside(&"tokenizer.json"));
        let beside = BESIDE_VOCABULARY.iter().filter(|name| !whole || **name == TOKENIZER_CONFIG).map(inside);
        let configs = SENTENCE_CONFIGS.iter().map(inside);
        let configs: Vec<String> = match configs.clone().any(|name| has(&name)) || !has("modules.json") {
            true => Vec::new(),
            false => configs.collect(),
        };
        let settings =
            has("modules.json").then_some(SETTINGS).into_iter().chain(["modules.json"]).map(String::from);
        for name in beside.chain(configs).chain(settings).filter(|name| !has(name)) {
            let absent = self.folder.join(".no_exist").join(commit).join(name);
            fs::create_dir_all(absent.parent().unwrap_or(&absent))?;
            fs::write(absent, "")?;
        }
        if branch.revision() != commit {
            self.cache.repo(branch.clone()).create_ref(commit)?;
        }
        Ok(())
    }

    /// The commit of a revision and the names of its files.
    fn list(&self, repo: &ApiRepo) -> Result<(String, Vec<String>)> {
        let request = repo.info_request().config().http_status_as_error(false);
        let request = request.timeout_connect(Some(PATIENCE)).timeout_recv_response(Some(PATIENCE)).build();
        let mut response = request.call().map_err(|error| self.unreachable(&error.to_string()))?;
        let status = response.status().as_u16();
        if status != 200 {
            let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
            let Source { model, revision, .. } = self.source;
            if status == 404 && (code == Some("RevisionNotFound") || code.is_none() && revision != "main") {
                bail!(
                    "the hub at {} has no revision {revision:?} of {model}; check --revision",
                    self.endpoint
                );
            }
            return Err(self.refused(status, "its list of files"));
        }
        let listing: Option<Value> = response.body_mut().read_json().ok();
        let listed = listing.as_ref().and_then(|listing| {
            let commit = listing.get("sha")?.as_str().filter(|commit| is_plain(commit))?;
            let files = listing.get("siblings")?.as_array()?;
            let names = files.iter().map(|file| Some(file.get("rfilename")?.as_str()?.to_owned()));
            Some((commit.to_owned(), names.collect::<Option<Vec<_>>>()?))
        });
        listed.ok_or_else(|| self.no_hub("its list of files", "there is none in the answer"))
    }

    /// Downloads one file, going on where an earlier attempt stopped.
    fn fetch(&self, api: &Api, repo: &ApiRepo, name: &str, place: &Path) -> Result<()> {
        let explain = |error| self.explain(name, &error);
        let about = api.metadata(&repo.url(name)).map_err(explain)?;
        if !is_plain(about.etag()) {
            return Err(self.no_hub(name, "its ETag cannot name a file"));
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            let again = attempt < ATTEMPTS;
            match repo.download_with_progress(name, self.bar()) {
                Ok(pointer) if is_sound(&pointer, about.etag(), about.size())? => break,
                // What lay in the cache was the beginning of something else, or the way here is bad.
                Ok(pointer) => {
                    fs::remove_file(fs::canonicalize(&pointer)?)?;
                    fs::remove_file(&pointer)?;
                    if !again {
                        bail!(
                            "{name} of {} arrived damaged (its size or SHA-256 is not the hub's) and was removed; \
                             run the command again",
                            self.source.model
                        );
                    }
                }
                Err(ApiError::IoError(error)) if again && !is_of_the_disk(&error) => {
                    thread::sleep(Duration::from_millis(500))
                }
                // What lies in the cache is as long as the file, or longer: no beginning of it.
                Err(error)
                    if again && (status(&error) == Some(416) || matches!(error, ApiError::InvalidResume)) =>
                {
                    fs::remove_file(self.folder.join("blobs").join(about.etag()).with_extension("part"))?
                }
                // Another process is at it, and holds the lock for as long as it lives.
                Err(ApiError::LockAcquisition(_)) if place.exists() => break,
                Err(ApiError::LockAcquisition(_)) => attempt -= 1,
                Err(error) => return Err(explain(error)),
            }
        }
        Ok(())
    }

    fn bar(&self) -> ProgressBar {
        let bar = ProgressBar::new(0);
        if !self.source.progress {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        bar
    }

    /// One sentence on a failed download.
    fn explain(&self, what: &str, error: &ApiError) -> Error {
        let model = &self.source.model;
        match error {
            ApiError::RequestError(_) => match status(error) {
                Some(code) => self.refused(code, what),
                None => self.unreachable(&error.to_string()),
            },
            ApiError::IoError(error) if error.kind() == ErrorKind::StorageFull => Error::msg(format!(
                "the disk of the cache at {} is full; free some space",
                self.cache.path().display()
            )),
            ApiError::IoError(error) if is_of_the_disk(error) => self.unusable(error),
            ApiError::IoError(error) => Error::msg(format!(
                "the download of {what} of {model} broke off ({error}); run the command again to go on from there"
            )),
            _ => self.no_hub(what, &error.to_string()),
        }
    }

    /// The beginning of a sentence on a model that has to be fetched.
    fn absence(&self) -> String {
        let there = if self.folder.exists() { "not whole in the cache" } else { "not in the cache" };
        let Source { model, revision, .. } = self.source;
        format!("model {model} (revision {revision}) is {there} at {}", self.cache.path().display())
    }

    fn unreachable(&self, reason: &str) -> Error {
        Error::msg(format!(
            "{}, and the hub at {} cannot be reached ({reason}); check the network and HF_ENDPOINT, or pass \
             --model DIR",
            self.absence(),
            self.endpoint
        ))
    }

    fn unusable(&self, error: &io::Error) -> Error {
        let cache = self.cache.path().display();
        Error::msg(format!(
            "cannot use the cache at {cache} ({error}); set HF_HOME to a folder that can be written"
        ))
    }

    fn no_hub(&self, what: &str, reason: &str) -> Error {
        Error::msg(format!(
            "{} does not answer like a Hugging Face hub for {what} of {} ({reason}); check HF_ENDPOINT",
            self.endpoint, self.source.model
        ))
    }

    fn refused(&self, status: u16, what: &str) -> Error {
        let Hub { endpoint, .. } = self;
        let model = &self.source.model;
        Error::msg(match (status, &self.token) {
            (401 | 403, Some(_)) => format!(
                "the hub at {endpoint} refuses {what} of {model} to your token (status {status}); check HF_TOKEN, \
                 and that its account has been given access at {endpoint}/{model}"
            ),
            (401 | 403, None) => format!(
                "the hub at {endpoint} refuses {what} of {model} (status {status}): there is no such model, or it \
                 is private or gated; check the id, or set HF_TOKEN"
            ),
            (404, _) => {
                format!("the hub at {endpoint} has not {what} of {model}; check the id and --revision")
            }
            _ => format!("the hub at {endpoint} answers {status} for {what} of {model}; try again later"),
        })
    }
}

/// The files that Sconce reads, the weights last: where they are, everything is.
fn choose<'a>(model: &str, names: &'a [String]) -> Result<Vec<&'a str>> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let folder = encoder_folder(has);
    let inside = |wanted: &str| has(&format!("{folder}{wanted}"));
    if !inside("config.json") {
        bail!("model {model} has no config.json on the hub, which Sconce needs; choose another model")
    }
    if !inside("model.safetensors") && !inside(INDEX) {
        let files = names.iter().filter_map(|name| name.strip_prefix(folder));
        match other_weights(files) {
            Some(found) => bail!("model {model} {found}"),
            None => bail!(
                "model {model} has no model.safetensors on the hub, which Sconce needs; choose another model"
            ),
        }
    }
    let tokenizer = match tokenizer_files(inside) {
        Ok(Some(files)) => files,
        Ok(None) => {
            bail!("model {model} {NO_TOKENIZER} on the hub, which Sconce needs; choose another model")
        }
        Err(why) => bail!("model {model} {why}"),
    };
    // 1_Pooling/config.json, 2_Dense/model.safetensors
    let module = |name: &&str, wanted: &[&str]| match name.split_once('/') {
        Some((folder, file)) => folder.starts_with(|c: char| c.is_ascii_digit()) && wanted.contains(&file),
        None => false,
    };
    let pickled = |name: &&str| {
        let folder = name.strip_suffix("/pytorch_model.bin");
        module(name, &["pytorch_model.bin"])
            && folder.is_some_and(|folder| !has(&format!("{folder}/model.safetensors")))
    };
    if let Some(name) = names.iter().map(String::as_str).find(pickled) {
        bail!("model {model} has the weights of a module only as {name}; {CONVERT_PIPELINE}")
    }
    let small = names.iter().map(String::as_str).filter(|name| {
        let of_encoder = |name: &str| {
            [&["config.json"], &SENTENCE_CONFIGS[..], tokenizer, &BESIDE_VOCABULARY]
                .iter()
                .any(|wanted| wanted.contains(&name))
        };
        ["modules.json", SETTINGS].contains(name)
            || name.strip_prefix(folder).is_some_and(of_encoder)
            || module(name, &["config.json", "model.safetensors"]) && !is_weights(folder, name)
    });
    let weights = names.iter().map(String::as_str).filter(|name| is_weights(folder, name));
    match inside("model.safetensors") {
        true => Ok(small.chain(weights.filter(|name| name.ends_with("model.safetensors"))).collect()),
        false => Ok(small.chain(weights).collect()),
    }
}

/// Whether a file is the encoder's weights, one of their shards, or the index of those.
fn is_weights(folder: &str, name: &str) -> bool {
    let shard = |name: &str| name.starts_with("model-") && name.ends_with(".safetensors");
    let weights = |name| name == "model.safetensors" || name == INDEX || shard(name);
    name.strip_prefix(folder).is_some_and(weights)
}

/// Where a repository has the files of its encoder: in a folder of their own, as the first releases of
/// sentence-transformers put them, or in no folder.
fn encoder_folder(has: impl Fn(&str) -> bool) -> &'static str {
    const FIRST: &str = "0_Transformer/";
    if has("modules.json") && has(&format!("{FIRST}config.json")) { FIRST } else { "" }
}

/// The HTTP status in an error, if it is one.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        _ => None,
    }
}

/// Whether an error is the cache's and not the network's.
fn is_of_the_disk(error: &io::Error) -> bool {
    use ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), NotADirectory | PermissionDenied | ReadOnlyFilesystem | StorageFull)
}

/// Whether a file is what the hub says: its size, and for large files, whose name in the cache is the SHA-256 of
/// their content, that too.
fn is_sound(file: &Path, etag: &str, size: usize) -> Result<bool> {
    let mut file = fs::File::open(file)?;
    if file.metadata()?.len() != size as u64 {
        return Ok(false);
    }
    if etag.len() != 64 || !etag.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(true);
    }
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash)?;
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(found == etag.to_lowercase())
}

/// Whether a name that the hub sends can be the name of a file, and of no other place.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

/// A variable of the environment that is set to something.
fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
