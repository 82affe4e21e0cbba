//! The embedding layer: token, segment and position embeddings, summed and normalised (Devlin et al. 2019, §3).

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::linear::Linear;
use super::norm::Norm;
use super::{
    Activation, EmbeddingNorm, EncoderSpec, Engine, Numbering, Parameters, Positions, RaggedBatch, Table,
};
use crate::ops::lookup::lookup_sum;

/// The tables, a norm, and the way to the hidden size where the tables are narrower.
pub struct Embeddings {
    token: Table,
    token_type: Option<Table>,
    position: Option<Table>,
    task_type: Option<Table>,
    positions: Positions,
    width: usize,
    /// Before the projection.
    norm: Option<Norm>,
    projection: Option<Linear>,
    /// After it.
    final_norm: Option<Norm>,
}

impl Embeddings {
    /// Bytes of the tables that are read from a file row by row.
    pub fn stored_bytes(&self) -> usize {
        let tables =
            [Some(&self.token), self.token_type.as_ref(), self.position.as_ref(), self.task_type.as_ref()];
        tables.into_iter().flatten().map(Table::stored_bytes).sum()
    }

    /// Loads `embeddings.{token,token_type,position,task_type}.weight`, `embeddings.norm` and
    /// `embeddings.projection`, as far as the spec has them.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Self> {
        let width = spec.embedding_size;
        let mut table =
            |name: &str, rows| parameters.table(&format!("embeddings.{name}.weight"), rows, width);
        let learned = matches!(spec.positions, Positions::Learned(_)).then_some(spec.max_positions);
        let token = table("token", spec.vocab_size)?;
        let token_type = spec.token_types.map(|rows| table("token_type", rows)).transpose()?;
        let position = learned.map(|rows| table("position", rows)).transpose()?;
        let task_type = spec.task_types.map(|rows| table("task_type", rows)).transpose()?;
        let mut norm = |place, width| {
            (spec.embedding_norm == place)
                .then(|| Norm::load(parameters, "embeddings.norm", width, spec.norm))
                .transpose()
        };
        let first = norm(EmbeddingNorm::Before, width)?;
        let final_norm = norm(EmbeddingNorm::After, spec.hidden_size)?;
        let projection = (spec.embedding_projection)
            .then(|| {
                let bias = spec.bias.projection;
                Linear::load(parameters, "embeddings.projection", width, spec.hidden_size, bias)
            })
            .transpose()?;
        let positions = spec.positions;
        Ok(Embeddings {
            token,
            token_type,
            position,
            task_type,
            positions,
            width,
            norm: first,
            projection,
            final_norm,
        })
    }

    /// The embeddings of a batch's tokens, `(T, H)`.
    pub fn forward(&self, batch: &RaggedBatch, engine: &Engine) -> Result<Tensor> {
        let numbering = match self.positions {
            Positions::Learned(numbering) => numbering,
            _ => Numbering::FromZero,
        };
        let positions = batch.positions(numbering);
        let tasks = vec![0; positions.len()];
        let waves = match self.positions {
            Positions::Sinusoidal => Some(sinusoids(batch.longest(), self.width, engine)?),
            _ => None,
        };
        let mut tables = vec![(&self.token, batch.ids())];
        tables.extend(self.token_type.iter().map(|table| (table, batch.type_ids())));
        tables.extend(self.position.iter().chain(&waves).map(|table| (table, &positions[..])));
        tables.extend(self.task_type.iter().map(|table| (table, &tasks[..])));
        let mut x = lookup_sum(&tables, self.norm.as_ref().map(Norm::weights), &engine.device())?;
        if let Some(projection) = &self.projection {
            x = projection.forward(&x, Activation::Identity)?;
        }
        match &self.final_norm {
            Some(norm) => norm.forward(x),
            None => Ok(x),
        }
    }
}

/// Sines in the even columns and cosines in the odd ones, in waves from 2π to 10,000 · 2π places long (Vaswani et
/// al. 2017, §3.5): a table of `(longest, width)`.
fn sinusoids(longest: usize, width: usize, engine: &Engine) -> Result<Table> {
    let wave = |place: usize, column: usize| {
        let exponent = (column / 2 * 2) as f64 / width as f64;
        let angle = place as f64 / 10_000f64.powf(exponent);
        (if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    };
    let waves = (0..longest).flat_map(|place| (0..width).map(move |column| wave(place, column)));
    let table = Tensor::from_iter(waves, &Device::Cpu)?.reshape((longest, width))?;
    Ok(Table::resident(engine.place(table)?)?)
}
