//! From the modules after pooling to heads that are ready to run.

use std::path::Path;

use anyhow::{Result, bail};

use super::{ModelOptions, WrongUsage};
use crate::model::pipeline::{HEAD_NAMES, HeadModule, Pipeline};
use crate::model::weights::{Checkpoint, Report};
use crate::nn::{Count, Engine, Head, Parameters, Pool, Pooling, Random};

/// Checks that every module takes what the one before it gives, and gives back the dimensions of the vectors in
/// the end; without pooling there is no vector for a head to take.
pub fn dimensions(
    options: &ModelOptions,
    pipeline: &Pipeline,
    pooling: &Pooling,
    hidden: usize,
) -> Result<usize> {
    if let Some(module) = &pipeline.pooling
        && let Some(width) = module.width.filter(|width| *width != hidden)
    {
        bail!(
            "{} is for hidden states of {width} dimensions, but the model has {hidden}; use the files of one model",
            module.file.display()
        )
    }
    let pooled = pooling.dimensions(hidden);
    if *pooling == Pooling::None {
        return Ok(pooled);
    }
    pipeline.outputs(pooled).or_else(|(head, found)| {
        let (file, takes) = (head.config(), head.spec.inputs().unwrap_or(found));
        let file = file.display();
        match &options.pooling {
            Some(chosen) => bail!(WrongUsage(format!(
                "--pooling {chosen} gives vectors of {found} dimensions, but {file} takes {takes}; leave the option \
                 out, or pass --pooling none"
            ))),
            None => bail!(
                "{file} takes vectors of {takes} dimensions, but what comes before it gives {found}; use the \
                 files of one model"
            ),
        }
    })
}

/// Whether what comes out in the end has unit length.
pub fn normalized(heads: &[Head]) -> bool {
    matches!(heads.last(), Some(Head::Normalize))
}

/// The model's own pooler, if `pooling` asks for it.
pub fn pooler(parameters: &mut dyn Parameters, pooling: &Pooling, hidden: usize) -> Result<Option<Head>> {
    match asks_for_pooler(pooling) {
        true => Ok(Some(Head::load_pooler(parameters, hidden)?)),
        false => Ok(None),
    }
}

/// Whether a pooling needs the model's own pooler.
pub fn asks_for_pooler(pooling: &Pooling) -> bool {
    matches!(pooling, Pooling::Text(pools) if pools.contains(&Pool::Pooler))
}

/// Adds the numbers of the heads that follow pooling to `count`. With random weights no file bounds them.
///
/// # Errors
/// If the weights are random and a head has more than `max_bytes`.
pub fn count(modules: &[HeadModule], is_random: bool, max_bytes: usize, count: &mut Count) -> Result<()> {
    for module in modules {
        let before = count.parameters;
        Head::load(count, "head", &module.spec)?;
        let parameters = count.parameters - before;
        if is_random && parameters.saturating_mul(size_of::<f32>()) > max_bytes {
            bail!("{} describes {parameters} parameters; check its sizes", module.config().display())
        }
    }
    Ok(())
}

/// Loads the heads that follow pooling, each from its own file or, where there is a `seed`, from random numbers.
/// What became of the tensors is added to `report`.
pub fn load(modules: &[HeadModule], seed: Option<u64>, report: &mut Option<Report>) -> Result<Vec<Head>> {
    let mut heads = Vec::new();
    for (i, module) in modules.iter().enumerate() {
        // Random numbers follow from the name: each head has its own.
        let name = format!("heads.{i}");
        let weights = if seed.is_some() { None } else { module.weights()? };
        heads.push(match weights {
            Some(path) => from_file(&path, module, report.get_or_insert_default())?,
            // A head that needs no weights asks for none, whatever the seed.
            None => {
                let mut source = Random::new(seed.unwrap_or_default(), Engine::default());
                Head::load(&mut source, &name, &module.spec)?
            }
        });
    }
    Ok(heads)
}

fn from_file(path: &Path, module: &HeadModule, report: &mut Report) -> Result<Head> {
    let checkpoint = Checkpoint::open(path)?;
    let mut reader = checkpoint.reader_under("", &HEAD_NAMES);
    let head = Head::load(&mut reader, "head", &module.spec)?;
    let own = reader.finish();
    checkpoint.check_unchanged()?;
    if let Some(first) = own.problems.first() {
        let config = module.config();
        bail!("{}: {first}; the weights do not belong to {}", path.display(), config.display())
    }
    let folder = module.folder.file_name().unwrap_or_default().to_string_lossy();
    let named = |name: String| format!("{folder}: {name}");
    report.used.extend(own.used.into_iter().map(|(name, shape, dtype)| (named(name), shape, dtype)));
    report.unused.extend(own.unused.into_iter().map(named));
    report.not_finite.extend(own.not_finite.into_iter().map(|(name, count)| (named(name), count)));
    Ok(head)
}
