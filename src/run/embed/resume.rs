//! Going on where an interrupted run stopped: what makes two runs the same, and how far one has come.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Tally;
use super::flow::died;
use super::records::Records;
use crate::input::Entry;
use crate::output::{self, Beside, Column, Digest, Durable, Kind};
use crate::run::heads::normalized;
use crate::run::threads::spawn;
use crate::run::{Chunking, Console, Embedder, WrongUsage, counted};

/// A place between two records of the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Mark {
    /// Records before it, those that cannot be read included.
    pub entries: u64,
    /// Bytes of input before it, as [`crate::input::Entries::position`] counts them.
    pub position: u64,
    /// SHA-256 over all that those records say, as hexadecimal digits.
    pub digest: String,
}

impl Mark {
    /// The place after one more record.
    pub fn after(&self, entry: &Entry, position: u64) -> Self {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(self.digest.as_bytes());
        match entry {
            Entry::Record(record) => {
                part(record.text.as_bytes());
                part(record.pair.as_deref().unwrap_or("\0").as_bytes());
                part(record.id.as_ref().map_or("\0".into(), Value::to_string).as_bytes());
                record.kept.iter().for_each(|value| part(value.json().to_string().as_bytes()));
            }
            Entry::Unreadable(bad) => part(bad.reason.as_bytes()),
        }
        Mark { entries: self.entries + 1, position, digest: hex(&hash.finalize()) }
    }

    /// Passes over the records before this place.
    ///
    /// # Errors
    /// If they are not the ones that were there, or cannot be read.
    pub fn pass(&self, records: &mut Records) -> Result<()> {
        let mut mark = Mark::default();
        while mark.entries < self.entries {
            let Some((entry, position)) = records.next().transpose()? else { break };
            mark = mark.after(&entry, position);
        }
        if mark.digest != self.digest {
            bail!(WrongUsage(format!(
                "--resume: the first {} records of the input are not those that the interrupted run has read; pass \
                 --restart to start over",
                self.entries
            )));
        }
        Ok(())
    }
}

/// What has to be the same for a run to go on: each thing with its value, or a hash of it.
pub type Identity = BTreeMap<String, String>;

/// What an interrupted run leaves beside its output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// What the run was.
    pub identity: Identity,
    /// What ids are, if rows have any.
    pub ids: Option<Kind>,
    /// The columns that are carried through.
    pub kept: Vec<Column>,
    /// How far it has come.
    pub done: Mark,
    /// What it has counted so far.
    pub tally: Tally,
    /// Rows of each record so far, for a format whose rows do not say which record they are of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Vec<u64>>,
    /// What is durable of the output.
    pub output: Durable,
    /// Bytes of the ledger that are durable.
    pub ledger: u64,
    /// The digest of those bytes.
    pub ledger_sha256: Option<Digest>,
    /// Whether nothing is left to do but to give the output its name.
    pub complete: bool,
}

/// What is left beside a finished output, so that the next run can tell whether there is anything to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Finished {
    /// What the run was, and how far it came in the input.
    pub run: Manifest,
    /// The output as it was then: its length and when it was written.
    output: Stamp,
}

/// What a file looks like from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    modified: Option<Duration>,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let there = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let modified = there.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Some(Stamp { bytes: there.len(), modified })
    }
}

impl Finished {
    /// Leaves the description of a finished run beside its output.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn leave(run: Manifest, beside: &Beside) -> Result<()> {
        match Stamp::of(&beside.output) {
            Some(output) => output::manifest::save(&beside.done, &beside.output, &Finished { run, output }),
            None => Ok(()),
        }
    }

    /// The description of the run that made the output that is there, if there is one.
    fn find(beside: &Beside) -> Option<Manifest> {
        // One that cannot be read says nothing, and the run begins anew.
        let found = output::manifest::load::<Finished>(&beside.done).ok()??;
        (Some(found.output) == Stamp::of(&beside.output)).then_some(found.run)
    }
}

/// Whether an output has a row for each of these records, and was made from no others.
pub fn is_up_to_date(run: &Manifest, records: &mut Records) -> bool {
    run.done.pass(records).is_ok() && records.next().is_none()
}

/// Where a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Begin {
    /// With the first record, if no interrupted run would be lost by that.
    #[default]
    Fresh,
    /// After what an interrupted run has done, if there is one.
    Resume,
    /// With the first record, whatever an interrupted run has left.
    Restart,
}

/// What was found beside an output.
pub enum Found {
    /// Nothing to go on with.
    Nothing,
    /// An interrupted run, which this one goes on with.
    Interrupted(Manifest),
    /// A finished run of the same identity.
    Finished(Manifest),
}

/// Refuses to take the place of an interrupted run unasked.
///
/// # Errors
/// If there is one with rows: wrong usage.
pub fn check_interrupted(beside: &Beside) -> Result<()> {
    let Some(found) = output::manifest::load::<Manifest>(&beside.manifest)? else { return Ok(()) };
    // Where a run was killed after it had given the output its name, nothing would be lost.
    if found.tally.rows == 0 || found.complete && !beside.rows.exists() {
        return Ok(());
    }
    bail!(WrongUsage(format!(
        "{} has {} of an interrupted run; pass --resume to continue it, or --restart to drop what it left",
        beside.output.display(),
        counted(found.tally.rows, "row")
    )))
}

/// The identity of an earlier run, but for what has made no difference so far.
fn lenient(run: &Manifest, now: &Identity) -> Identity {
    let mut before = run.identity.clone();
    if run.tally.long() == 0 {
        // What becomes of long texts.
        for key in ["--on-long", "--truncation-side"] {
            if let Some(value) = now.get(key) {
                before.insert(key.into(), value.clone());
            }
        }
    }
    before
}

/// Compares an earlier run with this one; the error is what has changed, as a part of a sentence: the first thing and how
/// many more there are.
fn compare(before: &Identity, now: &Identity) -> Result<(), String> {
    let keys = before.keys().chain(now.keys().filter(|key| !before.contains_key(*key)));
    let mut changed: Vec<&String> = keys.filter(|key| before.get(*key) != now.get(*key)).collect();
    // What follows from the model changes with it.
    changed.sort_by_key(|key| key.starts_with("--"));
    let Some((first, rest)) = changed.split_first() else { return Ok(()) };
    let value = |identity: &Identity| match identity.get(*first).map(String::as_str) {
        None => "not there".to_owned(),
        Some("") => "nothing".to_owned(),
        Some(value) => value.to_owned(),
    };
    let rest: Vec<&str> = rest.iter().map(|key| key.as_str()).collect();
    let more = match rest.len() {
        0 => String::new(),
        1..=3 => format!(" (and so have {})", rest.join(", ")),
        n => format!(" (and so have {n} other things)"),
    };
    Err(format!("{first} has changed since that run, from {} to {}{more}", value(before), value(now)))
}

/// What of the user's choices, once made, makes a vector what it is.
pub fn choices(embedder: &Embedder) -> Identity {
    let Embedder { tokenizer, encoders, pooling, heads, dimensions, dtype, prompt, on_long, .. } = embedder;
    let engine = encoders[0].engine();
    let mut identity = Identity::from([
        ("--pooling".into(), pooling.to_string()),
        ("--normalize".into(), if normalized(heads) { "yes" } else { "no" }.into()),
        ("--dimensions".into(), dimensions.to_string()),
        ("--prompt".into(), format!("{prompt:?}")),
        ("--max-length".into(), tokenizer.max_length().to_string()),
        ("--truncation-side".into(), if tokenizer.cuts_left() { "left" } else { "right" }.into()),
        ("--on-long".into(), on_long.name().into()),
        ("--dtype".into(), engine.dtype().into()),
        ("--output-dtype".into(), dtype.name().into()),
        // Another device, or another set of instructions, rounds otherwise.
        ("the device".into(), engine.to_string()),
    ]);
    if let Some(Chunking { tokens, overlap, late }) = embedder.chunking {
        identity.extend([
            ("--chunk".into(), tokens.to_string()),
            ("--chunk-overlap".into(), overlap.to_string()),
            ("--chunk-late".into(), if late { "yes" } else { "no" }.into()),
        ]);
    }
    identity
}

/// The SHA-256 of each of the model's files.
///
/// # Errors
/// If a file cannot be read.
fn hashes(paths: &[PathBuf]) -> Result<Identity> {
    let mut identity = Identity::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hash = hash_file(path).map_err(|error| anyhow!("cannot read {} ({error})", path.display()))?;
        // Files of several folders may have one name.
        let all = identity.entry(format!("the model's {name}")).or_insert_with(|| "SHA-256".into());
        all.push(' ');
        *all += &hash;
    }
    Ok(identity)
}

/// The digests of the files with the weights, by what the hub calls them: the SHA-256 of each.
pub fn weights_digest(identity: &Identity) -> Option<String> {
    let weights = identity.iter().filter(|(key, _)| key.ends_with(".safetensors"));
    let digests: Vec<_> = weights.filter_map(|(_, value)| value.strip_prefix("SHA-256 ")).collect();
    (!digests.is_empty()).then(|| digests.join(" "))
}

/// The SHA-256 of texts.
pub fn hash_texts(texts: &[String]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

fn hash_file(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The hashes of files, on their way in a thread of their own, or to be made when they are needed.
pub enum Hashing {
    /// In a thread.
    Started(JoinHandle<Result<Identity>>),
    /// Of these files, later.
    Postponed(Vec<PathBuf>),
}

impl Hashing {
    /// Starts hashing; where the system grants no thread, it is done later.
    pub fn start(files: Vec<PathBuf>) -> Self {
        let again = files.clone();
        match spawn("hash", move || hashes(&files)) {
            Ok(thread) => Hashing::Started(thread),
            Err(_) => Hashing::Postponed(again),
        }
    }

    /// The digest of each file, by what it is.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn finish(self) -> Result<Identity> {
        match self {
            Hashing::Started(thread) => thread.join().map_err(died)?,
            Hashing::Postponed(files) => hashes(&files),
        }
    }
}

/// Keeps the manifest of a run up to date.
pub struct Journal {
    manifest: PathBuf,
    output: PathBuf,
    identity: Identity,
    /// What the identity lacks yet: hashing a model takes a while, and is not needed before the first save.
    hashing: Option<Hashing>,
    dropped: Option<u64>,
    saved: Instant,
    pause: Duration,
}

/// The least time between two saves.
const PAUSE: Duration = Duration::from_millis(200);

impl Journal {
    /// The journal of a run of this identity, which the hashes of the model's files complete; and what was found beside its
    /// output, if this run is to resume.
    ///
    /// # Errors
    /// If the interrupted run was another.
    pub fn open(
        beside: &Beside,
        mut identity: Identity,
        hashing: Hashing,
        begin: Begin,
        console: &Console,
    ) -> Result<(Self, Found)> {
        let journal = |identity, hashing, dropped| {
            let (manifest, output) = (beside.manifest.clone(), beside.output.clone());
            Journal { manifest, output, identity, hashing, dropped, saved: Instant::now(), pause: PAUSE }
        };
        let found = output::manifest::load::<Manifest>(&beside.manifest);
        if begin != Begin::Resume {
            // A manifest that cannot be read has nothing to go on with either.
            let dropped = found.ok().flatten().map(|manifest| manifest.tally.rows);
            return Ok((journal(identity, Some(hashing), dropped), Found::Nothing));
        }
        if let Some(found) = found? {
            identity.extend(hashing.finish()?);
            compare(&lenient(&found, &identity), &identity).map_err(|changed| {
                WrongUsage(format!("--resume: {changed}; undo the change, or pass --restart to start over"))
            })?;
            console.note(format!("resuming after {}", counted(found.tally.rows, "row")));
            return Ok((journal(identity, None, None), Found::Interrupted(found)));
        }
        let Some(finished) = Finished::find(beside) else {
            console.note("nothing to resume; starting from the beginning");
            return Ok((journal(identity, Some(hashing), None), Found::Nothing));
        };
        identity.extend(hashing.finish()?);
        let found = match compare(&lenient(&finished, &identity), &identity) {
            Ok(()) => Found::Finished(finished),
            Err(changed) => {
                let output = beside.output.display();
                console.note(format!("{output} is finished, but {changed}; starting from the beginning"));
                Found::Nothing
            }
        };
        Ok((journal(identity, None, None), found))
    }

    /// What the run is, the hashes of the model's files included.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn identity(&mut self) -> Result<&Identity> {
        if let Some(hashing) = self.hashing.take() {
            self.identity.extend(hashing.finish()?);
        }
        Ok(&self.identity)
    }

    /// Whether it is time to save again: what has been computed since is worth it, and saving does not slow the run.
    pub fn is_due(&self) -> bool {
        self.saved.elapsed() >= self.pause
    }

    /// Saves the manifest and returns it; `describe` makes it, given the identity. `since` is when the rows began to be made durable.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&mut self, since: Instant, describe: impl FnOnce(Identity) -> Manifest) -> Result<Manifest> {
        let manifest = describe(self.identity()?.clone());
        output::manifest::save(&self.manifest, &self.output, &manifest)?;
        self.saved = Instant::now();
        self.pause = PAUSE.max(10 * since.elapsed());
        Ok(manifest)
    }

    /// Rows of an interrupted run that are still there, since this one has not written anything yet.
    pub fn earlier_rows(&self) -> Option<u64> {
        self.dropped.filter(|rows| *rows > 0)
    }

    /// Rows of an interrupted run that this one does not go on with, the first time that they are asked for.
    pub fn drop_rows(&mut self) -> Option<u64> {
        self.dropped.take()
    }
}
