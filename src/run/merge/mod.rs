//! `sconce merge`: joins the files that several runs wrote, such as the shards of one.

mod arrays;
mod parts;

use std::collections::HashSet;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use self::parts::Part;
use crate::formats::{self, JoinedFile, RowFile, Writer, read_line};
use crate::job::refuse_interrupted;
use crate::rows::{FileMetadata, OutputFormat, OutputSchema};
use crate::store::{Ledger, OutputLock, ReadFiles, SidecarPaths, Target};
use crate::sys::console::{Console, counted};
use crate::sys::regular_file;

/// The options of `merge`.
pub struct MergeOptions {
    /// The destination of the rows.
    pub output: Target,
    /// The files to join, in order.
    pub inputs: Vec<PathBuf>,
    /// Standard error.
    pub console: Console,
}

/// Joins files of one format, in the order of the arguments, in bounded memory.
pub fn merge(options: &MergeOptions) -> Result<()> {
    let lock = OutputLock::acquire(&options.output)?;
    let lock = lock.check("the output", &ReadFiles::new(&options.inputs, "an input"))?;
    if let Some(sidecars) = lock.sidecars() {
        Ledger::check_replaceable(&sidecars.final_ledger)?;
        refuse_interrupted(sidecars)?;
    }
    let inputs: Vec<JoinedFile> =
        options.inputs.iter().map(|path| JoinedFile { path: path.clone(), kept: None }).collect();
    let parts = open_parts(&inputs)?;
    join_parts(&lock, &inputs, &parts)?;
    if let Some(warning) = parts::unchecked(&parts) {
        options.console.warn(warning);
    }
    if lock.sidecars().is_some() {
        let files = counted(options.inputs.len() as u64, "file");
        options.console.note(format!("merged {files} into {}", lock.target()));
    }
    Ok(())
}

/// Joins files of one format, which has columns, into a locked output, and their ledgers and metadata.
pub(super) fn join(lock: &OutputLock, inputs: &[JoinedFile]) -> Result<()> {
    join_parts(lock, inputs, &open_parts(inputs)?)
}

fn open_parts(inputs: &[JoinedFile]) -> Result<Vec<Part>> {
    inputs.iter().map(|input| Part::open(&input.path)).collect()
}

/// Joins the files `inputs`, which were opened as `parts`.
fn join_parts(lock: &OutputLock, inputs: &[JoinedFile], parts: &[Part]) -> Result<()> {
    let paths: Vec<&Path> = inputs.iter().map(|input| input.path.as_path()).collect();
    let (format, metadata) = parts::check(parts)?;
    let merged = match format {
        OutputFormat::Jsonl | OutputFormat::Csv => formats::concatenate(lock, format, inputs),
        OutputFormat::Parquet | OutputFormat::Arrow => join_rows(lock, format, inputs, &metadata),
        OutputFormat::Npy | OutputFormat::Npz | OutputFormat::Safetensors => {
            arrays::join(lock, format, &paths, &metadata)
        }
    };
    if let Err(error) = merged {
        // A merge is not resumed. What cannot be removed now, the next run replaces.
        let _ = lock.discard();
        return Err(error);
    }
    if let Some(sidecars) = lock.sidecars() {
        join_ledgers(sidecars, &paths)?;
        parts::join_npy_metadata(sidecars, parts, &metadata)?;
    }
    Ok(())
}

/// Joins the rows of Parquet or Arrow files. The row groups depend on the rows only, so they are those of a
/// single run.
fn join_rows(
    lock: &OutputLock,
    format: OutputFormat,
    inputs: &[JoinedFile],
    metadata: &FileMetadata,
) -> Result<()> {
    let without_metadata =
        |schema: &OutputSchema| OutputSchema { metadata: FileMetadata::default(), ..schema.clone() };
    let schemas = inputs.iter().map(|input| Ok(RowFile::open(&input.path, format)?.schema().clone()));
    let schemas = schemas.collect::<Result<Vec<_>>>()?;
    let first = &schemas[0];
    for (input, schema) in inputs.iter().zip(&schemas) {
        if without_metadata(schema) != without_metadata(first) {
            bail!(
                "{} has other columns than {} ({}); merge files of the same columns and types",
                input.path.display(),
                inputs[0].path.display(),
                first_difference(schema, first)
            );
        }
    }
    let schema = OutputSchema { metadata: metadata.clone(), ..first.clone() };
    let mut writer = Writer::open(lock, &schema, None)?;
    for JoinedFile { path, kept } in inputs {
        RowFile::open(path, format)?.for_each_batch(kept.as_deref(), |batch| writer.write_batch(batch))?;
    }
    writer.finish()
}

/// What the columns of a file differ in from those of the `first` one.
fn first_difference(schema: &OutputSchema, first: &OutputSchema) -> String {
    if schema.ids != first.ids {
        return "the ids are of another type".into();
    }
    let find = |schema: &OutputSchema, name: &str| {
        schema.kept.iter().find(|column| column.name == name).map(|column| column.column_type.clone())
    };
    let names = first.kept.iter().chain(&schema.kept).map(|column| column.name.as_str());
    let differs = |name: &&str| find(schema, name) != find(first, name);
    match names.into_iter().find(differs) {
        None => "the vectors or the order of columns".into(),
        Some(name) if find(schema, name).is_none() => format!("it has no {name:?}"),
        Some(name) if find(first, name).is_none() => format!("it has {name:?}"),
        Some(name) => format!("{name:?} is of another type, which the first records give it"),
    }
}

/// Joins the ledgers beside the inputs, without repeating entries: a record that cannot be read is in the
/// ledger of each run that appends rows. Without any ledger, an earlier ledger of the output is removed.
pub(super) fn join_ledgers(sidecars: &SidecarPaths, inputs: &[&Path]) -> Result<()> {
    let mut ledger = Ledger::open(&sidecars.ledger, &sidecars.output, None)?;
    let mut seen = HashSet::new();
    for input in inputs {
        let Some(paths) = SidecarPaths::of(&Target::File((*input).to_owned()))? else { continue };
        if regular_file::has_dir_entry(&paths.final_ledger) {
            let unread = |error| anyhow!("cannot read the ledger {} ({error})", paths.final_ledger.display());
            let mut file = BufReader::new(regular_file::open(&paths.final_ledger).map_err(unread)?);
            ledger.append(&paths.final_ledger, |line| read_line(&mut file, line), &mut seen)?;
        }
    }
    ledger.finish(&sidecars.final_ledger)
}
