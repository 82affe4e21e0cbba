//! The Hugging Face cache, and the hub behind it.
//!
//! Files lie where every Hugging Face tool looks for them: `models--ORG--NAME/snapshots/COMMIT/…`, with
//! `refs/BRANCH` naming the commit. The reference is written after the last file, so a commit that a reference
//! names is there whole.
//!
//! hf-hub knows the names of the cache. The requests are our own, over the HTTP client that it uses: it follows what a
//! server answers to any path, any host and any length.

mod blobs;
mod requests;

use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Error, Result, bail};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::pipeline::{Module, read_modules};
use super::weights::read_index;
use super::{
    CONVERT_PIPELINE, INDEX, NO_TOKENIZER, SENTENCE_CONFIGS, Source, other_weights, tokenizer_files,
};
use blobs::{Blob, LockError};
use requests::{Client, Failure, Gap, encode_path};

/// How often a file is tried where the connection breaks, or what comes is not the file.
const ATTEMPTS: u32 = 3;

/// What takes the place of a vocabulary, or changes how it or a `tokenizer.json` is read.
const BESIDE_VOCABULARY: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];

/// Seconds that a server may be silent, unless `HF_HUB_DOWNLOAD_TIMEOUT` says otherwise.
const TIMEOUT: f64 = 30.0;
/// The longest such time, in seconds: a day.
const MAX_TIMEOUT: f64 = 86_400.0;

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
    client: Client,
    /// Whether the token can be sent.
    has_broken_token: bool,
    /// How long a server may be silent.
    timeout: Duration,
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
        let cache = std::path::absolute(set("HF_HUB_CACHE").map_or(home.join("hub"), PathBuf::from))?;
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let seconds = set("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|seconds| seconds.trim().parse().ok());
        let seconds = seconds.filter(|seconds| *seconds > 0.0).unwrap_or(TIMEOUT).min(MAX_TIMEOUT);
        let timeout = Duration::from_secs_f64(seconds);
        Ok(Hub {
            source,
            folder: cache.join(Repo::model(source.model.clone()).folder_name()),
            cache: Cache::new(cache),
            has_broken_token: token
                .as_ref()
                .is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())),
            client: Client::new(&endpoint, token, timeout),
            timeout,
        })
    }

    /// The snapshot, as far as the cache has it.
    fn cached(&self) -> Cached {
        let revision = &self.source.revision;
        let commit = fs::read_to_string(self.folder.join("refs").join(revision));
        let commit = commit.as_ref().map_or(revision.as_str(), |commit| commit.trim());
        if !commit.split('/').all(|part| is_plain(&part.replace('.', "_")) && part != "." && part != "..") {
            return Cached::Nothing;
        }
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
        if !(pipeline && weights && tokenizer && has("config.json")) || has_dangling_link(&snapshot) {
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
        if self.has_broken_token {
            bail!(
                "what stands in HF_TOKEN, in the file of HF_TOKEN_PATH or in the token file of HF_HOME cannot be a \
                 token; take it from the hub anew"
            );
        }
        let (commit, names) = self.list()?;
        let wanted = choose(&self.source.model, &names)?;
        fs::create_dir_all(self.folder.join("blobs")).map_err(|error| self.unusable(&error))?;
        let snapshot = self.folder.join("snapshots").join(&commit);
        for name in wanted {
            if !snapshot.join(name).exists() {
                // Files are asked for by commit: a branch that moves meanwhile cannot mix two states.
                self.fetch(&commit, name, &snapshot)?;
            }
        }
        self.finish(&commit, &names).map_err(|error| self.unusable(&error))?;
        Ok(snapshot)
    }

    /// Notes what the commit lacks, and lets the branch point to it.
    fn finish(&self, commit: &str, names: &[String]) -> io::Result<()> {
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
        let Source { model, revision, .. } = self.source;
        if revision != commit {
            let branch = Repo::with_revision(model.clone(), RepoType::Model, revision.clone());
            self.cache.repo(branch).create_ref(commit)?;
        }
        Ok(())
    }

    /// The commit of a revision and the names of its files.
    fn list(&self) -> Result<(String, Vec<String>)> {
        const WHAT: &str = "the list of files";
        let Source { model, revision, .. } = self.source;
        let path = format!("/api/models/{model}/revision/{}", revision.replace('/', "%2F"));
        let listing = self.client.json(&path).map_err(|failure| match failure {
            Failure::Refused { status: 404, code }
                if code.as_deref() == Some("RevisionNotFound") || code.is_none() && revision != "main" =>
            {
                Error::msg(format!(
                    "the hub at {} has no revision {revision:?} of {model}; check --revision",
                    self.client.endpoint()
                ))
            }
            failure => self.explain(WHAT, failure),
        })?;
        let listed = || {
            let commit = listing.get("sha")?.as_str().filter(|commit| is_plain(commit))?;
            let files = listing.get("siblings")?.as_array()?;
            let names = files.iter().map(|file| Some(file.get("rfilename")?.as_str()?.to_owned()));
            Some((commit.to_owned(), names.collect::<Option<Vec<_>>>()?))
        };
        let Some((commit, names)) = listed() else {
            return Err(self.no_hub(WHAT, "there is none in the answer"));
        };
        // What is asked for becomes a path in the cache.
        if let Some(name) = names.iter().find(|name| !is_inside(name)) {
            return Err(self.no_hub(WHAT, &format!("the name {name:?} leads out of the model's folder")));
        }
        Ok((commit, names))
    }

    /// Downloads one file into a snapshot, going on where an earlier attempt stopped.
    fn fetch(&self, commit: &str, name: &str, snapshot: &Path) -> Result<()> {
        let path = format!("/{}/resolve/{commit}/{}", self.source.model, encode_path(name));
        let info = self.client.info(&path).map_err(|failure| self.explain(name, failure))?;
        let Some(blob) = Blob::new(&self.folder, info) else {
            return Err(self.no_hub(name, "its ETag cannot name a file"));
        };
        let _lock = blob.lock(name, self.timeout).map_err(|error| match error {
            LockError::Held(path) => Error::msg(format!(
                "another process holds the lock {} and its download of {name} of {} does not grow; end that process, \
                 then run the command again",
                path.display(),
                self.source.model
            )),
            LockError::Disk(error) => self.unusable(&error),
        })?;
        if !blob.is_sound(&blob.path).map_err(|error| self.unusable(&error))? {
            self.fill(&path, name, &blob)?;
        }
        blob.link(&snapshot.join(name), snapshot).map_err(|error| self.unusable(&error))
    }

    /// Downloads the content of a file.
    fn fill(&self, path: &str, name: &str, blob: &Blob) -> Result<()> {
        let (model, part) = (&self.source.model, blob.part());
        let unusable = |error: io::Error| self.unusable(&error);
        for attempt in 1..=ATTEMPTS {
            let is_last = attempt == ATTEMPTS;
            match self.receive(path, blob, &part) {
                Ok(()) if blob.is_sound(&part).map_err(unusable)? => {
                    return fs::rename(&part, &blob.path).map_err(unusable);
                }
                // What lay in the cache was the beginning of something else, or the way here is bad.
                Ok(()) => fs::remove_file(&part).map_err(unusable)?,
                Err(Gap::TooLong) => {
                    fs::remove_file(&part).map_err(unusable)?;
                    return Err(self.no_hub(name, &format!("more than its {} bytes come", blob.size)));
                }
                Err(Gap::Failed(failure)) => return Err(self.explain(name, failure)),
                Err(Gap::Disk(error)) => return Err(self.unusable(&error)),
                Err(Gap::Broken(reason)) if is_last => bail!(
                    "the download of {name} of {model} was interrupted ({reason}); run the command again to resume it"
                ),
                Err(Gap::Broken(_)) => thread::sleep(Duration::from_millis(500)),
            }
        }
        let checksum = blob.checksum().map(|name| format!(" or {name}")).unwrap_or_default();
        bail!(
            "{name} of {model} arrived damaged (its size{checksum} is not the hub's) and was removed; run the command \
             again"
        )
    }

    /// Adds to a part what it lacks.
    fn receive(&self, path: &str, blob: &Blob, part: &Path) -> Result<(), Gap> {
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(part).map_err(Gap::Disk)?;
        let mut start = file.metadata().map_err(Gap::Disk)?.len();
        if start > blob.size {
            // It is not of this file.
            file.set_len(0).map_err(Gap::Disk)?;
            start = 0;
        }
        if start == blob.size {
            return Ok(());
        }
        let bar = self.bar(blob.size);
        let begin = |start: u64| {
            file.set_len(start)?;
            bar.set_position(start);
            (&file).seek(SeekFrom::Start(start)).map(drop)
        };
        self.client.content(path, start, blob.size, begin, |bytes| {
            bar.inc(bytes.len() as u64);
            (&file).write_all(bytes)
        })?;
        bar.finish();
        file.sync_all().map_err(Gap::Disk)
    }

    fn bar(&self, size: u64) -> ProgressBar {
        if !self.source.progress {
            return ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::hidden());
        }
        let template = "{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
        ProgressBar::new(size)
            .with_style(ProgressStyle::with_template(template).expect("the template is valid"))
    }

    /// One sentence on a failed request.
    fn explain(&self, what: &str, failure: Failure) -> Error {
        match failure {
            Failure::Unreachable(reason) => self.unreachable(&reason),
            Failure::Refused { status, .. } => self.refused(status, what),
            Failure::Malformed(reason) => self.no_hub(what, &reason),
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
            self.client.endpoint()
        ))
    }

    fn unusable(&self, error: &io::Error) -> Error {
        let cache = self.cache.path().display();
        Error::msg(match error.kind() {
            ErrorKind::StorageFull => format!("the disk of the cache at {cache} is full; free some space"),
            _ => format!(
                "cannot use the cache at {cache} ({error}); set HF_HOME to a folder that can be written"
            ),
        })
    }

    fn no_hub(&self, what: &str, reason: &str) -> Error {
        Error::msg(format!(
            "{} does not answer like a Hugging Face hub for {what} of {} ({reason}); check HF_ENDPOINT",
            self.client.endpoint(),
            self.source.model
        ))
    }

    fn refused(&self, status: u16, what: &str) -> Error {
        let endpoint = self.client.endpoint();
        let model = &self.source.model;
        Error::msg(match (status, self.client.has_token()) {
            (401 | 403, true) => format!(
                "the hub at {endpoint} refuses {what} of {model} to your token (status {status}); check HF_TOKEN, \
                 and that its account has been given access at {endpoint}/{model}"
            ),
            (401 | 403, false) => format!(
                "the hub at {endpoint} refuses {what} of {model} (status {status}): there is no such model, or it \
                 is private or gated; check the id, or set HF_TOKEN"
            ),
            (404, _) => {
                format!(
                    "{what} of {model} was not found on the hub at {endpoint}; check the id and --revision"
                )
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
    let shard =
        |name: &str| name.starts_with("model-") && name.ends_with(".safetensors") && !name.contains('/');
    let weights = |name| name == "model.safetensors" || name == INDEX || shard(name);
    name.strip_prefix(folder).is_some_and(weights)
}

/// Where a repository has the files of its encoder: in a folder of their own, as the first releases of
/// sentence-transformers put them, or in no folder.
fn encoder_folder(has: impl Fn(&str) -> bool) -> &'static str {
    const FIRST: &str = "0_Transformer/";
    if has("modules.json") && has(&format!("{FIRST}config.json")) { FIRST } else { "" }
}

/// Whether a link among the files that Sconce reads leads nowhere: a cache that was pruned may have lost small files
/// without which the model gives other vectors.
fn has_dangling_link(snapshot: &Path) -> bool {
    let entries =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_module = |path: &Path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        path.is_dir() && name.first().is_some_and(u8::is_ascii_digit)
    };
    let modules = entries(snapshot).filter(|path| is_module(path)).flat_map(|folder| entries(&folder));
    entries(snapshot).chain(modules).any(|path| {
        let suffix = path.extension().unwrap_or_default();
        ["json", "txt", "safetensors"].iter().any(|read| suffix == *read) && !path.exists()
    })
}

/// Whether the name of a file that the hub sends stays inside of the model's folder, on any system.
fn is_inside(name: &str) -> bool {
    let is_normal = |part: Component| matches!(part, Component::Normal(_));
    let has_parts = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    has_parts && !name.contains(['\\', '\0']) && Path::new(name).components().all(is_normal)
}

/// Whether a name that the hub sends can be the name of a file, and of no other place.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

/// A variable of the environment that is set to something.
fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
