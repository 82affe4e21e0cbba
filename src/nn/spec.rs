//! The specification of an encoder: numbers and enums, without tensors and model types.

use anyhow::{Result, ensure};

use super::{Activation, NormKind};

/// Feed-forward networks that a layer may have.
pub const MAX_FEED_FORWARDS: usize = 64;

/// An encoder: embeddings, then layers of multi-head attention and a feed-forward network (Vaswani et al.
/// 2017, Devlin et al. 2019).
///
/// Letters in shapes: `T` tokens of a batch, `N` sequences, `H` the hidden size, `D` the dimensions of a
/// pooled vector.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSpec {
    /// Rows of the token embedding table.
    pub vocab_size: usize,
    /// Columns of the embedding tables; fewer than `hidden_size` in factorised embeddings (Lan et al. 2020,
    /// §3.1).
    pub embedding_size: usize,
    /// Whether a linear layer projects from `embedding_size` to `hidden_size`; required where they differ.
    pub embedding_projection: bool,
    /// What the projection is of.
    pub projected: ProjectedEmbeddings,
    /// Position encoding.
    pub positions: Positions,
    /// Rows of the position table; without one, the number of positions that the model was made for.
    pub max_positions: usize,
    /// The longest sequence that the maths here is the model's for, where that is not all positions: longer
    /// ones have sparse attention (Zaheer et al. 2020, BigBird), or queries that grow with their position.
    pub sequence_limit: Option<usize>,
    /// Rows of the token type (segment) table; `None`: no table, token type ids are ignored.
    pub token_types: Option<usize>,
    /// Rows of the task type table, of which every token gets row 0 (Sun et al. 2020).
    pub task_types: Option<usize>,
    /// Factor on the embeddings; `None`: 1. `√H` in Vaswani et al. 2017 (§3.4).
    pub embedding_scale: Option<f64>,
    /// The mask token of a model that was trained with token dropout: its token embedding is zero, and those
    /// of other tokens have a factor that makes up for it, see [`RaggedBatch::token_dropout`] (Rives et al.
    /// 2021).
    ///
    /// [`RaggedBatch::token_dropout`]: super::RaggedBatch::token_dropout
    pub token_dropout: Option<u32>,
    /// Where the embedding layer has its norm.
    pub embedding_norm: EmbeddingNorm,
    /// Width `H` of the hidden states.
    pub hidden_size: usize,
    /// Number of layers that a forward pass runs; with shared weights a set of weights runs more than once.
    pub layers: usize,
    /// Which layers share weights.
    pub layer_sharing: LayerSharing,
    /// Post-norm or pre-norm.
    pub norm_placement: NormPlacement,
    /// Whether the first layer has no norm before its attention, because the embedding layer ends in one
    /// (Warner et al. 2024).
    pub skip_first_norm: bool,
    /// The norms of all layers.
    pub norm: NormSpec,
    /// The eps of the norms of the embeddings and of the last feed-forward network of a layer; `None`:
    /// that of the others.
    pub output_norm_eps: Option<f64>,
    /// The bottlenecks around the sublayers of a layer.
    pub bottleneck: Option<BottleneckSpec>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / key_value_heads` consecutive query heads (grouped-query
    /// attention, Ainslie et al. 2023).
    pub key_value_heads: usize,
    /// Head dim of queries and keys; scores are scaled by `1 / √qk_head_dim` unless there is a
    /// `query_scalar`. More than `hidden_size / heads` removes the low-rank bottleneck (Bhojanapalli et al.
    /// 2020).
    pub qk_head_dim: usize,
    /// Head dim of values.
    pub v_head_dim: usize,
    /// Scores are scaled by `1 / √query_scalar`; `None`: by the head dim. `query_pre_attn_scalar` of a
    /// config.
    pub query_scalar: Option<f64>,
    /// The bound `c` of scaled scores, which are `c · tanh(x / c)`; `None`: no bound (Riviere et al. 2024,
    /// §2).
    pub score_cap: Option<f64>,
    /// Factor on the output of a sublayer before it is added to the residual; `None`: 1.
    pub residual_scale: Option<f64>,
    /// Norms of queries and keys before they are rotated, of the kind of norm of the layers (QK-norm, Henry
    /// et al. 2020).
    pub qk_norm: QkNorm,
    /// Projections across heads before and after the softmax.
    pub talking_heads: TalkingHeads,
    /// Bias on attention scores.
    pub score_bias: ScoreBias,
    /// Attention mask.
    pub mask: Mask,
    /// The tokens with global attention.
    pub global_tokens: Option<GlobalTokens>,
    /// Convolution beside the first layer (He et al. 2021, nGiE).
    pub convolution: Option<ConvolutionSpec>,
    /// Layers with a short convolution in the place of attention.
    pub short_convolution: Option<ShortConvolutionSpec>,
    /// Which linear layers have a bias.
    pub bias: Biases,
    /// Feed-forward networks of a layer, each in a residual connection of its own (Sun et al. 2020, §3.2).
    pub feed_forwards: usize,
    /// Whether the feed-forward network is gated: `down(f(gate(x)) ∘ up(x))` (Shazeer 2020).
    pub gated: bool,
    /// Width of the feed-forward network between `up` and `down`.
    pub intermediate_size: usize,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Layers whose feed-forward network is a mixture of experts.
    pub experts: Option<ExpertsSpec>,
    /// What the vector of a sequence is by the model's own pooler.
    pub pooler: PoolerSpec,
    /// The token that sequences are padded with to the maximum length, unless the tokenizer names another
    /// one, if tokens attend to the padding (Zhai et al. 2023).
    pub padding: Option<u32>,
}

/// The model's own pooler: a linear layer over the hidden state of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolerSpec {
    /// The token.
    pub token: PooledToken,
    /// The linear layer; `None`: the hidden state is the vector.
    pub dense: Option<PoolerDense>,
}

/// The linear layer of a pooler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolerDense {
    /// Dimensions of the output.
    pub outputs: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
    /// Activation of the output.
    pub activation: Activation,
}

/// The token of a sequence that a pooler takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PooledToken {
    /// The first one, `[CLS]`.
    First,
    /// The last one, which may be padding.
    Last,
    /// The first one with the highest id, the end of the text in some vocabularies (Radford et al. 2021,
    /// §2.4).
    HighestId,
    /// The first one with this id, or the first of all without it.
    FirstOf(u32),
}

impl PooledToken {
    /// The index of the token in a sequence with these ids.
    pub fn index(self, ids: &[u32]) -> usize {
        match self {
            PooledToken::First => 0,
            PooledToken::Last => ids.len().saturating_sub(1),
            PooledToken::HighestId => {
                let highest = ids.iter().max();
                ids.iter().position(|id| Some(id) == highest).unwrap_or(0)
            }
            PooledToken::FirstOf(token) => ids.iter().position(|id| *id == token).unwrap_or(0),
        }
    }
}

impl PoolerSpec {
    /// BERT's pooler: a dense layer with tanh over the hidden state of the first token (Devlin et al. 2019).
    pub fn of_bert(hidden_size: usize) -> Self {
        let dense = PoolerDense { outputs: hidden_size, bias: true, activation: Activation::Tanh };
        PoolerSpec { token: PooledToken::First, dense: Some(dense) }
    }

    /// Dimensions of the vector for hidden states of `hidden_size`.
    pub fn outputs(&self, hidden_size: usize) -> usize {
        self.dense.map_or(hidden_size, |dense| dense.outputs)
    }
}

/// Mixture of experts (Shazeer et al. 2017): several feed-forward networks without biases, of which a router
/// chooses a few for each token; a bias is added to the weighted sum of their outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertsSpec {
    /// Experts.
    pub count: usize,
    /// Experts that each token is routed to.
    pub per_token: usize,
    /// Whether the weights of a token's experts are divided by their sum; otherwise they are the softmax over
    /// all experts.
    pub normalize: bool,
    /// For each layer, whether it has experts. The others have a feed-forward network.
    pub layers: Vec<bool>,
}

/// Position encoding.
#[derive(Debug, Clone, PartialEq)]
pub enum Positions {
    /// No position encoding.
    None,
    /// A learned table of `(max_positions, embedding_size)`, added to the token embedding (Devlin et al.
    /// 2019).
    Learned(Numbering),
    /// Sines and cosines of the position, added to the token embedding (Vaswani et al. 2017, §3.5).
    Sinusoidal,
    /// Rotation of queries and keys (Su et al. 2021).
    Rotary(Rotary),
    /// ALiBi: a bias on the scores that falls linearly with the distance, at a rate of each head's own (Press
    /// et al. 2022); symmetric, since an encoder attends in both directions.
    Alibi,
}

/// How position ids are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// 0, 1, 2, …
    FromZero,
    /// From `pad_token_id` + 1 on; a padding token inside a sequence has the position id `pad_token_id` and
    /// is not counted (Liu et al. 2019, as in fairseq).
    AfterPadding(u32),
}

/// Rotary position embedding (RoPE).
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Angular frequencies.
    pub frequencies: Frequencies,
    /// Frequencies of layers with a sliding window; `None`: the same as in the others.
    pub local: Option<Frequencies>,
    /// Which dimensions of a head form a pair.
    pub layout: RotaryLayout,
    /// Whether values are rotated, too (`rotary_value` of a config).
    pub rotate_values: bool,
    /// Whether a table of sines and cosines in the checkpoint replaces the computed one.
    pub stored_table: bool,
    /// Dimensions of each head that are rotated, the first ones; `None`: all.
    pub rotated_dims: Option<usize>,
}

/// Angular frequencies of rotary embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// Base: pair `i` of `n` rotates by `theta^(−i/n)` radians per position.
    pub theta: f64,
    /// Change of the frequencies for contexts longer than those of the pretraining.
    pub scaling: RotaryScaling,
}

/// Which dimensions of a head form a pair that is rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotaryLayout {
    /// `i` and `i + n`, of `n` pairs: half-split, as in GPT-NeoX.
    HalfSplit,
    /// `2 i` and `2 i + 1`: interleaved, as in GPT-J and in Su et al. 2021.
    Interleaved,
}

/// Scaling of the rotary frequencies; the fields are called as in `rope_scaling` of `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub enum RotaryScaling {
    /// No scaling.
    None,
    /// All frequencies divided by the factor (position interpolation, Chen et al. 2023).
    Linear {
        /// The ratio of the longer context to the original one.
        factor: f64,
    },
    /// Theta multiplied by the factor and all frequencies divided by `factor^(2/d)`: NTK-aware scaling that
    /// does not depend on the length of the sequence.
    Ntk {
        /// The ratio of the longer context to the original one.
        factor: f64,
    },
    /// Theta multiplied by `(factor · n / original_max_positions − factor + 1)^(d/(d−2))` for sequences of
    /// `n` tokens, more than `original_max_positions`: dynamic NTK scaling.
    Dynamic {
        /// The factor.
        factor: f64,
        /// Length of the longest sequence without scaling, in tokens.
        original_max_positions: f64,
    },
    /// Each frequency divided by a factor of its own, of another list for sequences of more than
    /// `original_max_positions` tokens; sines and cosines multiplied by the attention factor (LongRoPE, Ding
    /// et al. 2024).
    LongRope {
        /// The factors for sequences of up to `original_max_positions` tokens.
        short_factors: Vec<f64>,
        /// The factors for longer sequences.
        long_factors: Vec<f64>,
        /// Length of the original context in tokens.
        original_max_positions: f64,
        /// The factor on sines and cosines.
        attention_factor: f64,
    },
    /// Low frequencies divided by the factor, high ones kept, a linear ramp between (NTK-by-parts, Peng et
    /// al. 2023, §3.2).
    NtkByParts {
        /// The ratio of the longer context to the original one.
        factor: f64,
        /// Rotations over the original context up to which the frequency is divided by the factor.
        low_freq_factor: f64,
        /// Rotations over the original context from which on the frequency is kept.
        high_freq_factor: f64,
        /// Length of the original context in tokens.
        original_max_positions: f64,
    },
    /// YaRN: the same with a ramp over the index of the pair, and sines and cosines multiplied by the
    /// attention factor (Peng et al. 2023).
    Yarn {
        /// The ratio of the longer context to the original one.
        factor: f64,
        /// Rotations over the original context at the end of the ramp where frequencies are kept.
        beta_fast: f64,
        /// Rotations over the original context at the end of the ramp where frequencies are divided by the
        /// factor.
        beta_slow: f64,
        /// Length of the original context in tokens.
        original_max_positions: f64,
        /// The factor on sines and cosines.
        attention_factor: f64,
        /// Whether the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
}

/// What the embedding projection is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectedEmbeddings {
    /// The sum of all embeddings.
    Sum,
    /// The token embedding; the others have the hidden size and are added after the projection.
    Token,
    /// As [`ProjectedEmbeddings::Token`], of the embeddings of the next token, the token and the previous
    /// one, which are concatenated (Sun et al. 2020, §3.2).
    Trigram,
}

/// Bottlenecks (Sun et al. 2020, §3.1): linear layers with a norm before and after the sublayers of
/// a layer, which compute at a smaller width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BottleneckSpec {
    /// Width of the hidden states between the bottlenecks.
    pub width: usize,
    /// Whether queries and keys have a bottleneck of their own.
    pub own_attention: bool,
    /// Whether queries, keys and values have the input of the residual connection; then those of their own
    /// are not used, and otherwise values have the hidden states.
    pub shared_input: bool,
}

/// Where the embedding layer has its norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingNorm {
    /// No norm.
    None,
    /// On the sum of the tables, before the projection to the hidden size.
    BeforeProjection,
    /// After the projection.
    AfterProjection,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// No norms.
    None,
    /// Of each head, all with the same weights.
    PerHead,
    /// Of all heads together (Dehghani et al. 2023).
    AllHeads,
}

/// Where a layer has its norms (Xiong et al. 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// After each residual connection.
    Post,
    /// After each residual connection, inside of which the input and the output of attention are added and
    /// normalised once before: `norm(x + norm(x + attention(x)))`.
    NestedPost,
    /// Before attention and before the feed-forward network.
    Pre,
    /// Pre-norm, with one more norm after the last layer.
    PreAndFinal,
    /// Before each sublayer and on its output, before the residual sum (sandwich-LN, Ding et al. 2021), with
    /// one more norm after the last layer.
    SandwichAndFinal,
}

/// A norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// LayerNorm or RMSNorm.
    pub kind: NormKind,
    /// Whether it has a bias.
    pub bias: bool,
    /// Whether the checkpoint stores its weights minus 1: rows are multiplied by `1 + weight`.
    pub unit_offset: bool,
    /// Added to the variance (LayerNorm) or the mean square (RMSNorm).
    pub eps: f64,
}

/// Talking heads: learned projections across the heads dimension of scores and attention weights (Shazeer et
/// al. 2020).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TalkingHeads {
    /// Heads after the projection of the scores, before the softmax; `None`: no projection.
    pub pre_softmax: Option<usize>,
    /// Heads after the projection of the attention weights, after the softmax; values have as many. `None`:
    /// no projection.
    pub post_softmax: Option<usize>,
}

/// Bias on attention scores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScoreBias {
    /// No bias.
    None,
    /// A learned scalar for each head and bucket of relative positions (Raffel et al. 2020, §2.1; Song et al.
    /// 2020).
    Bucketed {
        /// Rows of the table.
        rows: usize,
        /// Buckets in use, half of them for each direction.
        buckets: usize,
        /// All larger distances share the last bucket.
        max_distance: usize,
        /// Whether each layer has a table of its own (Chung et al. 2023, UniMax); otherwise all share one.
        per_layer: bool,
    },
    /// Disentangled attention over relative positions (DeBERTa).
    Disentangled(Disentangled),
}

/// Disentangled attention (He et al. 2021, §3.1): content-to-position and position-to-content terms of the
/// scores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disentangled {
    /// Relative positions with an embedding, in each direction: the table has twice this many rows.
    pub relative_positions: usize,
    /// With logarithmic buckets, the distance from which on all share the last embedding; `None`: no buckets.
    pub max_distance: Option<usize>,
    /// Whether scores include the content-to-position term: queries · projected relative embeddings.
    pub c2p: bool,
    /// Whether scores include the position-to-content term: keys · projected relative embeddings.
    pub p2c: bool,
    /// Whether relative embeddings are projected by the query and key projections of the tokens
    /// (`share_att_key`).
    pub shared_projections: bool,
    /// Whether their own projection to keys has a bias; that to queries has one always.
    pub key_bias: bool,
    /// Whether the relative embeddings are normalised.
    pub norm: bool,
}

impl Disentangled {
    /// How many of the projections of relative embeddings that are not shared have a bias.
    pub(super) fn projection_biases(&self) -> usize {
        usize::from(self.c2p && self.key_bias) + usize::from(self.p2c)
    }
}

/// Attention mask within a sequence. Tokens of different sequences never attend to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Whether a token attends only to itself and earlier tokens.
    pub causal: bool,
    /// Sliding-window attention.
    pub sliding_window: Option<SlidingWindow>,
}

/// Sliding-window attention (Beltagy et al. 2020).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Tokens that a token attends to on each side of itself.
    pub radius: usize,
    /// For each layer, whether it has the window.
    pub layers: Vec<bool>,
}

/// Tokens with global attention, the first ones of a sequence: they attend to all tokens, by projections
/// of their own, and all tokens attend to them beside those of the sliding window (Beltagy et al. 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalTokens {
    /// The first one.
    First,
    /// Those before the first one with this id.
    Before(u32),
}

impl GlobalTokens {
    /// How many tokens of a sequence with these ids have global attention.
    pub fn count(self, ids: &[u32]) -> usize {
        match self {
            GlobalTokens::First => 1,
            GlobalTokens::Before(separator) => ids.iter().position(|id| *id == separator).unwrap_or(0),
        }
    }
}

/// A 1-D convolution along a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvolutionSpec {
    /// Tokens under the kernel; odd.
    pub kernel_size: usize,
    /// Activation after the sum.
    pub activation: Activation,
}

/// Short convolutions along a sequence, each column by itself (depthwise), between two gates (Liquid AI
/// 2025, arXiv:2511.23404): `W (c ∘ (w ⋆ (b ∘ x)))` for projections `b`, `c` and `x` of the hidden states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortConvolutionSpec {
    /// Tokens under the kernel; with a causal mask the token and those before it, otherwise an odd number
    /// around it.
    pub kernel_size: usize,
    /// Whether the projections and the convolution have a bias.
    pub bias: bool,
    /// For each layer, whether it has one.
    pub layers: Vec<bool>,
}

/// Which linear layers have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// From the embedding size to the hidden size.
    pub projection: bool,
    /// Queries and values.
    pub query_value: bool,
    /// Keys.
    pub key: bool,
    /// Output projection of attention.
    pub attention_output: bool,
    /// Up projection of the feed-forward network, and its gate.
    pub up: bool,
    /// Down projection of the feed-forward network.
    pub down: bool,
}

impl Biases {
    /// In all of them.
    pub const ALL: Biases = Biases::same(true);
    /// In none of them.
    pub const NONE: Biases = Biases::same(false);

    const fn same(has: bool) -> Biases {
        Biases { projection: has, query_value: has, key: has, attention_output: has, up: has, down: has }
    }
}

/// Which layers share weights (Lan et al. 2020, §3.1). The layers are divided evenly into `groups`, in order;
/// each layer runs the `inner` layers of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSharing {
    /// Sets of weights.
    pub groups: usize,
    /// Layers in each set.
    pub inner: usize,
}

impl LayerSharing {
    /// The group of layer `layer` out of `layers`, rounded as in `transformers`.
    pub fn group(&self, layer: usize, layers: usize) -> usize {
        (layer as f64 / (layers as f64 / self.groups as f64)) as usize
    }
}

impl NormPlacement {
    /// Whether the norm of a sublayer is after its residual connection.
    pub fn is_post_norm(self) -> bool {
        matches!(self, NormPlacement::Post | NormPlacement::NestedPost)
    }

    /// Whether there is a norm after the last layer.
    pub fn has_final_norm(self) -> bool {
        matches!(self, NormPlacement::PreAndFinal | NormPlacement::SandwichAndFinal)
    }
}

impl Numbering {
    /// The position id of the first token.
    pub fn first(self) -> usize {
        match self {
            Numbering::FromZero => 0,
            Numbering::AfterPadding(padding) => padding as usize + 1,
        }
    }
}

impl EncoderSpec {
    /// A table of token embeddings without layers: static embeddings.
    pub fn without_layers(vocab_size: usize, hidden_size: usize, max_positions: usize) -> Self {
        EncoderSpec {
            vocab_size,
            embedding_size: hidden_size,
            embedding_projection: false,
            projected: ProjectedEmbeddings::Sum,
            positions: Positions::None,
            max_positions,
            sequence_limit: None,
            token_types: None,
            task_types: None,
            embedding_scale: None,
            token_dropout: None,
            embedding_norm: EmbeddingNorm::None,
            hidden_size,
            layers: 0,
            layer_sharing: LayerSharing { groups: 0, inner: 1 },
            norm_placement: NormPlacement::Post,
            skip_first_norm: false,
            norm: NormSpec { kind: NormKind::Layer, bias: false, unit_offset: false, eps: 0.0 },
            output_norm_eps: None,
            bottleneck: None,
            heads: 1,
            key_value_heads: 1,
            qk_head_dim: 1,
            v_head_dim: 1,
            query_scalar: None,
            score_cap: None,
            residual_scale: None,
            qk_norm: QkNorm::None,
            talking_heads: TalkingHeads::default(),
            score_bias: ScoreBias::None,
            mask: Mask { causal: false, sliding_window: None },
            global_tokens: None,
            convolution: None,
            short_convolution: None,
            bias: Biases::NONE,
            feed_forwards: 1,
            gated: false,
            intermediate_size: 1,
            activation: Activation::Identity,
            experts: None,
            pooler: PoolerSpec::of_bert(hidden_size),
            padding: None,
        }
    }

    /// Width of the sublayers' inputs and outputs: the hidden size, unless there are bottlenecks.
    pub fn sublayer_width(&self) -> usize {
        self.bottleneck.map_or(self.hidden_size, |bottleneck| bottleneck.width)
    }

    /// Width of the inputs of the projection to values.
    pub fn value_inputs(&self) -> usize {
        match self.bottleneck {
            Some(bottleneck) if bottleneck.shared_input => bottleneck.width,
            _ => self.hidden_size,
        }
    }

    /// Inputs of the embedding projection.
    pub fn projection_inputs(&self) -> usize {
        match self.projected {
            ProjectedEmbeddings::Trigram => self.embedding_size.saturating_mul(3),
            ProjectedEmbeddings::Sum | ProjectedEmbeddings::Token => self.embedding_size,
        }
    }

    /// Columns of the tables of positions and of token and task types.
    pub fn other_embedding_size(&self) -> usize {
        match self.projected {
            ProjectedEmbeddings::Sum => self.embedding_size,
            ProjectedEmbeddings::Token | ProjectedEmbeddings::Trigram => self.hidden_size,
        }
    }

    /// The norms of the embeddings and of the last feed-forward network of a layer.
    pub fn output_norm(&self) -> NormSpec {
        NormSpec { eps: self.output_norm_eps.unwrap_or(self.norm.eps), ..self.norm }
    }

    /// Whether the vector of a token does not depend on others: there are no layers.
    pub fn is_static(&self) -> bool {
        self.layers == 0
    }

    /// Whether something is added to attention scores: a score bias, or the bias of ALiBi.
    pub fn has_score_bias(&self) -> bool {
        self.score_bias != ScoreBias::None || self.positions == Positions::Alibi
    }

    /// The maximum length of a sequence in tokens that the model was made for.
    pub fn max_length(&self) -> usize {
        let positions = match &self.positions {
            Positions::Learned(numbering) => self.max_positions.saturating_sub(numbering.first()),
            _ => self.max_positions,
        };
        self.sequence_limit.map_or(positions, |limit| limit.min(positions))
    }

    /// The maximum length of a sequence in tokens where positions have a table, or longer sequences are not
    /// supported; `None`: there are as many positions as tokens.
    pub fn position_limit(&self) -> Option<usize> {
        let has_table = match &self.positions {
            Positions::Learned(_) => true,
            Positions::Rotary(rotary) => rotary.stored_table,
            Positions::None | Positions::Sinusoidal | Positions::Alibi => false,
        };
        (has_table || self.sequence_limit.is_some()).then(|| self.max_length())
    }

    /// Layers with a short convolution in the place of attention.
    pub fn convolution_layers(&self) -> usize {
        let layers = self.short_convolution.iter().flat_map(|convolution| &convolution.layers);
        layers.filter(|has_convolution| **has_convolution).count()
    }

    /// Heads that the softmax runs over, after the pre-softmax projection.
    pub fn softmax_heads(&self) -> usize {
        self.talking_heads.pre_softmax.unwrap_or(self.heads)
    }

    /// Heads of attention weights that multiply values, after the post-softmax projection.
    pub fn value_heads(&self) -> usize {
        self.talking_heads.post_softmax.unwrap_or(self.softmax_heads())
    }

    /// Checks that the numbers agree with each other.
    ///
    /// # Errors
    /// If they do not.
    pub fn check(&self) -> Result<()> {
        self.check_heads()?;
        ensure!(
            self.embedding_projection || self.embedding_size == self.hidden_size,
            "embedding size {} and hidden size {} differ, but there is no embedding projection",
            self.embedding_size,
            self.hidden_size
        );
        if let Some(SlidingWindow { layers, .. }) = &self.mask.sliding_window {
            ensure!(
                layers.len() == self.layers,
                "the sliding window is described for {} layers, but the encoder has {}",
                layers.len(),
                self.layers
            );
        }
        let LayerSharing { groups, inner } = self.layer_sharing;
        if let Some(experts) = &self.experts {
            ensure!(
                experts.layers.len() == groups.saturating_mul(inner) && !self.gated,
                "experts are described for {} layers, gated: {}, but only layers of their own weights without a gate can have them",
                experts.layers.len(),
                self.gated
            );
            ensure!(
                (1..=experts.count).contains(&experts.per_token),
                "{} experts for each token of {}",
                experts.per_token,
                experts.count
            );
        }
        ensure!(
            (groups > 0 || self.is_static()) && groups <= self.layers && inner > 0,
            "{} layers cannot share {groups} groups of {inner} layers",
            self.layers
        );
        let sizes = [
            self.hidden_size,
            self.embedding_size,
            self.intermediate_size,
            self.sublayer_width(),
            self.qk_head_dim,
            self.v_head_dim,
            self.softmax_heads(),
            self.value_heads(),
            self.vocab_size,
        ];
        ensure!(!sizes.contains(&0), "a size of the encoder is 0");
        ensure!(
            self.embedding_scale.is_none() || self.embedding_norm == EmbeddingNorm::None,
            "a factor on embeddings before a norm is not supported"
        );
        ensure!(
            self.residual_scale.is_none() || self.norm_placement == NormPlacement::PreAndFinal,
            "a factor on the outputs of sublayers without pre-norm is not supported"
        );
        ensure!(
            self.projected == ProjectedEmbeddings::Sum
                || (self.embedding_norm != EmbeddingNorm::BeforeProjection
                    && self.positions != Positions::Sinusoidal
                    && self.token_dropout.is_none()),
            "embeddings that are added after the projection have no norm before it, no sinusoids and no dropout"
        );
        let is_plain = self.norm_placement == NormPlacement::Post
            && self.score_bias == ScoreBias::None
            && self.experts.is_none();
        ensure!(
            (1..=MAX_FEED_FORWARDS).contains(&self.feed_forwards)
                && (is_plain || self.bottleneck.is_none() && self.feed_forwards == 1),
            "bottlenecks and {} feed-forward networks are supported in post-norm layers without biases on scores and without experts",
            self.feed_forwards
        );
        ensure!(
            self.global_tokens.is_none()
                || self.score_bias == ScoreBias::None
                    && matches!(
                        self.positions,
                        Positions::Learned(_) | Positions::Sinusoidal | Positions::None
                    )
                    && self.qk_norm == QkNorm::None
                    && self.key_value_heads == self.heads
                    && self.talking_heads == TalkingHeads::default()
                    && self.bottleneck.is_none()
                    && !self.mask.causal,
            "global attention is supported in encoders without variations of attention but a window"
        );
        if let Some(ShortConvolutionSpec { kernel_size, layers, .. }) = &self.short_convolution {
            ensure!(
                layers.len() == self.layers && groups == self.layers && inner == 1,
                "short convolutions are described for {} layers, but the encoder has {} with weights of their own",
                layers.len(),
                groups.saturating_mul(inner)
            );
            ensure!(
                *kernel_size > 0 && (self.mask.causal || kernel_size % 2 == 1),
                "a short convolution of {kernel_size} tokens has no middle"
            );
            ensure!(
                self.bottleneck.is_none() && self.score_bias == ScoreBias::None,
                "short convolutions beside bottlenecks or biases on scores are not supported"
            );
        }
        let skips = self.skip_first_norm && self.norm_placement.is_post_norm();
        ensure!(!skips, "only pre-norm layers can skip the first norm");
        Ok(())
    }

    /// Checks the numbers of heads and their dims.
    fn check_heads(&self) -> Result<()> {
        let (heads, key_value_heads) = (self.heads, self.key_value_heads);
        ensure!(
            key_value_heads > 0 && heads.is_multiple_of(key_value_heads),
            "{heads} query heads are not a multiple of {key_value_heads} key and value heads"
        );
        ensure!(
            key_value_heads == heads || self.talking_heads == TalkingHeads::default(),
            "talking heads with grouped-query attention are not supported"
        );
        if let Positions::Rotary(rotary) = &self.positions {
            let (qk, v) = (self.qk_head_dim, self.v_head_dim);
            let rotated = rotary.rotated_dims.unwrap_or(qk);
            ensure!(
                rotated.is_multiple_of(2) && rotated <= qk,
                "rotary embeddings need an even number of dimensions of a head of {qk}, found {rotated}"
            );
            ensure!(
                !rotary.rotate_values || v == qk,
                "rotated values need the head dim of queries and keys, {qk}, found {v}"
            );
        }
        Ok(())
    }
}
