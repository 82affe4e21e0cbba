//! The files to merge: their formats, and whether they belong together.

use std::io::Read;
use std::path::Path;

use anyhow::{Result, anyhow, bail};

use crate::formats::{Kind, RowFile, npy, sniff};
use crate::job::{Shard, shard_of_run};
use crate::rows::metadata::Key;
use crate::rows::{FileMetadata, OutputFormat};
use crate::store::{self, SidecarPaths, Target};
use crate::sys::console::counted;
use crate::sys::regular_file;
use crate::vectors::{VectorField, VectorFile};

/// Bytes that tell the format of a file.
const START_BYTES: u64 = 16;
/// The end of the name of the record of a run, which is hidden beside its output.
const DONE_SUFFIX: &str = ".done.json";
/// How the release is called, and the model, which has several names where it was moved. Files with the same
/// weights may differ in these.
const NAMES: [Key; 3] = [Key::Release, Key::Model, Key::Revision];

/// A file to merge.
pub(super) struct Part {
    name: String,
    format: OutputFormat,
    /// Whether the file has no byte, as a jsonl file without rows.
    is_empty: bool,
    /// What the file says about its rows; for formats without metadata, what the record of its run says about
    /// the shard.
    metadata: FileMetadata,
    /// The number of chunks of each record, for npy.
    chunks: Option<Vec<u64>>,
    /// Whether the file, or the record of its run, would say that it is a shard.
    tells_shard: bool,
}

impl Part {
    /// Reads the format and the metadata of a file.
    pub(super) fn open(path: &Path) -> Result<Part> {
        let name = path.display().to_string();
        let (format, is_empty) = format_of(path, &name)?;
        let (mut chunks, mut tells_shard) = (None, true);
        let metadata = match format {
            OutputFormat::Parquet | OutputFormat::Arrow => {
                RowFile::open(path, format)?.schema().metadata.clone()
            }
            OutputFormat::Safetensors => VectorFile::open(path, VectorField::Auto)?.metadata().clone(),
            OutputFormat::Npy => {
                let sidecars = SidecarPaths::of(&Target::File(path.to_owned()))?;
                let read = sidecars.map(|sidecars| npy::read_metadata(&sidecars.meta)).transpose()?;
                let (metadata, counts) = read.unwrap_or_default();
                chunks = counts;
                metadata
            }
            OutputFormat::Jsonl | OutputFormat::Csv | OutputFormat::Npz => {
                let shard = shard_of_run(path)?;
                tells_shard = shard.is_some();
                shard.unwrap_or_default()
            }
        };
        Ok(Part { name, format, is_empty, metadata, chunks, tells_shard })
    }

    fn shard(&self) -> Option<Shard> {
        self.metadata.get(Key::Shard)?.parse().ok()
    }

    /// The records of the shard, if the file says them.
    fn records(&self) -> Option<(u64, u64)> {
        let (start, end) = self.metadata.get(Key::ShardRecords)?.split_once("..")?;
        Some((start.parse().ok()?, end.parse().ok()?))
    }
}

/// The format of a file, by its first bytes, and whether it has none: as a jsonl file without rows.
fn format_of(path: &Path, name: &str) -> Result<(OutputFormat, bool)> {
    let unread = |error| anyhow!("cannot read {name} ({error}); check the path");
    let mut start = Vec::new();
    regular_file::open(path).map_err(unread)?.take(START_BYTES).read_to_end(&mut start).map_err(unread)?;
    let format = match sniff(&start) {
        Some(Kind::Parquet) => OutputFormat::Parquet,
        Some(Kind::Arrow) => OutputFormat::Arrow,
        Some(Kind::Npy) => OutputFormat::Npy,
        Some(Kind::Zip) => OutputFormat::Npz,
        Some(Kind::Safetensors) => OutputFormat::Safetensors,
        _ if start.is_empty() || start.starts_with(b"{") => OutputFormat::Jsonl,
        _ if start.starts_with(b"index,") => OutputFormat::Csv,
        _ => bail!(
            "{name} is in no format that sconce writes; pass npy, npz, safetensors, arrow, parquet, jsonl or csv"
        ),
    };
    Ok((format, start.is_empty()))
}

/// Writes the metadata beside a merged npy file, if the parts have any.
pub(super) fn join_npy_metadata(
    sidecars: &SidecarPaths,
    parts: &[Part],
    metadata: &FileMetadata,
) -> Result<()> {
    if parts[0].format != OutputFormat::Npy || metadata.is_empty() {
        return Ok(());
    }
    let mut meta = serde_json::to_value(metadata)?;
    if parts[0].chunks.is_some() {
        let chunks: Vec<u64> = parts.iter().filter_map(|part| part.chunks.clone()).flatten().collect();
        meta["chunks"] = chunks.into();
    }
    store::manifest::save(&sidecars.meta, &sidecars.output, &meta)
}

/// Checks that the files belong together, and that shards are complete and in order. Returns their format and
/// the metadata of all rows.
pub(super) fn check(parts: &[Part]) -> Result<(OutputFormat, FileMetadata)> {
    let Some(first) = parts.first() else { bail!("there are no files to merge; name some") };
    let common = |part: &Part| {
        let mut metadata = part.metadata.clone();
        Key::OF_SHARD.iter().for_each(|key| metadata.remove(*key));
        metadata
    };
    let metadata = common(first);
    let ignored = if metadata.has(Key::WeightsSha256) { &NAMES[..] } else { &[] };
    for part in &parts[1..] {
        if part.format != first.format {
            if let Some(empty) = [first, part].into_iter().find(|part| part.is_empty) {
                bail!(
                    "{} is empty (0 bytes): it was not written or copied as a whole; write or copy it again",
                    empty.name
                );
            }
            bail!(
                "{} is {}, but {} is {}; merge files of one format",
                first.name,
                first.format,
                part.name,
                part.format
            );
        }
        if part.chunks.is_some() != first.chunks.is_some() {
            bail!(
                "only one of {} and {} has rows that are chunks; merge files of one kind",
                first.name,
                part.name
            );
        }
        if let Some((key, values)) = metadata.difference(&common(part), ignored) {
            let [a, b] = values.map(|value| value.map_or("nothing".into(), |value| format!("{value:?}")));
            bail!(
                "{} and {} differ in {key}: {a} and {b}; merge files that were written with the same model and options",
                first.name,
                part.name
            );
        }
    }
    check_shards(parts)?;
    Ok((first.format, metadata))
}

/// What was not checked of files that are merged, as a warning: where none says that it is a shard, they may
/// be shards all the same if the records of their runs are gone.
pub(super) fn unchecked(parts: &[Part]) -> Option<String> {
    let unknown: Vec<&Part> = parts.iter().filter(|part| !part.tells_shard).collect();
    let first = unknown.first()?;
    let others = match unknown.len() - 1 {
        0 => String::new(),
        others => format!(" and {} more", counted(others as u64, "file")),
    };
    Some(format!(
        "merged {}{others} without the record of the run (.NAME{DONE_SUFFIX} beside the file): whether these are all shards of one input, \
         in order, is not checked",
        first.name
    ))
}

/// The first shard that is not there, and its file if those of the others are named by their shards. `None`
/// if all are there, or are not those of one run.
fn missing_shard(parts: &[Part]) -> Option<String> {
    let shards = parts.iter().map(Part::shard).collect::<Option<Vec<Shard>>>()?;
    let count = shards[0].count();
    let is_there = |number: &u64| shards.iter().any(|shard| shard.number() == *number);
    let number = (1..=count).find(|number| !is_there(number))?;
    let missing: Shard = format!("{number}/{count}").parse().ok()?;
    if shards.iter().any(|shard| shard.count() != count) {
        return None;
    }
    let named = parts.iter().zip(&shards).find_map(|(part, shard)| {
        let path = Path::new(&part.name);
        let name = path.file_name()?.to_str()?;
        let other = name.replace(&shard.file_name_part(), &missing.file_name_part());
        (other != name).then(|| path.with_file_name(other).display().to_string())
    });
    Some(match named {
        Some(file) => format!("{file}, shard {missing}, is missing"),
        None => format!("shard {missing} is missing"),
    })
}

/// Checks that the files are all shards of a run, in order, or none is a shard.
fn check_shards(parts: &[Part]) -> Result<()> {
    if parts.iter().all(|part| part.shard().is_none()) {
        return Ok(());
    }
    if let Some(missing) = missing_shard(parts) {
        bail!("{missing}; pass all shards of a run in order");
    }
    let mut end = 0;
    for (part, number) in parts.iter().zip(1..) {
        let expected = format!("{number}/{}", parts.len());
        match part.shard() {
            Some(shard) if shard.to_string() == expected => {}
            Some(shard) => bail!(
                "{} is shard {shard}, but is file {number} of {}; pass all shards of a run in order",
                part.name,
                parts.len()
            ),
            None if !part.tells_shard => bail!(
                "other files are shards, but {} has no record of its run beside it, which says what shard it is; copy its \
                 .NAME{DONE_SUFFIX}, too, with the times of both (cp -p, rsync -t)",
                part.name
            ),
            None => bail!("{} is not a shard, but other files are; merge all shards of a run", part.name),
        }
        if let Some((start, next)) = part.records() {
            if start != end {
                bail!(
                    "{} starts at record {start}, but the shard before it ends at record {end}: the input has changed in between; \
                     write all shards again from the same input",
                    part.name
                );
            }
            end = next;
        }
    }
    // The end of the last shard is the number of all records.
    let mut ranges = parts.iter().filter_map(|part| Some((part, part.shard()?, part.records()?)));
    if let Some((part, shard, (start, next))) =
        ranges.find(|(_, shard, (start, next))| shard.range(end) != (*start..*next))
    {
        let expected = shard.range(end);
        bail!(
            "{} has the records {start} to {next}, but shard {shard} of {end} records has {} to {}: the input has changed in \
             between; write all shards again from the same input",
            part.name,
            expected.start,
            expected.end
        );
    }
    Ok(())
}
