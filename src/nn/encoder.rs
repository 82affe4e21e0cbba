//! The whole stack.

use std::fmt;
use std::sync::Arc;

use anyhow::{Result, ensure};
use candle_core::Tensor;

use super::attention::Context;
use super::convolution::Convolution;
use super::distance::{DistanceBias, DistanceEmbeddings};
use super::embeddings::Embeddings;
use super::layer::Layer;
use super::norm::Norm;
use super::rotary::Angles;
use super::{
    EncoderSpec, Engine, NormPlacement, Numbering, Parameters, Positions, RaggedBatch, ScoreBias, Watch,
};
use crate::ops::attention::{SIZES, Visible, tiles};
use crate::ops::gpu::finish;

/// Embeddings and layers.
pub struct Encoder {
    spec: EncoderSpec,
    embeddings: Embeddings,
    angles: Option<Angles>,
    bias: Option<DistanceBias>,
    distances: Option<Arc<DistanceEmbeddings>>,
    /// Each set of weights once, by group: layers that share them run the same ones.
    groups: Vec<Vec<Layer>>,
    convolution: Option<Convolution>,
    final_norm: Option<Norm>,
    engine: Engine,
    watch: Option<Watch>,
}

/// A place on the way through the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// After the embedding layer, at the hidden size.
    Embeddings,
    /// After this layer, counted from 0; after the last one and the final norm, where there is one.
    Layer(usize),
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Embeddings => write!(f, "embeddings"),
            Stage::Layer(index) => write!(f, "layer.{index}"),
        }
    }
}

impl Encoder {
    /// Builds the stack that `spec` describes from `parameters`.
    ///
    /// # Errors
    /// If the spec contradicts itself, or the source of the weights fails.
    pub fn load(spec: &EncoderSpec, parameters: &mut dyn Parameters) -> Result<Self> {
        spec.check()?;
        let embeddings = Embeddings::load(parameters, spec)?;
        let angles = Angles::load(parameters, spec)?;
        let bias = DistanceBias::load(parameters, spec)?;
        let distances = DistanceEmbeddings::load(parameters, spec)?;
        let mut layer = |group: usize, inner: usize| {
            let (name, first) = (format!("layers.{group}.{inner}"), group + inner == 0);
            Layer::load(parameters, &name, spec, distances.as_ref(), first)
        };
        let groups = (0..spec.layer_sharing.groups)
            .map(|group| (0..spec.layer_sharing.inner).map(|inner| layer(group, inner)).collect())
            .collect::<Result<_>>()?;
        let convolution = Convolution::load(parameters, spec)?;
        let final_norm = (spec.norm_placement == NormPlacement::BeforeAndFinal)
            .then(|| Norm::load(parameters, "final_norm", spec.hidden_size, spec.norm))
            .transpose()?;
        let (spec, engine) = (spec.clone(), parameters.engine().clone());
        // Only tables are read while the stack runs.
        let watch = parameters.watch().filter(|_| embeddings.stored_bytes() > 0);
        finish(&engine.device())?;
        Ok(Encoder {
            spec,
            embeddings,
            angles,
            bias,
            distances,
            groups,
            convolution,
            final_norm,
            engine,
            watch,
        })
    }

    /// What this stack computes.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }

    /// What this stack runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether several threads may use its device at once: not where products are candle's, which has one cuBLAS for all.
    pub fn may_overlap(&self) -> bool {
        let spec = &self.spec;
        let plain = spec.score_bias == ScoreBias::None && spec.positions != Positions::Alibi;
        let unmixed = spec.head_mixing.before.is_none() && spec.head_mixing.after.is_none();
        let heads = spec.qk_head_size == spec.v_head_size && SIZES.contains(&spec.qk_head_size);
        let widths = [spec.embedding_size, spec.hidden_size, spec.intermediate_size];
        let whole = widths.iter().all(|width| width.is_multiple_of(8));
        self.engine.is_16_bit() && plain && unmixed && heads && whole
    }

    /// Bytes of weights that come into memory only as texts need them.
    pub fn stored_bytes(&self) -> usize {
        self.embeddings.stored_bytes()
    }

    /// The last hidden states of a batch of `T` tokens, `(T, H)`.
    ///
    /// # Errors
    /// If a token or segment id has no row in its table, a text is longer than the positions reach, or the file that
    /// tables are read from has changed.
    pub fn forward(&self, batch: &RaggedBatch) -> Result<Tensor> {
        self.forward_observed(batch, |_, _| Ok(()))
    }

    /// [`Encoder::forward`], showing the hidden states after every stage to `observe`.
    pub fn forward_observed(
        &self,
        batch: &RaggedBatch,
        mut observe: impl FnMut(Stage, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        self.check(batch)?;
        // Before, since what is not in a mapped file any more ends the process; after, since it may have changed meanwhile.
        self.check_source()?;
        let mut hidden = self.embeddings.forward(batch, &self.engine)?;
        self.check_source()?;
        observe(Stage::Embeddings, &hidden)?;
        let embedded = self.convolution.as_ref().map(|_| hidden.clone());
        let places = batch.positions(Numbering::FromZero);
        let all = self.context(batch, &places, None)?;
        let window = self.spec.mask.window.as_ref();
        let near = window.map(|(reach, _)| self.context(batch, &places, Some(*reach))).transpose()?;
        for index in 0..self.spec.layers {
            let context = match (&near, window) {
                (Some(near), Some((_, layers))) if layers[index] => near,
                _ => &all,
            };
            let group = self.spec.layer_sharing.group(index, self.spec.layers);
            for layer in &self.groups[group] {
                hidden = layer.forward(&hidden, context)?;
            }
            if let (0, Some(convolution), Some(embedded)) = (index, &self.convolution, &embedded) {
                hidden = convolution.forward(embedded, &hidden, batch)?;
            }
            if let Some(norm) = self.final_norm.as_ref().filter(|_| index + 1 == self.spec.layers) {
                hidden = norm.forward(hidden)?;
            }
            observe(Stage::Layer(index), &hidden)?;
        }
        Ok(hidden)
    }

    /// What the places of a batch's tokens mean in layers whose tokens see so far, or without end.
    fn context<'a>(
        &self,
        batch: &'a RaggedBatch,
        places: &'a [u32],
        reach: Option<usize>,
    ) -> Result<Context<'a>> {
        let (longest, device) = (batch.longest(), self.engine.device());
        let before = reach.unwrap_or(usize::MAX);
        let after = if self.spec.mask.causal { 0 } else { before };
        Ok(Context {
            offsets: batch.offsets(),
            tiles: self.engine.is_gpu().then(|| tiles(batch.offsets(), &device)).transpose()?,
            places,
            rotation: (self.angles.as_ref())
                .map(|angles| angles.rotation(reach.is_some(), longest, &device))
                .transpose()?,
            bias: (self.bias.as_ref()).map(|bias| bias.by_distance(longest, &device)).transpose()?,
            distances: self.distances.as_ref().map(|distances| distances.rows(longest)),
            visible: Visible { before, after },
        })
    }

    fn check_source(&self) -> Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch())
    }

    fn check(&self, batch: &RaggedBatch) -> Result<()> {
        let largest = |ids: &[u32]| ids.iter().copied().max().unwrap_or(0) as usize;
        let id = largest(batch.ids());
        let longest = batch.longest();
        let spec = &self.spec;
        ensure!(id < spec.vocab_size, "token id {id} is past the vocabulary of {}", spec.vocab_size);
        if let Some(types) = spec.token_types {
            let type_id = largest(batch.type_ids());
            ensure!(type_id < types, "segment id {type_id}, but the model has {types} segments");
        }
        let most = spec.longest();
        ensure!(longest <= most, "a text of {longest} tokens, but the model has room for {most}");
        Ok(())
    }
}
