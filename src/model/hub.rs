//! The Hugging Face cache, and the hub behind it.
//!
//! Files have the paths that all Hugging Face tools use: `models--ORG--NAME/snapshots/COMMIT/…`, with the commit of a branch in
//! `refs/BRANCH`. The reference is written after the last file, so that a commit with a reference is complete.
//!
//! hf-hub provides the names of the cache. Requests are made by [`client`], over the HTTP library of hf-hub: hf-hub would follow
//! a server's answers to any path, any host and any length.

mod blob;
mod certificates;
mod client;
mod file_names;
mod ids;
mod proxy;
mod settings;
mod url;

use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Error, Result, bail};
use hf_hub::Cache;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::layout::{self, CONFIG, Completeness, MODULES, Snapshot, WEIGHTS_INDEXES};
use super::modules::{Module, may_lack_size, read_modules};
use super::weights::read_index;
use super::{NoSuchModel, NotDownloaded, Source};
use crate::store::own_file::SHARED;
use crate::store::{self, replace_cached};
use crate::sys::regular_file::MAX_TOKENIZER_BYTES;
use blob::{Blob, LockError};
use client::{Client, DownloadError, RequestError};
use file_names::{is_plain, is_relative};
pub(super) use ids::id_of_folder;
use settings::{Settings, read_text};
use url::encode_path;

/// Attempts to download a file if the connection breaks, or the content is not that of the file.
const ATTEMPTS: u32 = 3;
/// Maximum number of ids or files that a message lists.
const MAX_LISTED: usize = 5;

/// The state of a model in the cache.
enum Cached {
    /// Without these required files; none are named if it is unknown which ones there are.
    Incomplete(Vec<String>),
    /// All required files; this optional file, which would change vectors, may be missing.
    Unknown(PathBuf, &'static str),
    /// All files.
    Complete(PathBuf),
}

/// The directory of a model's snapshot: from the cache if it is complete there, otherwise from the hub. If the cache may lack an
/// optional file, or one of those `wanted`, and the hub cannot be asked whether it exists, a warning is returned with the directory.
pub(super) fn snapshot(source: &Source, wanted: &[&'static str]) -> Result<(PathBuf, Option<String>)> {
    let cache = source.cache.clone().map_or_else(settings::cache_directory, Ok)?;
    let mut meanings = ids::meanings(&source.model, &cache);
    if source.offline {
        meanings.truncate(1);
    }
    let last = meanings.len() - 1;
    let source_of = |model: &String| Source { model: model.clone(), ..source.clone() };
    for meaning in &meanings[..last] {
        match snapshot_of(&source_of(meaning), &cache, wanted) {
            Err(error) if error.is::<NoSuchModel>() => {}
            result => return result,
        }
    }
    snapshot_of(&source_of(&meanings[last]), &cache, wanted)
}

/// [`snapshot`] of the model with this id.
fn snapshot_of(source: &Source, cache: &Path, wanted: &[&'static str]) -> Result<(PathBuf, Option<String>)> {
    let hub = Hub::new(source, cache, wanted);
    let (folder, file) = match hub.cached() {
        Cached::Complete(folder) => return Ok((folder, None)),
        Cached::Unknown(folder, file) => (folder, file),
        Cached::Incomplete(missing) if source.offline => return Err(hub.forbidden(&missing)),
        Cached::Incomplete(_) => return hub.download().map(|folder| (folder, None)).map_err(not_downloaded),
    };
    let reason = if source.offline {
        Error::msg("offline mode forbids a request")
    } else {
        match hub.download() {
            Ok(folder) => return Ok((folder, None)),
            Err(error) => error,
        }
    };
    let consequence = match wanted.contains(&file) {
        true => "",
        false => "; the maximum length, casing or prompt may differ from those of the model",
    };
    let warning = format!(
        "the cache has {} without {file}, and it is unknown whether the hub has that file: {reason:#}{consequence}",
        source.model
    );
    Ok((folder, Some(warning)))
}

/// The error of a download, whose kind can be told.
fn not_downloaded(error: Error) -> Error {
    if error.is::<NoSuchModel>() { error } else { NotDownloaded(error.to_string()).into() }
}

/// A model, its directory in the cache, and the hub that has it.
struct Hub<'a> {
    source: &'a Source,
    /// Files beside those that every model may have.
    wanted: &'a [&'static str],
    cache: Cache,
    /// The model's directory in the cache.
    folder: PathBuf,
    client: Client,
    settings: Settings,
}

impl<'a> Hub<'a> {
    fn new(source: &'a Source, cache: &Path, wanted: &'a [&'static str]) -> Self {
        let settings = Settings::read();
        Hub {
            source,
            wanted,
            folder: cache.join(ids::folder_name(&source.model)),
            cache: Cache::new(cache.to_owned()),
            client: Client::new(&settings.endpoint, settings.token.clone(), settings.timeout),
            settings,
        }
    }

    /// The state of the model in the cache.
    fn cached(&self) -> Cached {
        let revision = &self.source.revision;
        let commit = read_text(&self.folder.join("refs").join(revision));
        let commit = commit.as_ref().map_or(revision.as_str(), |commit| commit.trim());
        if !commit.split('/').all(|part| is_plain(&part.replace('.', "_")) && part != "." && part != "..") {
            return Cached::Incomplete(Vec::new());
        }
        self.cached_commit(commit)
    }

    /// The state of a commit of the model in the cache.
    fn cached_commit(&self, commit: &str) -> Cached {
        let snapshot = self.folder.join("snapshots").join(commit);
        // Another tool may have downloaded a part of the model: a file is absent only if the cache notes that.
        let is_absent = |name: &str| self.folder.join(".no_exist").join(commit).join(name).exists();
        let (completeness, missing) = completeness(&snapshot, self.source.dimensions, &is_absent);
        match completeness {
            Completeness::Incomplete => Cached::Incomplete(missing),
            _ if has_dangling_link(&snapshot) => Cached::Incomplete(Vec::new()),
            Completeness::Unknown(file) => Cached::Unknown(snapshot, file),
            Completeness::Complete => {
                let is_known = |name: &&&str| snapshot.join(name).exists() || is_absent(name);
                match self.wanted.iter().find(|name| !is_known(name)) {
                    Some(file) => Cached::Unknown(snapshot, file),
                    None => Cached::Complete(snapshot),
                }
            }
        }
    }

    /// Downloads the files that Sconce needs into the cache.
    fn download(&self) -> Result<PathBuf> {
        if let Some(fault) = &self.settings.fault {
            bail!("{fault}");
        }
        let (commit, names) = self.list()?;
        let files = layout::files_to_download(&self.source.model, &names)?;
        fs::create_dir_all(self.folder.join("blobs")).map_err(|error| self.cache_error(&error))?;
        let snapshot = self.folder.join("snapshots").join(&commit);
        let is_weights = |name: &&str| name.ends_with(".safetensors") || name.ends_with(".bin");
        let (weights, settings): (Vec<_>, Vec<_>) = files.into_iter().partition(is_weights);
        self.download_missing(&commit, &settings, &snapshot)?;
        // The settings name the folder of a Dense module that is needed, if there is one for each number of dimensions.
        let modules = read_modules(&snapshot.join(MODULES), self.source.dimensions).unwrap_or_default();
        let is_needed = |name: &&str| !modules.iter().any(|module| module.is_weights_of_other_size(name));
        let weights: Vec<_> = weights.into_iter().filter(is_needed).collect();
        self.download_missing(&commit, &weights, &snapshot)?;
        self.record_absent(&commit, &names, &modules).map_err(|error| self.cache_error(&error))?;
        if let Cached::Incomplete(missing) = self.cached_commit(&commit)
            && !missing.is_empty()
        {
            bail!(
                "the hub at {} does not have {} of {}, which its other files need; choose another --revision or another model",
                self.client.endpoint(),
                listed(&missing),
                self.source.model
            );
        }
        self.record_reference(&commit).map_err(|error| self.cache_error(&error))?;
        Ok(snapshot)
    }

    /// Downloads those of the files that the snapshot lacks.
    fn download_missing(&self, commit: &str, files: &[&str], snapshot: &Path) -> Result<()> {
        for name in files.iter().filter(|name| !snapshot.join(name).exists()) {
            // Files are requested by commit, so that a branch that moves meanwhile cannot mix two versions.
            self.download_file(commit, name, snapshot)?;
        }
        Ok(())
    }

    /// Notes in the cache which optional files the commit does not have.
    fn record_absent(&self, commit: &str, names: &[String], modules: &[Module]) -> io::Result<()> {
        let asked = |n| modules.iter().filter_map(move |module| module.folder_for(n));
        let sizes = self.source.dimensions.into_iter().flat_map(asked);
        let sizes = sizes.map(|folder| format!("{folder}/{CONFIG}"));
        let asked =
            self.wanted.iter().map(ToString::to_string).chain(sizes).filter(|name| !names.contains(name));
        for name in layout::absent_files(names).into_iter().chain(asked) {
            let absent = self.folder.join(".no_exist").join(commit).join(name);
            if !absent.exists() {
                replace_cached(&absent, SHARED, b"")?;
            }
        }
        Ok(())
    }

    /// Points the branch to the commit.
    fn record_reference(&self, commit: &str) -> io::Result<()> {
        let revision = &self.source.revision;
        if revision != commit {
            let reference = self.folder.join("refs").join(revision);
            replace_cached(&reference, SHARED, commit.as_bytes())?;
        }
        Ok(())
    }

    /// The commit of the revision, and the names of its files.
    fn list(&self) -> Result<(String, Vec<String>)> {
        const WHAT: &str = "the list of files";
        let Source { model, revision, .. } = self.source;
        let path = format!("/api/models/{model}/revision/{}", revision.replace('/', "%2F"));
        let listing = self.client.json(&path).map_err(|error| match error {
            RequestError::Refused { status: 404, code }
                if code.as_deref() == Some("RevisionNotFound") || code.is_none() && revision != "main" =>
            {
                Error::msg(format!(
                    "the hub at {} has no revision {revision:?} of {model}; check --revision",
                    self.client.endpoint()
                ))
            }
            error => {
                let refused = |code: &Option<String>| code.as_deref() == Some("RepoNotFound");
                let is_absent = match &error {
                    RequestError::Refused { status: 404, .. } => true,
                    RequestError::Refused { status: 401, code } => refused(code),
                    _ => false,
                };
                let error = self.request_error(WHAT, error);
                if is_absent { Error::new(NoSuchModel(error.to_string())) } else { error }
            }
        })?;
        let parsed = || {
            let commit = listing.get("sha")?.as_str().filter(|commit| is_plain(commit))?;
            let files = listing.get("siblings")?.as_array()?;
            let names = files.iter().map(|file| Some(file.get("rfilename")?.as_str()?.to_owned()));
            Some((commit.to_owned(), names.collect::<Option<Vec<_>>>()?))
        };
        let Some((commit, names)) = parsed() else {
            return Err(self.malformed_answer(WHAT, "it has no commit or no files"));
        };
        // Names become paths in the cache.
        if let Some(name) = names.iter().find(|name| !is_relative(name)) {
            return Err(self.malformed_answer(
                WHAT,
                &format!("the name {name:?} is a path outside the model's directory"),
            ));
        }
        Ok((commit, names))
    }

    /// Downloads a file into a snapshot, resuming an earlier attempt.
    fn download_file(&self, commit: &str, name: &str, snapshot: &Path) -> Result<()> {
        let path = format!("/{}/resolve/{commit}/{}", self.source.model, encode_path(name));
        let info = self.client.info(&path).map_err(|error| self.request_error(name, error))?;
        // Larger files of these kinds would not be read.
        if [".json", ".txt", ".jinja"].iter().any(|end| name.ends_with(end))
            && info.size > MAX_TOKENIZER_BYTES
        {
            return Err(self.malformed_answer(name, &format!("it states a size of {} bytes", info.size)));
        }
        let Some(blob) = Blob::new(&self.folder, &path, info) else {
            return Err(self.malformed_answer(name, "its ETag cannot be a file name"));
        };
        let _lock = blob.lock(name, self.settings.timeout, self.source.silent).map_err(|error| match error {
            LockError::Held(path) => Error::msg(format!(
                "another process holds the lock {}, but its download of {name} of {} has stalled; end that process, then \
                 run the command again",
                path.display(),
                self.source.model
            )),
            LockError::Disk(error) => self.cache_error(&error),
        })?;
        if !blob.is_valid(&blob.path).map_err(|error| self.cache_error(&error))? {
            self.download_blob(&path, name, &blob)?;
        }
        let has_links = self.settings.has_links;
        blob.link(&snapshot.join(name), snapshot, has_links).map_err(|error| self.cache_error(&error))
    }

    /// Downloads the content of a file, with several attempts.
    fn download_blob(&self, path: &str, name: &str, blob: &Blob) -> Result<()> {
        let (model, part) = (&self.source.model, blob.part());
        let cache_error = |error: io::Error| self.cache_error(&error);
        for attempt in 1..=ATTEMPTS {
            let is_last = attempt == ATTEMPTS;
            match self.download_rest(path, blob) {
                Ok(()) if blob.is_valid(&part).map_err(cache_error)? => {
                    return store::rename(&part, &blob.path).map_err(cache_error);
                }
                // The resumed part was of another file, or the connection corrupts data.
                Ok(()) => fs::remove_file(&part).map_err(cache_error)?,
                Err(DownloadError::TooLong) => {
                    fs::remove_file(&part).map_err(cache_error)?;
                    return Err(self.malformed_answer(
                        name,
                        &format!("it sends more than the {} bytes of the file", blob.size),
                    ));
                }
                Err(DownloadError::Request(error)) => return Err(self.request_error(name, error)),
                Err(DownloadError::Disk(error)) => return Err(self.cache_error(&error)),
                Err(DownloadError::Interrupted { reason, from_start: true }) if is_last => bail!(
                    "the download of {name} of {model} was interrupted ({reason}), and the server cannot resume it: it sends the \
                     whole file in place of the rest; run the command again with a better connection, or set HF_ENDPOINT to \
                     another mirror"
                ),
                Err(DownloadError::Interrupted { reason, .. }) if is_last => bail!(
                    "the download of {name} of {model} was interrupted ({reason}); run the command again to resume it"
                ),
                Err(DownloadError::Interrupted { .. }) => thread::sleep(Duration::from_millis(500)),
            }
        }
        let checksum = blob.checksum().map(|name| format!(" or {name}")).unwrap_or_default();
        bail!(
            "{name} of {model} was damaged in the download (its size{checksum} is not the hub's) and was removed; run the \
             command again"
        )
    }

    /// Downloads the rest of a partial file, or all of it if the server cannot resume.
    fn download_rest(&self, path: &str, blob: &Blob) -> Result<(), DownloadError> {
        let file = blob.open_part().map_err(DownloadError::Disk)?;
        let mut start = file.metadata().map_err(DownloadError::Disk)?.len();
        if start > blob.size {
            // The part is of another file.
            file.set_len(0).map_err(DownloadError::Disk)?;
            start = 0;
        }
        if start == blob.size {
            return Ok(());
        }
        let bar = self.progress_bar(blob.size);
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
        file.sync_all().map_err(DownloadError::Disk)
    }

    /// The progress bar of a file of `size` bytes.
    fn progress_bar(&self, size: u64) -> ProgressBar {
        if !self.source.progress {
            return ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::hidden());
        }
        let template = "{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
        ProgressBar::new(size)
            .with_style(ProgressStyle::with_template(template).expect("the template is valid"))
    }

    /// The error for a failed request for `what`.
    fn request_error(&self, what: &str, error: RequestError) -> Error {
        match error {
            RequestError::Unreachable(reason) => self.unreachable(&reason),
            RequestError::Refused { status, .. } => self.refusal(status, what),
            RequestError::Malformed(reason) => self.malformed_answer(what, &reason),
            RequestError::Certificate(fault) => Error::msg(format!("{}, and {fault}", self.absence())),
            RequestError::Setting(fault) => {
                Error::msg(format!("cannot download {what} of {}: {fault}", self.source.model))
            }
        }
    }

    /// The beginning of a sentence about a model that has to be downloaded.
    fn absence(&self) -> String {
        let state = if self.folder.exists() { "incomplete in the cache" } else { "not in the cache" };
        let Source { model, revision, .. } = self.source;
        format!("model {model} (revision {revision}) is {state} at {}", self.cache.path().display())
    }

    /// What to do about a model that is not in the cache, if it may be a slip, and whether that is likely: the ids in the cache.
    fn check_of_id(&self) -> Option<(String, bool)> {
        let (ids, is_slip) = ids::similar(&self.source.model, self.cache.path());
        let has_others = !self.folder.exists() && !ids.is_empty();
        has_others.then(|| (format!("check the id (the cache has {})", listed(&ids)), is_slip))
    }

    /// How to get the model without the network.
    fn remedy_without_network(&self) -> String {
        let folder = ids::folder_name(&self.source.model);
        let cache = self.cache.path().display();
        format!(
            "copy the directory {folder} from the cache of another machine into {cache}, or pass --model DIR"
        )
    }

    /// The error for a model that would have to be downloaded in offline mode.
    fn forbidden(&self, missing: &[String]) -> Error {
        let Source { model, revision, .. } = self.source;
        let option = if revision == "main" { String::new() } else { format!(" --revision {revision}") };
        let what = if missing.is_empty() { String::new() } else { format!(" of {}", listed(missing)) };
        let check = self.check_of_id().map(|(check, _)| format!("{check}, ")).unwrap_or_default();
        Error::new(NoSuchModel(format!(
            "{}, and offline mode (--offline, HF_HUB_OFFLINE) forbids a download{what}: {check}run `sconce download \
             {model}{option}` once with network access, {}",
            self.absence(),
            self.remedy_without_network()
        )))
    }

    fn unreachable(&self, reason: &str) -> Error {
        let (absence, endpoint) = (self.absence(), self.client.endpoint());
        let remedy = format!("check the network and HF_ENDPOINT, {}", self.remedy_without_network());
        Error::msg(match self.check_of_id() {
            Some((check, true)) => format!(
                "{absence}: {check}; if it is right, the hub at {endpoint} may have it but cannot be reached ({reason}): {remedy}"
            ),
            Some((check, false)) => {
                format!(
                    "{absence}, and the hub at {endpoint} cannot be reached ({reason}); {check}, {remedy}"
                )
            }
            None => format!("{absence}, and the hub at {endpoint} cannot be reached ({reason}); {remedy}"),
        })
    }

    fn cache_error(&self, error: &io::Error) -> Error {
        let cache = self.cache.path().display();
        Error::msg(match error.kind() {
            ErrorKind::StorageFull => format!("the disk of the cache at {cache} is full; free some space"),
            _ => format!("cannot use the cache at {cache} ({error}); set HF_HOME to a writable directory"),
        })
    }

    fn malformed_answer(&self, what: &str, reason: &str) -> Error {
        Error::msg(format!(
            "the answer of {} for {what} of {} is not that of a Hugging Face hub ({reason}); check HF_ENDPOINT",
            self.client.endpoint(),
            self.source.model
        ))
    }

    fn refusal(&self, status: u16, what: &str) -> Error {
        let endpoint = self.client.endpoint();
        let model = &self.source.model;
        let check = match self.check_of_id() {
            Some((check, true)) => check,
            _ => "check the id".to_owned(),
        };
        Error::msg(match (status, self.client.has_token()) {
            (401 | 403, true) => format!(
                "the hub at {endpoint} refuses {what} of {model} to your token (status {status}); check HF_TOKEN, \
                 and that its account has been given access at {endpoint}/{model}"
            ),
            (401 | 403, false) => format!(
                "the hub at {endpoint} refuses {what} of {model} (status {status}): there is no such model, or it \
                 is private or gated; {check}, or set HF_TOKEN"
            ),
            (404, _) => {
                format!("{what} of {model} not found on the hub at {endpoint}; {check} and --revision")
            }
            _ => format!(
                "the hub at {endpoint} answered {what} of {model} with status {status}; try again later"
            ),
        })
    }
}

/// Whether a snapshot has a dangling link among the files that Sconce reads: a pruned cache may lack optional files without
/// which the model gives other vectors.
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

/// Up to [`MAX_LISTED`] names, and the number of the others.
fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_LISTED)].join(", ");
    match names.len().saturating_sub(MAX_LISTED) {
        0 => shown,
        others => format!("{shown} and {others} more"),
    }
}

/// Whether a snapshot has all files of a model, and the required ones that it lacks, as far as it is known which ones there are.
fn completeness(
    snapshot: &Path,
    dimensions: Option<usize>,
    is_absent: &dyn Fn(&str) -> bool,
) -> (Completeness, Vec<String>) {
    const UNKNOWN: (Completeness, Vec<String>) = (Completeness::Incomplete, Vec::new());
    let modules = match read_modules(&snapshot.join(MODULES), dimensions) {
        Ok(modules) => modules,
        Err(_) if is_absent(MODULES) => Vec::new(),
        Err(_) => return UNKNOWN,
    };
    if dimensions.is_some_and(|n| may_lack_size(&modules, snapshot, n, is_absent)) {
        return UNKNOWN;
    }
    let encoder = modules.iter().find(|module| module.is_encoder());
    let is_static = encoder.is_some_and(Module::is_static);
    let encoder = encoder.map_or("", |module| &module.path);
    let encoder_folder = snapshot.join(encoder);
    let index = WEIGHTS_INDEXES.into_iter().map(|name| encoder_folder.join(name)).find(|path| path.exists());
    // What is wrong with an index is said when the model is loaded.
    let shards =
        |path: PathBuf| read_index(&path).map(|index| index.into_values().collect()).unwrap_or_default();
    let files = Snapshot {
        has: &|name| snapshot.join(name).exists(),
        is_absent,
        encoder,
        is_static,
        modules: (!modules.is_empty()).then(|| modules.iter().flat_map(Module::files).collect()),
        shards: index.map(shards),
    };
    (files.completeness(), files.missing())
}

/// The required files that a model's directory lacks.
pub(super) fn missing_files(folder: &Path) -> Vec<String> {
    completeness(folder, None, &|_| true).1
}
