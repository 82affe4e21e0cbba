//! Downloads of a model's files from the hub into the cache.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Error, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::blob::{Blob, LockError};
use super::client::{DownloadError, RequestError};
use super::errors::listed;
use super::file_names::{is_plain, is_relative};
use super::repository::{absent_files, files_to_download};
use super::snapshot::{Cached, Hub};
use super::url::encode_path;
use super::{NoSuchModel, Source};
use crate::model::layout::{CONFIG, MODULES};
use crate::model::modules::{Module, read_modules};
use crate::store::own_file::SHARED;
use crate::store::{self, replace_cached};
use crate::sys::regular_file::MAX_TOKENIZER_BYTES;

/// Attempts to download a file if the connection breaks, or the content is not that of the file.
const ATTEMPTS: u32 = 3;

impl Hub<'_> {
    /// Downloads the files that Sconce needs into the cache.
    pub(super) fn download(&self) -> Result<PathBuf> {
        if let Some(fault) = &self.settings.fault {
            bail!("{fault}");
        }
        let (commit, names) = self.list()?;
        let files = files_to_download(&self.source.model, &names)?;
        fs::create_dir_all(self.folder.join("blobs")).map_err(|error| self.cache_error(&error))?;
        let snapshot = self.folder.join("snapshots").join(&commit);
        let is_weights = |name: &&str| name.ends_with(".safetensors") || name.ends_with(".bin");
        let (weights, settings): (Vec<_>, Vec<_>) = files.into_iter().partition(is_weights);
        self.download_missing(&commit, &settings, &snapshot)?;
        // The settings name the folder of a Dense module that is needed, if there is one for each number of
        // dimensions.
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
        for name in absent_files(names).into_iter().chain(asked) {
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
}
