//! What the maths of a stack is, in plain numbers.

use anyhow::{Result, ensure};

use super::{Activation, NormKind};

/// An encoder: embeddings, then layers of multi-head attention and a feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSpec {
    /// Rows of the token embedding table.
    pub vocab_size: usize,
    /// Width of the embedding tables (Lan et al. 2020, §3.1).
    pub embedding_size: usize,
    /// Whether a linear layer leads from it to `hidden_size`; where they differ, it has to.
    pub embedding_projection: bool,
    /// How tokens are told where they stand.
    pub positions: Positions,
    /// How many places there are: rows of the position table, or what the model was made for.
    pub max_positions: usize,
    /// Rows of the segment table; without one, segments make no difference.
    pub token_types: Option<usize>,
    /// Rows of the task table, of which every token gets the first (Sun et al. 2020).
    pub task_types: Option<usize>,
    /// Where the embedding layer has its norm.
    pub embedding_norm: EmbeddingNorm,
    /// Width `H` of the hidden states.
    pub hidden_size: usize,
    /// Number of layers that a text passes.
    pub layers: usize,
    /// Which of them share weights.
    pub layer_sharing: LayerSharing,
    /// Where the norms of a layer stand.
    pub norm_placement: NormPlacement,
    /// Whether the first layer goes without the norm before its attention, the embedding layer having one.
    pub skip_first_norm: bool,
    /// The norms.
    pub norm: NormSpec,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values; each serves `heads / key_value_heads` neighbouring heads of the queries
    /// (Ainslie et al. 2023).
    pub key_value_heads: usize,
    /// Columns of a head of the queries and keys, which also sets the scale of the scores. More than
    /// `hidden_size / heads` take away the low-rank bottleneck (Bhojanapalli et al. 2020).
    pub qk_head_size: usize,
    /// Columns of a head of the values.
    pub v_head_size: usize,
    /// Talking heads.
    pub head_mixing: HeadMixing,
    /// What is added to the scores of queries and keys.
    pub score_bias: ScoreBias,
    /// Which tokens a token sees.
    pub mask: Mask,
    /// A convolution beside the first layer.
    pub convolution: Option<ConvolutionSpec>,
    /// Which linear layers have a bias.
    pub bias: Biases,
    /// Whether the feed-forward network is gated: `down(f(gate(x)) ∘ up(x))` (Shazeer 2020).
    pub gated: bool,
    /// Width of the feed-forward network between its linear layers.
    pub intermediate_size: usize,
    /// Activation of the feed-forward network.
    pub activation: Activation,
}

/// How tokens are told where they stand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Positions {
    /// Not at all.
    None,
    /// By a row of a learned table, added to the embedding (Devlin et al. 2019).
    Learned(Numbering),
    /// By sines and cosines of the place, added to the embedding (Vaswani et al. 2017, §3.5).
    Sinusoidal,
    /// By turning queries and keys (Su et al. 2021).
    Rotary(Rotary),
    /// By a score that falls with the distance, faster in some heads than in others (Press et al. 2022), on both
    /// sides alike.
    Alibi,
}

/// How the tokens of a text are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// 0, 1, 2, …
    FromZero,
    /// From the padding id + 1 on; a padding token inside of a text has the number of its id and is not counted
    /// (Liu et al. 2019, as fairseq does it).
    AfterPadding(u32),
}

/// Rotary positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// How fast the pairs turn.
    pub frequencies: Frequencies,
    /// The same in layers with a window, where it differs.
    pub local: Option<Frequencies>,
    /// Which columns make a pair.
    pub layout: RotaryLayout,
    /// Whether the values turn, too.
    pub values: bool,
    /// Whether the weights may hold a table of sines and cosines of their own, which then counts.
    pub stored: bool,
}

/// How fast the pairs of columns turn from token to token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frequencies {
    /// Pair `i` of `n` turns by `theta^(−i/n)`.
    pub theta: f64,
    /// What stretches a model to longer texts than it was trained on.
    pub scaling: RotaryScaling,
}

/// Which columns of a head make a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotaryLayout {
    /// `i` and `i + n`, of `n` pairs.
    Halves,
    /// `2 i` and `2 i + 1`.
    Neighbours,
}

/// Changes of the rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RotaryScaling {
    /// None.
    None,
    /// All slower by the factor.
    Linear { factor: f64 },
    /// A larger theta, and all slower by `factor^(2/d)`: NTK scaling that does not look at the text's length.
    Ntk { factor: f64 },
    /// Slow pairs slower by the factor, fast ones as they are, a ramp between (Llama 3.1).
    Llama3 { factor: f64, low: f64, high: f64, original: f64 },
    /// The same with a ramp over the pairs, and a factor on the result (Peng et al. 2023).
    Yarn { factor: f64, fast: f64, slow: f64, original: f64, magnitude: Option<f64>, whole: bool },
}

/// Where the embedding layer has its norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingNorm {
    /// Nowhere.
    None,
    /// On the sum of the tables, before a projection to the hidden size.
    Before,
    /// After the projection.
    After,
}

/// Where the norms of a layer stand (Xiong et al. 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// After each residual connection: post-norm.
    After,
    /// Before attention and before the feed-forward network: pre-norm.
    Before,
    /// The same, with one more after the last layer.
    BeforeAndFinal,
}

/// What a norm computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// LayerNorm or RMSNorm.
    pub kind: NormKind,
    /// Whether a bias is added.
    pub bias: bool,
    /// What is added to the variance, or to the mean square.
    pub eps: f64,
}

/// Talking heads: scores and weights of all heads mixed by a learned matrix (Shazeer et al. 2020).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeadMixing {
    /// Heads that come out of mixing the scores, before the softmax.
    pub before: Option<usize>,
    /// Heads that come out of mixing the weights, after the softmax; as many has the value.
    pub after: Option<usize>,
}

/// A bias on attention scores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScoreBias {
    /// None.
    None,
    /// A learned number for each head and bucket of distances, the same in every layer (Raffel et al. 2020, §2.1;
    /// Song et al. 2020).
    Bucketed {
        /// Rows of the table.
        rows: usize,
        /// Buckets in use, half of them for either direction.
        buckets: usize,
        /// The distance from which on all share the last bucket.
        max_distance: usize,
    },
    /// Queries against the embedding of the distance, and keys against it (He et al. 2021).
    Disentangled(Disentangled),
}

/// Disentangled attention (He et al. 2021, §3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disentangled {
    /// Distances with an embedding, in either direction.
    pub span: usize,
    /// The distance from which on all share the last embedding, where far distances share buckets.
    pub max_distance: Option<usize>,
    /// Whether queries meet distances.
    pub content_to_position: bool,
    /// Whether keys meet distances.
    pub position_to_content: bool,
    /// Whether distances go through the projections of the tokens, not through some of their own.
    pub shared: bool,
    /// Whether the embeddings of distances are normalised.
    pub norm: bool,
}

/// Which tokens of its text a token sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Whether it sees only itself and the tokens before it.
    pub causal: bool,
    /// How many tokens it sees on either side in the layers with a window, and which layers those are.
    pub window: Option<(usize, Vec<bool>)>,
}

/// A convolution along a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvolutionSpec {
    /// Tokens under the kernel, an odd number.
    pub width: usize,
    /// What follows the sum.
    pub activation: Activation,
}

/// Which linear layers have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// From the embedding size to the hidden size.
    pub projection: bool,
    /// Queries, keys and values.
    pub qkv: bool,
    /// After attention.
    pub attention_output: bool,
    /// Into the feed-forward network, its gate included.
    pub up: bool,
    /// Out of it.
    pub down: bool,
}

/// Which layers share weights (Lan et al. 2020, §3.1). Each of the `layers` belongs to one of
/// `groups`, the first ones to the first group and so on, and runs the `inner` layers of that group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSharing {
    /// Sets of weights.
    pub groups: usize,
    /// Layers in each set.
    pub inner: usize,
}

impl LayerSharing {
    /// The group of a layer, with the rounding of `transformers`.
    pub fn group(&self, layer: usize, layers: usize) -> usize {
        (layer as f64 / (layers as f64 / self.groups as f64)) as usize
    }
}

impl Numbering {
    /// The number of the first token.
    pub fn first(self) -> usize {
        match self {
            Numbering::FromZero => 0,
            Numbering::AfterPadding(padding) => padding as usize + 1,
        }
    }
}

impl EncoderSpec {
    /// The longest text in tokens.
    pub fn longest(&self) -> usize {
        match self.positions {
            Positions::Learned(numbering) => self.max_positions.saturating_sub(numbering.first()),
            _ => self.max_positions,
        }
    }

    /// Heads whose scores go through the softmax.
    pub fn softmax_heads(&self) -> usize {
        self.head_mixing.before.unwrap_or(self.heads)
    }

    /// Heads that weigh values.
    pub fn value_heads(&self) -> usize {
        self.head_mixing.after.unwrap_or(self.softmax_heads())
    }

    /// Checks that the numbers fit each other.
    ///
    /// # Errors
    /// If they do not.
    pub fn check(&self) -> Result<()> {
        let groups = self.key_value_heads;
        ensure!(
            groups > 0 && self.heads.is_multiple_of(groups),
            "{} heads of queries cannot share {groups} heads of keys evenly",
            self.heads
        );
        ensure!(
            groups == self.heads || self.head_mixing == HeadMixing::default(),
            "talking heads with fewer heads of keys than of queries are not supported"
        );
        ensure!(
            self.embedding_projection || self.embedding_size == self.hidden_size,
            "embeddings of {} columns do not reach a hidden size of {}",
            self.embedding_size,
            self.hidden_size
        );
        if let Positions::Rotary(rotary) = self.positions {
            let (size, values) = (self.qk_head_size, self.v_head_size);
            ensure!(size.is_multiple_of(2), "heads of {size} columns cannot turn in pairs");
            ensure!(
                !rotary.values || values == size,
                "values of {values} columns cannot turn like keys of {size}"
            );
        }
        if let Some((_, layers)) = &self.mask.window {
            ensure!(layers.len() == self.layers, "windows for {} of {} layers", layers.len(), self.layers);
        }
        let LayerSharing { groups, inner } = self.layer_sharing;
        ensure!(groups > 0 && groups <= self.layers && inner > 0, "{groups} groups of {inner} layers");
        let sizes = [
            self.hidden_size,
            self.embedding_size,
            self.intermediate_size,
            self.qk_head_size,
            self.v_head_size,
            self.softmax_heads(),
            self.value_heads(),
            self.vocab_size,
        ];
        ensure!(!sizes.contains(&0), "a size is 0");
        let skips = self.skip_first_norm && self.norm_placement == NormPlacement::After;
        ensure!(!skips, "a layer of post-norm cannot go without a norm");
        Ok(())
    }
}
