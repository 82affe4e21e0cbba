//! The encoder: embeddings and layers.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use anyhow::{Result, ensure};
use candle_core::Tensor;

use super::attention::AttentionContext;
use super::convolution::Convolution;
use super::embeddings::Embeddings;
use super::layer::Layer;
use super::norm::Norm;
use super::relative_position::{RelativeBias, RelativeEmbeddings};
use super::rotary::RotaryEmbedding;
use super::rows::{PrefixTree, Selection};
use super::{
    AttentionWeights, Backend, ChangeCheck, EncoderSpec, GlobalTokens, Numbering, RaggedBatch, TalkingHeads,
    WeightSource,
};
use crate::ops::attention::{AttentionWindow, query_tiles};
use crate::ops::gpu::{AttentionVariant, synchronize};

/// An encoder with its weights.
pub struct Encoder {
    spec: EncoderSpec,
    embeddings: Embeddings,
    rotary: Option<RotaryEmbedding>,
    /// One for all layers, or one for each.
    relative_biases: Vec<RelativeBias>,
    relative_embeddings: Option<Arc<RelativeEmbeddings>>,
    /// The layers of each group of `LayerSharing`: weights that several layers share are loaded once.
    groups: Vec<Vec<Layer>>,
    convolution: Option<Convolution>,
    final_norm: Option<Norm>,
    backend: Backend,
    /// Set where embeddings are read from a mapped file.
    source_check: Option<ChangeCheck>,
}

/// Receives the hidden states after each stage.
type StageObserver<'a> = dyn FnMut(Stage, &Tensor) -> Result<()> + 'a;
/// Receives the attention weights of each attention layer.
type AttentionObserver<'a> = dyn FnMut(usize, AttentionWeights) -> Result<()> + 'a;

/// A stage of the forward pass, with hidden states of `(T, H)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// After the embedding layer and its projection.
    Embeddings,
    /// After this layer, counted from 0; for the last layer after the final norm, if there is one.
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
    /// Builds the encoder that `spec` describes with weights from `source`.
    ///
    /// # Errors
    /// If the spec contradicts itself, or the source fails.
    pub fn load(spec: &EncoderSpec, source: &mut dyn WeightSource) -> Result<Self> {
        spec.check()?;
        let embeddings = Embeddings::load(source, spec)?;
        let rotary = RotaryEmbedding::load(source, spec)?;
        let relative_biases = RelativeBias::load(source, spec)?;
        let relative_embeddings = RelativeEmbeddings::load(source, spec)?;
        let mut layer = |group: usize, inner: usize| {
            let (name, index) = (format!("layers.{group}.{inner}"), group * spec.layer_sharing.inner + inner);
            Layer::load(source, &name, spec, relative_embeddings.as_ref(), index)
        };
        let groups = (0..spec.layer_sharing.groups)
            .map(|group| (0..spec.layer_sharing.inner).map(|inner| layer(group, inner)).collect())
            .collect::<Result<_>>()?;
        let convolution = Convolution::load(source, spec)?;
        let final_norm = (spec.norm_placement.has_final_norm())
            .then(|| Norm::load(source, "final_norm", spec.hidden_size, spec.norm))
            .transpose()?;
        let (spec, backend) = (spec.clone(), source.backend().clone());
        // After loading, only embedding tables are read from the file.
        let source_check = source.change_check().filter(|_| embeddings.stored_bytes() > 0);
        synchronize(&backend.device())?;
        Ok(Encoder {
            spec,
            embeddings,
            rotary,
            relative_biases,
            relative_embeddings,
            groups,
            convolution,
            final_norm,
            backend,
            source_check,
        })
    }

    /// What this encoder computes.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }

    /// The device and type that this encoder computes on and in.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Whether several threads may run this encoder on its device at once. False where candle computes
    /// matmuls, because it has one cuBLAS handle for all threads: only shapes with kernels of this crate
    /// qualify.
    pub fn may_overlap(&self) -> bool {
        let spec = &self.spec;
        let widths =
            [spec.projection_inputs(), spec.hidden_size, spec.sublayer_width(), spec.intermediate_size];
        let attention = AttentionVariant {
            qk_head_dim: spec.qk_head_dim,
            v_head_dim: spec.v_head_dim,
            changes_scores: spec.has_score_bias() || spec.score_cap.is_some(),
            has_talking_heads: spec.talking_heads != TalkingHeads::default(),
        };
        // A router has as many outputs as there are experts.
        spec.experts.is_none() && self.backend.has_kernels(&widths, &attention)
    }

    /// Bytes of embedding tables that are read from a mapped file as tokens need them.
    pub fn stored_bytes(&self) -> usize {
        self.embeddings.stored_bytes()
    }

    /// The last hidden states of a batch of `T` tokens, `(T, H)`. With a causal mask, prefixes that sequences
    /// of the batch share are computed once.
    ///
    /// # Errors
    /// If a token id or token type id has no row in its table, a sequence is longer than
    /// [`EncoderSpec::position_limit`], or a file that embeddings are read from has changed.
    pub fn forward(&self, batch: &RaggedBatch) -> Result<Tensor> {
        self.run(batch, None, None, None)
    }

    /// The last hidden states of some tokens, `(R, H)`: these rows of [`Encoder::forward`]. The last layer
    /// computes the keys and values of all tokens, and the output projection and feed-forward network of
    /// these tokens only; their queries and attention only, too, where
    /// [`Attention::selects_queries`](crate::ops::attention::Attention::selects_queries) allows it.
    ///
    /// # Errors
    /// As [`Encoder::forward`], and if the batch does not have one of the tokens.
    pub fn forward_selected(&self, batch: &RaggedBatch, tokens: &[u32]) -> Result<Tensor> {
        self.run(batch, Some(tokens), None, None)
    }

    /// The means of the token embeddings of sequences, each given by its ids, `(N, H)`; zeros for one without
    /// ids. What [`Encoder::forward`] and a mean compute if [`EncoderSpec::is_static`], without hidden states
    /// in between.
    ///
    /// # Errors
    /// If an id has no row in the table, or the file that it is read from has changed.
    pub fn mean_embeddings<I: Iterator<Item = u32>>(
        &self,
        sequences: impl ExactSizeIterator<Item = I>,
    ) -> Result<Tensor> {
        self.check_source()?;
        let means = self.embeddings.means(sequences)?;
        self.check_source()?;
        Ok(means)
    }

    /// [`Encoder::forward`], which calls `observe` with the hidden states of all tokens after every stage.
    ///
    /// # Errors
    /// As [`Encoder::forward`], and those of `observe`.
    pub fn forward_observed(
        &self,
        batch: &RaggedBatch,
        mut observe: impl FnMut(Stage, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        self.run(batch, None, Some(&mut observe), None)
    }

    /// [`Encoder::forward`], which calls `observe` with the attention weights of every attention layer,
    /// counted from 0 (a layer that consists of several counts as several). Attention is computed by the
    /// reference path, in f32.
    ///
    /// # Errors
    /// As [`Encoder::forward`], and those of `observe`.
    pub fn forward_with_attention(
        &self,
        batch: &RaggedBatch,
        mut observe: impl FnMut(usize, AttentionWeights) -> Result<()>,
    ) -> Result<Tensor> {
        self.run(batch, None, None, Some(&mut observe))
    }

    /// Number of attention layers: those of [`Encoder::forward_with_attention`].
    pub fn attention_layers(&self) -> usize {
        self.spec.layers * self.spec.layer_sharing.inner - self.spec.convolution_layers()
    }

    /// The last hidden states of all tokens, or of the `selected` ones.
    fn run(
        &self,
        batch: &RaggedBatch,
        selected: Option<&[u32]>,
        mut observe: Option<&mut StageObserver>,
        mut observe_attention: Option<&mut AttentionObserver>,
    ) -> Result<Tensor> {
        self.check(batch)?;
        // Checked before the lookup, since reading past the end of a truncated mapped file ends the process
        // with SIGBUS, and after it, since the file may change meanwhile.
        self.check_source()?;
        let mut hidden = self.embeddings.forward(batch, &self.backend)?;
        self.check_source()?;
        let device = self.backend.device();
        let is_observed = observe.is_some() || observe_attention.is_some();
        let tree = if is_observed { None } else { self.prefix_tree(batch)? };
        let tree = tree.as_ref();
        let mut positions = batch.position_ids(Numbering::FromZero);
        if let Some(tree) = tree {
            (hidden, positions) = (tree.tokens.select(&hidden)?, tree.tokens.of(&positions));
        }
        let mut observe =
            |stage: Stage, hidden: &Tensor| observe.as_mut().map_or(Ok(()), |observe| observe(stage, hidden));
        observe(Stage::Embeddings, &hidden)?;
        let embeddings = self.convolution.as_ref().map(|_| hidden.clone());
        let global_tokens = self.spec.global_tokens.map(|tokens| global_lengths(batch, tokens));
        let global_tokens = global_tokens.as_deref();
        ensure!(
            global_tokens.is_none() || observe_attention.is_none(),
            "attention weights of global attention are not supported"
        );
        let global = self.context(batch, tree, &positions, None, global_tokens)?;
        let window = self.spec.mask.sliding_window.as_ref();
        let local = window
            .map(|window| self.context(batch, tree, &positions, Some(window.radius), global_tokens))
            .transpose()?;
        let selection = selected.map(|tokens| Selection::new(tokens, tree, &device)).transpose()?;
        // The layer after which only the selected tokens are left; a convolution needs all of them after the
        // first.
        let layers = self.spec.layers;
        let last = layers.checked_sub(1).filter(|last| *last > 0 || self.convolution.is_none());
        // The attention weights of one layer, if they are observed.
        let mut kept = observe_attention.is_some().then(Vec::new);
        let mut attention_layers = 0;
        for index in 0..layers {
            let context = match (&local, window) {
                (Some(local), Some(window)) if window.layers[index] => local,
                _ => &global,
            };
            let group = &self.groups[self.spec.layer_sharing.group(index, layers)];
            for (inner, layer) in group.iter().enumerate() {
                let is_last = last == Some(index) && inner + 1 == group.len();
                let selection = selection.as_ref().filter(|_| is_last);
                hidden = layer.forward(&hidden, context, selection, kept.as_mut())?;
            }
            if let (Some(observe), Some(kept)) = (&mut observe_attention, &mut kept) {
                for weights in kept.drain(..) {
                    observe(attention_layers, weights)?;
                    attention_layers += 1;
                }
            }
            if let (0, Some(convolution), Some(embeddings)) = (index, &self.convolution, &embeddings) {
                hidden = convolution.forward(embeddings, &hidden, batch)?;
            }
            if let Some(norm) = self.final_norm.as_ref().filter(|_| index + 1 == layers) {
                hidden = norm.forward(hidden)?;
            }
            observe(Stage::Layer(index), &hidden)?;
        }
        match (&selection, tree) {
            (Some(selection), _) if last.is_none() => selection.hidden.select(&hidden),
            (None, Some(tree)) => tree.nodes.select(&hidden),
            _ => Ok(hidden),
        }
    }

    /// The prefix tree of a batch, where hidden states depend on no later token: with a causal mask, with
    /// rotary frequencies that do not depend on the length of a sequence, and without convolutions or a
    /// score bias, as how far a head with a bias sees follows from the queries and keys of the whole
    /// sequence.
    fn prefix_tree(&self, batch: &RaggedBatch) -> Result<Option<PrefixTree>> {
        let spec = &self.spec;
        if !spec.mask.causal
            || spec.convolution.is_some()
            || spec.short_convolution.is_some()
            || spec.has_score_bias()
            || batch.key_lengths().is_some()
            || self.rotary.as_ref().is_some_and(|rotary| !rotary.is_same_for_all(batch))
        {
            return Ok(None);
        }
        PrefixTree::of(batch, &self.backend.device())
    }

    /// The attention context of a batch in layers with a sliding window of this `radius`, or without a
    /// window.
    fn context<'a>(
        &self,
        batch: &'a RaggedBatch,
        tree: Option<&'a PrefixTree>,
        positions: &'a [u32],
        radius: Option<usize>,
        global_tokens: Option<&'a [usize]>,
    ) -> Result<AttentionContext<'a>> {
        let (max_seqlen, device) = (batch.max_seqlen(), self.backend.device());
        let window_left = radius.unwrap_or(usize::MAX);
        let window_right = if self.spec.mask.causal { 0 } else { window_left };
        let rotation = match &self.rotary {
            Some(rotary) => Some(rotary.rotation(radius.is_some(), batch, &device)?),
            None => None,
        };
        let (rotation, rows) = rotation.map_or((None, None), |(rotation, rows)| (Some(rotation), rows));
        Ok(AttentionContext {
            cu_seqlens: batch.cu_seqlens(),
            key_lengths: batch.key_lengths(),
            global_tokens,
            tiles: self.backend.is_gpu().then(|| query_tiles(batch.cu_seqlens(), &device)).transpose()?,
            tree,
            rotation_rows: rows.map_or(Cow::Borrowed(positions), Cow::Owned),
            rotation,
            biases: (self.relative_biases.iter())
                .map(|bias| bias.by_relative_position(max_seqlen, &device))
                .collect::<Result<_>>()?,
            relative_rows: (self.relative_embeddings.as_ref())
                .map(|relative| relative.rows(max_seqlen))
                .transpose()?,
            visible: AttentionWindow { left: window_left, right: window_right },
        })
    }

    /// Fails if a file that embeddings are read from has changed.
    fn check_source(&self) -> Result<()> {
        self.source_check.as_ref().map_or(Ok(()), |check| check())
    }

    fn check(&self, batch: &RaggedBatch) -> Result<()> {
        let max = |ids: &[u32]| ids.iter().copied().max().unwrap_or(0) as usize;
        let spec = &self.spec;
        let id = max(batch.ids());
        ensure!(id < spec.vocab_size, "token id {id} is not below the vocabulary size {}", spec.vocab_size);
        if let Some(types) = spec.token_types {
            let type_id = max(batch.token_type_ids());
            ensure!(type_id < types, "token type id {type_id} is not below the type vocabulary size {types}");
        }
        ensure!(
            batch.key_lengths().is_none() || spec.convolution.is_none(),
            "tokens that no token attends to are not supported by encoders with a convolution"
        );
        if let Some(limit) = spec.position_limit() {
            let tokens = batch.max_seqlen();
            ensure!(tokens <= limit, "a sequence has {tokens} tokens, but the model has {limit} positions");
        }
        Ok(())
    }
}

/// How many tokens of each sequence have global attention, `(N)`.
fn global_lengths(batch: &RaggedBatch, tokens: GlobalTokens) -> Vec<usize> {
    batch.cu_seqlens().windows(2).map(|bounds| tokens.count(&batch.ids()[bounds[0]..bounds[1]])).collect()
}
