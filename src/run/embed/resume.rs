//! Going on where an interrupted run stopped: what makes two runs the same, and how far one has come.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Tally;
use super::flow::died;
use super::records::Records;
use crate::input::{Entry, Place, Source};
use crate::output::{self, Beside, Column, Durable, Kind};
use crate::run::heads::normalized;
use crate::run::{Console, Embedder, WrongUsage};

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
                record.kept.iter().for_each(|value| part(value.to_string().as_bytes()));
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
                "--resume: the first {} records of the input are not those that the interrupted run has read; run \
                 without --resume to start over",
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
    /// What is durable of the output.
    pub output: Durable,
    /// Bytes of the ledger that are durable.
    pub ledger: u64,
    /// Whether nothing is left to do but to give the output its name.
    pub complete: bool,
}

/// Refuses to go on with a run that was another.
///
/// # Errors
/// If anything differs: wrong usage, naming the first thing and how many more there are.
fn compare(before: &Identity, now: &Identity) -> Result<()> {
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
    bail!(WrongUsage(format!(
        "--resume: {first} has changed since the interrupted run, from {} to {}{more}; undo the change, or run \
         without --resume to start over",
        value(before),
        value(now)
    )))
}

/// What of the user's choices, once made, makes a vector what it is.
pub fn choices(embedder: &Embedder) -> Identity {
    let Embedder { tokenizer, encoders, pooling, heads, dimensions, dtype, prompt, on_long, .. } = embedder;
    let engine = encoders[0].engine();
    Identity::from([
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
    ])
}

/// What the inputs are: their names, sizes and times.
pub fn inputs(sources: &[Source]) -> Identity {
    const NAMED: usize = 16;
    let describe = |source: &Source| match &source.place {
        Place::Stdin => "a stream".into(),
        Place::File(path) => match fs::metadata(path) {
            Ok(there) => {
                let since =
                    there.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
                let seconds = since.map_or(0.0, |since| since.as_secs_f64());
                format!("{} bytes, written at {seconds:.6}", there.len())
            }
            Err(_) => "not there".into(),
        },
    };
    if sources.len() <= NAMED {
        let name = |(i, source): (usize, &Source)| {
            let file = match &source.place {
                Place::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                Place::Stdin => source.place.to_string(),
            };
            (format!("input {} ({file})", i + 1), describe(source))
        };
        return sources.iter().enumerate().map(name).collect();
    }
    let mut hash = Sha256::new();
    for source in sources {
        hash.update(format!("{}\0{}\0", source.place, describe(source)));
    }
    let all = format!("{} files with SHA-256 {}", sources.len(), hex(&hash.finalize()));
    Identity::from([("the list of input files".into(), all)])
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
enum Hashing {
    Started(JoinHandle<Result<Identity>>),
    Postponed(Vec<PathBuf>),
}

impl Hashing {
    /// Starts hashing; where the system grants no thread, it is done later.
    fn start(files: Vec<PathBuf>) -> Self {
        let again = files.clone();
        match thread::Builder::new().name("hash".into()).spawn(move || hashes(&files)) {
            Ok(thread) => Hashing::Started(thread),
            Err(_) => Hashing::Postponed(again),
        }
    }

    fn finish(self) -> Result<Identity> {
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
    /// The journal of a run of this identity, which the hashes of the model's `files` complete; and what an interrupted run
    /// has left, if this one is to resume it.
    ///
    /// # Errors
    /// If the interrupted run was another.
    pub fn open(
        beside: &Beside,
        mut identity: Identity,
        files: Vec<PathBuf>,
        resume: bool,
        console: &Console,
    ) -> Result<(Self, Option<Manifest>)> {
        let (found, manifest) =
            (output::manifest::load::<Manifest>(&beside.manifest), beside.manifest.clone());
        if !resume {
            // A manifest that cannot be read has nothing to go on with either.
            let dropped = found.ok().flatten().map(|manifest| manifest.tally.rows);
            return Ok((Self::new(manifest, identity, Some(files), dropped), None));
        }
        let Some(found) = found? else {
            console.note("there is nothing to resume; starting with the first row");
            return Ok((Self::new(manifest, identity, Some(files), None), None));
        };
        identity.extend(hashes(&files)?);
        let mut before = found.identity.clone();
        if found.tally.long() == 0 {
            // What becomes of long texts has made no difference so far.
            for key in ["--on-long", "--truncation-side"] {
                if let Some(value) = identity.get(key) {
                    before.insert(key.into(), value.clone());
                }
            }
        }
        compare(&before, &identity)?;
        console.note(format!("going on after {} rows", found.tally.rows));
        Ok((Self::new(manifest, identity, None, None), Some(found)))
    }

    /// A journal for a run of this identity, to which the hashes of files are added, which takes a while.
    fn new(manifest: PathBuf, identity: Identity, files: Option<Vec<PathBuf>>, dropped: Option<u64>) -> Self {
        let hashing = files.map(Hashing::start);
        let output = PathBuf::new();
        Journal { manifest, output, identity, hashing, dropped, saved: Instant::now(), pause: PAUSE }
    }

    /// Whether it is time to save again: what has been computed since is worth it, and saving does not slow the run.
    pub fn is_due(&self) -> bool {
        self.saved.elapsed() >= self.pause
    }

    /// Saves the manifest; `describe` makes it, given the identity. `since` is when the rows began to be made durable.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&mut self, since: Instant, describe: impl FnOnce(Identity) -> Manifest) -> Result<()> {
        if let Some(hashing) = self.hashing.take() {
            self.identity.extend(hashing.finish()?);
        }
        output::manifest::save(&self.manifest, &self.output, &describe(self.identity.clone()))?;
        self.saved = Instant::now();
        self.pause = PAUSE.max(10 * since.elapsed());
        Ok(())
    }

    /// Rows of an interrupted run that this one does not go on with, the first time that they are asked for.
    pub fn drop_rows(&mut self) -> Option<u64> {
        self.dropped.take()
    }
}
