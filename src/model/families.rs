//! The table of model families. A row has the names of a setting in `config.json`, the defaults of a family,
//! and the names of the tensors in its checkpoints; `spec.rs` uses it to read a config.
//!
//! A new family without new maths is one row, like that of data2vec-text, which is RoBERTa with another
//! prefix. Fields that a row leaves out are those of the row that it is based on.

use anyhow::Result;

use super::classification::{self, ReadHead};
use super::config::Config;
use super::config_defaults::{self, ConfigDefaults};
use super::family_specific;
use super::masked_lm::{self, ReadMaskedLm};
use super::static_embedding::{MAX_LENGTH, MODEL2VEC};
use super::token_head::{self, ReadTokenHead};
use crate::checkpoint::names::{ModuleNames, TensorNames};
use crate::nn::{
    Activation, Biases, EmbeddingNorm, EncoderSpec, NormKind, NormPlacement, NormSpec, Pool, RotaryLayout,
};

/// A row of the table.
pub struct Family {
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// A field and its values that distinguish this row from a later one with the same model type; of an
    /// object, parts of its strings. Without values, the presence of the field does.
    pub discriminator: Option<(&'static str, &'static [&'static str])>,
    /// The defaults of the configuration class in `transformers`.
    pub config_defaults: &'static ConfigDefaults,
    /// Where the fields of the encoder are in the config, if they are in an object of it.
    pub text_config: Option<TextConfig>,
    /// The names of the config's fields.
    pub keys: ConfigKeys,
    /// Settings of the encoder that apply unless the config has a field for them.
    pub defaults: Defaults,
    /// How checkpoints name their tensors: one naming, or several.
    pub names: &'static [TensorNames],
    /// The pooling of models without a Pooling module.
    pub pool: Pool,
    /// Whether the tokenizer class of the family in `transformers` lowercases texts, which the files of its
    /// models do not say.
    pub lowercases: bool,
    /// Whether classifiers give the first token global attention, and answers the tokens of the question.
    pub global_attention: bool,
    /// Reader of the sequence-classification head.
    pub classification: ReadHead,
    /// Reader of the heads with logits for each token: token classification and question answering.
    pub token_head: ReadTokenHead,
    /// Reader of the masked-LM head.
    pub masked_lm: ReadMaskedLm,
    /// Readers of the fields that no other family has, applied in order.
    pub family_specific: &'static [ReadFields],
    /// Fields among those of [`family_specific`](Self::family_specific) that are refused in configs of other
    /// families.
    pub own_fields: &'static [&'static str],
}

/// The object of a config that has the fields of a text encoder, beside one for images.
#[derive(Clone, Copy)]
pub struct TextConfig {
    /// The model types with such an object.
    pub model_types: &'static [&'static str],
    /// The names of the object; the first one that a config has is used.
    pub keys: &'static [&'static str],
}

/// The object of a config with the fields of a text encoder.
pub(super) const TEXT_CONFIG: &str = "text_config";

/// The model type of jina-embeddings-v5.
pub const JINA_V5: &str = "jina_embeddings_v5";

/// The model type whose config a config of `model_type` is, under a name of its own: that of
/// jina-embeddings-v5 extends the class of EuroBERT, which names a mask token, or of Qwen3; that of
/// pplx-embed is Qwen3's.
pub(super) fn base_model_type<'a>(config: &Config, model_type: &'a str) -> &'a str {
    match model_type {
        JINA_V5 if config.has("mask_token_id") => "eurobert",
        JINA_V5 | "bidirectional_pplx_qwen3" => "qwen3",
        other => other,
    }
}

/// Reads fields of a config and changes the spec accordingly.
pub type ReadFields = fn(&Config, &mut EncoderSpec) -> Result<()>;

/// The names of the fields of `config.json`; `None`: the family has no such field.
#[derive(Clone, Copy)]
pub struct ConfigKeys {
    /// Rows of the token embedding table.
    pub vocab_size: &'static str,
    /// Columns of the embedding tables; without the field the hidden size.
    pub embedding_size: Option<&'static str>,
    /// Whether a config may lack the field of `embedding_size`.
    pub embedding_size_or_hidden: bool,
    /// Rows of the position table, or the maximum length.
    pub max_positions: &'static str,
    /// Theta of rotary embeddings.
    pub rope_theta: &'static str,
    /// Rows of the token type table; 0: no table.
    pub token_types: Option<&'static str>,
    /// The flag that enables task type embeddings, and the rows of their table.
    pub task_types: Option<(&'static str, &'static str)>,
    /// Width of the hidden states.
    pub hidden_size: &'static str,
    /// Number of layers.
    pub layers: &'static str,
    /// Groups of layers that share weights, and layers in a group.
    pub groups: Option<(&'static str, &'static str)>,
    /// Attention heads.
    pub heads: &'static str,
    /// Key and value heads; without the field as many as query heads.
    pub key_value_heads: Option<&'static str>,
    /// Head dim; without the field `hidden_size / heads`.
    pub head_dim: Option<&'static str>,
    /// Rows of a table of bucketed relative biases.
    pub relative_bias: Option<&'static str>,
    /// Width of the feed-forward network between `up` and `down`.
    pub intermediate_size: &'static str,
    /// Activation; without the field [`Defaults::activation`].
    pub activation: Option<&'static str>,
    /// Eps of the norms; without the field that of [`Defaults::norm`].
    pub norm_eps: Option<&'static str>,
    /// Flag: norms have a bias. This flag and the two below default to [`Defaults`].
    pub norm_bias: Option<&'static str>,
    /// Flag: the linear layers of attention have a bias.
    pub attention_bias: Option<&'static str>,
    /// Flag: the linear layers of the feed-forward network have a bias.
    pub mlp_bias: Option<&'static str>,
    /// What the logits of the causal-LM head are divided by; without the field 1.
    pub logit_divisor: Option<&'static str>,
    /// The bound of the logits of the causal-LM head.
    pub logit_cap: Option<&'static str>,
}

/// Settings of the encoder that apply unless the config has a field for them.
#[derive(Clone, Copy)]
pub struct Defaults {
    /// Position encoding.
    pub positions: PositionEncoding,
    /// Where the embedding layer has its norm.
    pub embedding_norm: EmbeddingNorm,
    /// Whether embeddings are projected to the hidden size even where they are as wide.
    pub always_projects: bool,
    /// Post-norm or pre-norm.
    pub norm_placement: NormPlacement,
    /// Whether the first layer has no norm before its attention.
    pub skip_first_norm: bool,
    /// The norms.
    pub norm: NormSpec,
    /// Which linear layers have a bias.
    pub bias: Biases,
    /// Whether the feed-forward network is gated.
    pub gated: bool,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Head dim; `None`: `hidden_size / heads`.
    pub head_dim: Option<usize>,
    /// Key and value heads; `None`: as many as query heads.
    pub key_value_heads: Option<usize>,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// The maximum length; `None`: the config has to state it.
    pub max_positions: Option<usize>,
}

/// The position encoding of a family.
#[derive(Clone, Copy)]
pub enum PositionEncoding {
    /// A learned table, numbered from 0.
    Learned,
    /// A learned table, numbered from 0, unless this flag of the config is false.
    LearnedIf(&'static str),
    /// A learned table, numbered from the config's `pad_token_id` + 1; the value is the default of
    /// `pad_token_id`.
    AfterPadding(u32),
    /// A learned table, numbered from this value + 1. The config does not change it.
    AfterFixed(u32),
    /// No encoding beside a bias on the scores.
    None,
    /// Rotary embeddings.
    Rotary {
        /// Which dimensions of a head form a pair.
        layout: RotaryLayout,
        /// Default theta.
        theta: f64,
        /// The rotation in layers with a sliding window; `None`: as in the others.
        local: Option<LocalRotary>,
        /// Whether checkpoints may hold the sines and cosines as a table.
        stored_table: bool,
    },
    /// The encoding that `position_embedding_type` names; the value is its default.
    Named(&'static str),
}

/// Rotary embeddings with a theta of their own in layers with a sliding window.
#[derive(Clone, Copy)]
pub struct LocalRotary {
    /// The field of theta.
    pub theta_key: &'static str,
    /// Default theta.
    pub theta: f64,
    /// Whether a scaling that the config has for no type of layer applies to these layers, too.
    pub shares_scaling: bool,
}

/// Rotary embeddings as in GPT-NeoX.
const fn rotary(theta: f64) -> PositionEncoding {
    PositionEncoding::Rotary { layout: RotaryLayout::HalfSplit, theta, local: None, stored_table: false }
}

const BERT_KEYS: ConfigKeys = ConfigKeys {
    vocab_size: "vocab_size",
    embedding_size: None,
    embedding_size_or_hidden: false,
    max_positions: "max_position_embeddings",
    rope_theta: "rope_theta",
    token_types: Some("type_vocab_size"),
    task_types: None,
    hidden_size: "hidden_size",
    layers: "num_hidden_layers",
    groups: None,
    heads: "num_attention_heads",
    key_value_heads: None,
    head_dim: None,
    relative_bias: None,
    intermediate_size: "intermediate_size",
    activation: Some("hidden_act"),
    norm_eps: Some("layer_norm_eps"),
    norm_bias: None,
    attention_bias: None,
    mlp_bias: None,
    logit_divisor: None,
    logit_cap: None,
};

const LAYER_NORM: NormSpec = NormSpec { kind: NormKind::Layer, bias: true, unit_offset: false, eps: 1e-12 };
const RMS_NORM: NormSpec =
    NormSpec { kind: NormKind::RootMeanSquare, bias: false, unit_offset: false, eps: 1e-6 };

const BERT_DEFAULTS: Defaults = Defaults {
    positions: PositionEncoding::Learned,
    embedding_norm: EmbeddingNorm::BeforeProjection,
    always_projects: false,
    norm_placement: NormPlacement::Post,
    skip_first_norm: false,
    norm: LAYER_NORM,
    bias: Biases::ALL,
    gated: false,
    activation: Activation::Gelu,
    head_dim: None,
    key_value_heads: None,
    qk_norm: false,
    max_positions: None,
};

const PRE_NORM: Defaults = Defaults { norm_placement: NormPlacement::PreAndFinal, ..BERT_DEFAULTS };

/// Modules outside the layers, as BERT names them.
const BERT_MODEL: ModuleNames = &[
    ("embeddings.token", "embeddings.word_embeddings"),
    ("embeddings.position", "embeddings.position_embeddings"),
    ("embeddings.token_type", "embeddings.token_type_embeddings"),
    ("embeddings.task_type", "embeddings.task_type_embeddings"),
    ("embeddings.norm", "embeddings.LayerNorm"),
    ("final_norm", "encoder.LayerNorm"),
];

/// Modules of a layer, as BERT names them.
const BERT_LAYER: ModuleNames = &[
    ("attention.query", "attention.self.query"),
    ("attention.key", "attention.self.key"),
    ("attention.value", "attention.self.value"),
    ("attention.mix_before", "attention.self.mix_before"),
    ("attention.mix_after", "attention.self.mix_after"),
    ("attention.output", "attention.output.dense"),
    ("attention_norm", "attention.output.LayerNorm"),
    ("feed_forward.up", "intermediate.dense"),
    ("feed_forward.activation", "intermediate.intermediate_act_fn"),
    ("feed_forward.down", "output.dense"),
    ("feed_forward_norm", "output.LayerNorm"),
];

const BERT_POOLER: ModuleNames = &[("pooler", "pooler.dense")];

/// The head of BERT, whose dense layer is the pooler.
const BERT_HEAD: ModuleNames = &[("head.classifier", "classifier")];

/// The heads with logits for each token, of all families but ModernBERT.
const TOKEN_HEADS: ModuleNames =
    &[("head.token_classifier", "classifier"), ("head.qa_outputs", "qa_outputs")];

/// BERT's pretraining heads.
const BERT_PRETRAINING: ModuleNames = &[
    ("head.mlm", "cls.predictions"),
    ("head.mlm.dense", "cls.predictions.transform.dense"),
    ("head.mlm.norm", "cls.predictions.transform.LayerNorm"),
    ("head.mlm.decoder", "cls.predictions.decoder"),
    ("head.next_sentence", "cls.seq_relationship"),
];

/// RoBERTa's masked-LM head.
const LM_HEAD: ModuleNames = &[
    ("head.mlm", "lm_head"),
    ("head.mlm.dense", "lm_head.dense"),
    ("head.mlm.norm", "lm_head.layer_norm"),
    ("head.mlm.decoder", "lm_head.decoder"),
];

/// The head of RoBERTa.
const ROBERTA_HEAD: ModuleNames =
    &[("head.dense", "classifier.dense"), ("head.classifier", "classifier.out_proj")];

const BERT_NAMES: TensorNames = TensorNames {
    prefixes: &["", "bert."],
    model_modules: &[BERT_MODEL, BERT_POOLER],
    layer_prefix: "encoder.layer.{}.",
    layer_modules: &[BERT_LAYER],
    head_modules: &[BERT_HEAD, TOKEN_HEADS, BERT_PRETRAINING],
};

const ROBERTA_NAMES: TensorNames =
    TensorNames { head_modules: &[ROBERTA_HEAD, TOKEN_HEADS, LM_HEAD], ..BERT_NAMES };

const BERT: Family = Family {
    model_types: &["bert"],
    discriminator: None,
    config_defaults: &config_defaults::BERT,
    text_config: None,
    keys: ConfigKeys {
        head_dim: Some("attention_key_size"),
        attention_bias: Some("attention_bias"),
        mlp_bias: Some("mlp_bias"),
        ..BERT_KEYS
    },
    defaults: Defaults { positions: PositionEncoding::Named("absolute"), ..BERT_DEFAULTS },
    names: &[BERT_NAMES],
    // The default of sentence-transformers for a model without modules.json.
    pool: Pool::Mean,
    lowercases: false,
    global_attention: false,
    classification: classification::pooler,
    token_head: token_head::linear,
    masked_lm: masked_lm::hidden_act,
    family_specific: &[family_specific::variations],
    own_fields: &[],
};

/// BERT without the fields of its variations: the base of most other rows.
const PLAIN: Family = Family {
    config_defaults: &config_defaults::NONE,
    keys: BERT_KEYS,
    defaults: BERT_DEFAULTS,
    family_specific: &[],
    ..BERT
};

/// RoBERTa: the base of XLM-RoBERTa's row.
const ROBERTA: Family = Family {
    model_types: &["roberta"],
    config_defaults: &config_defaults::ROBERTA,
    defaults: Defaults { positions: PositionEncoding::AfterPadding(1), ..BERT_DEFAULTS },
    names: &[TensorNames { prefixes: &["", "roberta."], ..ROBERTA_NAMES }],
    classification: classification::dense,
    masked_lm: masked_lm::gelu,
    ..PLAIN
};

/// ESM: encoders of proteins and of nucleotides, with learned or rotary positions.
const ESM: Family = Family {
    model_types: &["esm"],
    config_defaults: &config_defaults::ESM,
    keys: ConfigKeys { token_types: None, activation: None, ..BERT_KEYS },
    defaults: Defaults {
        positions: PositionEncoding::AfterPadding(1),
        embedding_norm: EmbeddingNorm::None,
        ..PRE_NORM
    },
    names: &[TensorNames {
        prefixes: &["", "esm."],
        model_modules: &[
            &[("embeddings.norm", "embeddings.layer_norm"), ("final_norm", "encoder.emb_layer_norm_after")],
            BERT_MODEL,
            BERT_POOLER,
        ],
        layer_modules: &[
            &[("attention_norm", "attention.LayerNorm"), ("feed_forward_norm", "LayerNorm")],
            BERT_LAYER,
        ],
        ..ROBERTA_NAMES
    }],
    classification: classification::dense,
    masked_lm: masked_lm::gelu,
    family_specific: &[family_specific::esm],
    ..PLAIN
};

/// I-BERT before it is quantized: RoBERTa's maths.
const IBERT: Family = Family {
    model_types: &["ibert"],
    config_defaults: &config_defaults::XLM_ROBERTA,
    names: &[TensorNames { prefixes: &["", "ibert."], ..ROBERTA_NAMES }],
    family_specific: &[family_specific::unquantized],
    ..ROBERTA
};

/// Longformer, with global attention where its heads have it.
const LONGFORMER: Family = Family {
    model_types: &["longformer"],
    config_defaults: &config_defaults::LONGFORMER,
    names: &[TensorNames {
        prefixes: &["", "longformer."],
        layer_modules: &[
            &[
                ("attention.query_global", "attention.self.query_global"),
                ("attention.key_global", "attention.self.key_global"),
                ("attention.value_global", "attention.self.value_global"),
            ],
            BERT_LAYER,
        ],
        ..ROBERTA_NAMES
    }],
    global_attention: true,
    family_specific: &[family_specific::attention_window],
    ..ROBERTA
};

/// BigBird, for texts up to the length from which on its attention is sparse.
const BIG_BIRD: Family = Family {
    model_types: &["big_bird"],
    config_defaults: &config_defaults::BIG_BIRD,
    names: &[TensorNames {
        prefixes: &["", "bert."],
        model_modules: &[&[("pooler", "pooler")], BERT_MODEL],
        head_modules: &[ROBERTA_HEAD, &[("head.token_classifier", "classifier")], BERT_PRETRAINING],
        ..BERT_NAMES
    }],
    classification: classification::dense_hidden_act,
    masked_lm: masked_lm::hidden_act,
    family_specific: &[family_specific::block_sparse],
    ..PLAIN
};

/// MobileBERT: bottlenecks, several feed-forward networks in a layer, and embeddings of trigrams.
const MOBILE_BERT: Family = Family {
    model_types: &["mobilebert"],
    config_defaults: &config_defaults::MOBILE_BERT,
    keys: ConfigKeys { embedding_size: Some("embedding_size"), ..BERT_KEYS },
    defaults: Defaults { embedding_norm: EmbeddingNorm::AfterProjection, ..BERT_DEFAULTS },
    names: &[TensorNames {
        prefixes: &["", "mobilebert."],
        model_modules: &[
            &[("embeddings.projection", "embeddings.embedding_transformation")],
            BERT_MODEL,
            BERT_POOLER,
        ],
        layer_modules: &[
            &[
                ("bottleneck.input", "bottleneck.input.dense"),
                ("bottleneck.input_norm", "bottleneck.input.LayerNorm"),
                ("bottleneck.attention", "bottleneck.attention.dense"),
                ("bottleneck.attention_norm", "bottleneck.attention.LayerNorm"),
                ("bottleneck.output", "output.bottleneck.dense"),
                ("bottleneck.output_norm", "output.bottleneck.LayerNorm"),
                ("stacked.{}.feed_forward.up", "ffn.{}.intermediate.dense"),
                ("stacked.{}.feed_forward.activation", "ffn.{}.intermediate.intermediate_act_fn"),
                ("stacked.{}.feed_forward.down", "ffn.{}.output.dense"),
                ("stacked.{}.feed_forward_norm", "ffn.{}.output.LayerNorm"),
            ],
            BERT_LAYER,
        ],
        head_modules: &[
            &[("head.mlm.further", "cls.predictions.dense")],
            BERT_HEAD,
            TOKEN_HEADS,
            BERT_PRETRAINING,
        ],
        ..BERT_NAMES
    }],
    masked_lm: masked_lm::further_inputs,
    family_specific: &[family_specific::mobile],
    ..PLAIN
};

/// Names of DeBERTa v2 and v3, and of all but the layers of the first DeBERTa.
const DEBERTA_NAMES: TensorNames = TensorNames {
    prefixes: &["", "deberta."],
    model_modules: &[
        &[
            ("embeddings.projection", "embeddings.embed_proj"),
            ("convolution", "encoder.conv.conv"),
            ("convolution_norm", "encoder.conv.LayerNorm"),
            ("distances", "encoder.rel_embeddings"),
            ("distances_norm", "encoder.LayerNorm"),
        ],
        BERT_MODEL,
    ],
    layer_modules: &[
        &[
            ("attention.query", "attention.self.query_proj"),
            ("attention.key", "attention.self.key_proj"),
            ("attention.value", "attention.self.value_proj"),
            ("attention.distance_key", "attention.self.pos_key_proj"),
            ("attention.distance_query", "attention.self.pos_query_proj"),
        ],
        BERT_LAYER,
    ],
    head_modules: &[
        &[("head.dense", "pooler.dense"), ("head.classifier", "classifier")],
        TOKEN_HEADS,
        BERT_PRETRAINING,
        &[
            ("head.enhanced_mlm", "lm_predictions.lm_head"),
            ("head.enhanced_mlm.dense", "lm_predictions.lm_head.dense"),
            ("head.enhanced_mlm.norm", "lm_predictions.lm_head.LayerNorm"),
            ("head.enhanced_mlm.decoder", "lm_predictions.lm_head.decoder"),
        ],
    ],
    ..BERT_NAMES
};

/// DeBERTa v2 and v3.
const DEBERTA_V2: Family = Family {
    model_types: &["deberta-v2"],
    config_defaults: &config_defaults::DEBERTA_V2,
    keys: ConfigKeys {
        embedding_size: Some("embedding_size"),
        embedding_size_or_hidden: true,
        head_dim: Some("attention_head_size"),
        ..BERT_KEYS
    },
    defaults: Defaults {
        embedding_norm: EmbeddingNorm::AfterProjection,
        norm: NormSpec { eps: 1e-7, ..LAYER_NORM },
        bias: Biases { projection: false, ..Biases::ALL },
        positions: PositionEncoding::LearnedIf("position_biased_input"),
        ..BERT_DEFAULTS
    },
    family_specific: &[family_specific::disentangled_attention, family_specific::convolution],
    names: &[DEBERTA_NAMES],
    classification: classification::context_pooler,
    masked_lm: masked_lm::deberta,
    ..PLAIN
};

/// Names of rotary families in `transformers`' own implementations.
const ROTARY_NAMES: TensorNames = TensorNames {
    prefixes: &[""],
    model_modules: &[BERT_MODEL],
    layer_prefix: "layers.{}.",
    layer_modules: &[&[
        ("attention.query", "self_attn.q_proj"),
        ("attention.key", "self_attn.k_proj"),
        ("attention.value", "self_attn.v_proj"),
        ("attention.output", "self_attn.o_proj"),
        ("attention_norm", "post_attention_layernorm"),
        ("feed_forward.gate", "mlp.gate_proj"),
        ("feed_forward.up", "mlp.up_proj"),
        ("feed_forward.activation", "mlp.act_fn"),
        ("feed_forward.down", "mlp.down_proj"),
        ("feed_forward_norm", "post_mlp_layernorm"),
    ]],
    head_modules: &[BERT_HEAD, TOKEN_HEADS, LM_HEAD],
};

/// Every supported family.
pub static FAMILIES: &[Family] = &[
    // JinaBERT v2 with norms of queries and keys (jina-embeddings-v2-base-code), which has the model type of
    // BERT.
    Family {
        discriminator: Some(("auto_map", &["jina-bert-v2-qk-post-norm"])),
        defaults: Defaults {
            positions: PositionEncoding::Named("absolute"),
            bias: Biases { up: false, ..Biases::ALL },
            norm_placement: NormPlacement::NestedPost,
            gated: true,
            ..BERT_DEFAULTS
        },
        family_specific: &[family_specific::gate_type, family_specific::norm_of_all_heads],
        names: &[TensorNames {
            layer_modules: &[
                &[
                    ("attention.query_norm", "attention.self.layer_norm_q"),
                    ("attention.key_norm", "attention.self.layer_norm_k"),
                    ("attention_output_norm", "attention.output.LayerNorm"),
                    ("attention_norm", "layer_norm_1"),
                    ("feed_forward.up", "mlp.up_gated_layer[0/2]"),
                    ("feed_forward.gate", "mlp.up_gated_layer[1/2]"),
                    ("feed_forward.down", "mlp.down_layer"),
                    ("feed_forward_norm", "layer_norm_2"),
                ],
                BERT_LAYER,
            ],
            ..BERT_NAMES
        }],
        ..BERT
    },
    // JinaBERT v2, which has the model type of BERT.
    Family {
        discriminator: Some(("feed_forward_type", &["geglu", "reglu"])),
        config_defaults: &config_defaults::NONE,
        defaults: Defaults {
            positions: PositionEncoding::Named("absolute"),
            bias: Biases { up: false, ..Biases::ALL },
            gated: true,
            ..BERT_DEFAULTS
        },
        family_specific: &[family_specific::gate_type, family_specific::variations],
        names: &[TensorNames {
            layer_modules: &[
                &[
                    ("feed_forward.gate", "mlp.gated_layers[0/2]"),
                    ("feed_forward.up", "mlp.gated_layers[1/2]"),
                    ("feed_forward.down", "mlp.wo"),
                    ("feed_forward_norm", "mlp.layernorm"),
                ],
                BERT_LAYER,
            ],
            ..BERT_NAMES
        }],
        ..BERT
    },
    BERT,
    ROBERTA,
    // Jina's own code, which has the model type of XLM-RoBERTa.
    Family {
        model_types: &["xlm-roberta"],
        discriminator: Some(("position_embedding_type", &["rotary"])),
        keys: ConfigKeys { rope_theta: "rotary_emb_base", ..BERT_KEYS },
        defaults: Defaults { positions: rotary(10_000.0), ..JINA_V3.defaults },
        names: &[JINA_V3_OWN_NAMES],
        config_defaults: &config_defaults::NONE,
        ..JINA_V3
    },
    Family {
        model_types: &["xlm-roberta", "camembert"],
        config_defaults: &config_defaults::XLM_ROBERTA,
        ..ROBERTA
    },
    Family {
        model_types: &["data2vec-text"],
        config_defaults: &config_defaults::XLM_ROBERTA,
        defaults: Defaults { positions: PositionEncoding::AfterPadding(1), ..BERT_DEFAULTS },
        names: &[TensorNames { prefixes: &["", "data2vec_text."], ..ROBERTA_NAMES }],
        classification: classification::dense,
        masked_lm: masked_lm::gelu,
        ..PLAIN
    },
    Family {
        model_types: &["roberta-prelayernorm"],
        config_defaults: &config_defaults::ROBERTA,
        defaults: Defaults { positions: PositionEncoding::AfterPadding(1), ..PRE_NORM },
        names: &[TensorNames {
            prefixes: &["", "roberta_prelayernorm."],
            model_modules: &[&[("final_norm", "LayerNorm")], BERT_MODEL, BERT_POOLER],
            layer_modules: &[
                &[("attention_norm", "attention.LayerNorm"), ("feed_forward_norm", "intermediate.LayerNorm")],
                BERT_LAYER,
            ],
            ..ROBERTA_NAMES
        }],
        classification: classification::dense,
        masked_lm: masked_lm::gelu,
        ..PLAIN
    },
    Family {
        discriminator: Some(("position_embedding_type", &["rotary"])),
        defaults: Defaults { positions: rotary(10_000.0), ..ESM.defaults },
        ..ESM
    },
    ESM,
    IBERT,
    LONGFORMER,
    BIG_BIRD,
    MOBILE_BERT,
    Family {
        model_types: &["xlm-roberta-xl"],
        config_defaults: &config_defaults::XLM_ROBERTA_XL,
        defaults: Defaults {
            positions: PositionEncoding::AfterPadding(1),
            embedding_norm: EmbeddingNorm::None,
            norm: NormSpec { eps: 1e-5, ..LAYER_NORM },
            ..PRE_NORM
        },
        names: &[TensorNames {
            prefixes: &["", "roberta."],
            layer_modules: &[
                &[("attention_norm", "attention.self_attn_layer_norm"), ("feed_forward_norm", "LayerNorm")],
                BERT_LAYER,
            ],
            ..ROBERTA_NAMES
        }],
        classification: classification::dense,
        masked_lm: masked_lm::gelu,
        ..PLAIN
    },
    Family {
        model_types: &["megatron-bert"],
        config_defaults: &config_defaults::MEGATRON_BERT,
        defaults: Defaults { embedding_norm: EmbeddingNorm::None, ..PRE_NORM },
        names: &[TensorNames {
            model_modules: &[&[("final_norm", "encoder.ln")], BERT_MODEL, BERT_POOLER],
            layer_modules: &[&[("attention_norm", "attention.ln"), ("feed_forward_norm", "ln")], BERT_LAYER],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["ernie"],
        config_defaults: &config_defaults::ERNIE,
        keys: ConfigKeys { task_types: Some(("use_task_id", "task_type_vocab_size")), ..BERT_KEYS },
        names: &[TensorNames { prefixes: &["", "ernie."], ..BERT_NAMES }],
        ..PLAIN
    },
    Family {
        model_types: &["electra"],
        config_defaults: &config_defaults::ELECTRA,
        keys: ConfigKeys { embedding_size: Some("embedding_size"), ..BERT_KEYS },
        names: &[TensorNames {
            prefixes: &["", "electra."],
            model_modules: &[&[("embeddings.projection", "embeddings_project")], BERT_MODEL],
            head_modules: &[
                ROBERTA_HEAD,
                TOKEN_HEADS,
                &[
                    ("head.mlm", "generator_lm_head"),
                    ("head.mlm.dense", "generator_predictions.dense"),
                    ("head.mlm.norm", "generator_predictions.LayerNorm"),
                    ("head.mlm.decoder", "generator_lm_head"),
                ],
            ],
            ..ROBERTA_NAMES
        }],
        classification: classification::dense_gelu,
        masked_lm: masked_lm::electra,
        ..PLAIN
    },
    Family {
        model_types: &["rembert"],
        config_defaults: &config_defaults::REMBERT,
        keys: ConfigKeys { embedding_size: Some("input_embedding_size"), ..BERT_KEYS },
        defaults: Defaults { always_projects: true, ..BERT_DEFAULTS },
        names: &[TensorNames {
            prefixes: &["", "rembert."],
            model_modules: &[
                &[("embeddings.projection", "encoder.embedding_hidden_mapping_in")],
                BERT_MODEL,
                BERT_POOLER,
            ],
            head_modules: &[
                BERT_HEAD,
                TOKEN_HEADS,
                &[
                    ("head.mlm.dense", "cls.predictions.dense"),
                    ("head.mlm.norm", "cls.predictions.LayerNorm"),
                ],
                BERT_PRETRAINING,
            ],
            ..BERT_NAMES
        }],
        masked_lm: masked_lm::rembert,
        ..PLAIN
    },
    Family {
        model_types: &["albert"],
        config_defaults: &config_defaults::ALBERT,
        keys: ConfigKeys {
            embedding_size: Some("embedding_size"),
            groups: Some(("num_hidden_groups", "inner_group_num")),
            ..BERT_KEYS
        },
        defaults: Defaults { activation: Activation::GeluTanh, always_projects: true, ..BERT_DEFAULTS },
        names: &[TensorNames {
            prefixes: &["", "albert."],
            model_modules: &[
                &[("embeddings.projection", "encoder.embedding_hidden_mapping_in"), ("pooler", "pooler")],
                BERT_MODEL,
            ],
            layer_prefix: "encoder.albert_layer_groups.{}.albert_layers.{}.",
            layer_modules: &[&[
                ("attention.query", "attention.query"),
                ("attention.key", "attention.key"),
                ("attention.value", "attention.value"),
                ("attention.output", "attention.dense"),
                ("attention_norm", "attention.LayerNorm"),
                ("feed_forward.up", "ffn"),
                ("feed_forward.activation", "activation"),
                ("feed_forward.down", "ffn_output"),
                ("feed_forward_norm", "full_layer_layer_norm"),
            ]],
            head_modules: &[
                BERT_HEAD,
                TOKEN_HEADS,
                &[
                    ("head.mlm", "predictions"),
                    ("head.mlm.dense", "predictions.dense"),
                    ("head.mlm.norm", "predictions.LayerNorm"),
                    ("head.mlm.decoder", "predictions.decoder"),
                    ("head.next_sentence", "sop_classifier.classifier"),
                ],
            ],
        }],
        masked_lm: masked_lm::embedding_width,
        ..PLAIN
    },
    Family {
        model_types: &["mpnet"],
        config_defaults: &config_defaults::MPNET,
        keys: ConfigKeys {
            token_types: None,
            relative_bias: Some("relative_attention_num_buckets"),
            ..BERT_KEYS
        },
        defaults: Defaults { positions: PositionEncoding::AfterFixed(1), ..BERT_DEFAULTS },
        names: &[TensorNames {
            prefixes: &["", "mpnet."],
            model_modules: &[
                &[("relative_bias", "encoder.relative_attention_bias")],
                BERT_MODEL,
                BERT_POOLER,
            ],
            layer_modules: &[
                &[
                    ("attention.query", "attention.attn.q"),
                    ("attention.key", "attention.attn.k"),
                    ("attention.value", "attention.attn.v"),
                    ("attention.output", "attention.attn.o"),
                    ("attention_norm", "attention.LayerNorm"),
                ],
                BERT_LAYER,
            ],
            ..ROBERTA_NAMES
        }],
        classification: classification::dense,
        masked_lm: masked_lm::gelu,
        ..PLAIN
    },
    GATED_T5,
    Family { model_types: &["mt5"], config_defaults: &config_defaults::MT5, ..GATED_T5 },
    T5,
    Family { model_types: &["mt5"], config_defaults: &config_defaults::MT5, ..T5 },
    UMT5_GATED,
    Family {
        model_types: &["umt5"],
        config_defaults: &config_defaults::MT5,
        names: &[TensorNames {
            layer_modules: &[UMT5_LAYER, T5_NAMES.layer_modules[0], T5_LAYER],
            ..T5_NAMES
        }],
        family_specific: &[family_specific::t5, family_specific::bias_per_layer],
        ..T5
    },
    Family {
        model_types: &["distilbert"],
        config_defaults: &config_defaults::DISTILBERT,
        keys: ConfigKeys {
            token_types: None,
            hidden_size: "dim",
            layers: "n_layers",
            heads: "n_heads",
            intermediate_size: "hidden_dim",
            activation: Some("activation"),
            norm_eps: None,
            ..BERT_KEYS
        },
        names: &[TensorNames {
            prefixes: &["", "distilbert."],
            model_modules: &[BERT_MODEL],
            layer_prefix: "transformer.layer.{}.",
            layer_modules: &[&[
                ("attention.query", "attention.q_lin"),
                ("attention.key", "attention.k_lin"),
                ("attention.value", "attention.v_lin"),
                ("attention.output", "attention.out_lin"),
                ("attention_norm", "sa_layer_norm"),
                ("feed_forward.up", "ffn.lin1"),
                ("feed_forward.activation", "ffn.activation"),
                ("feed_forward.down", "ffn.lin2"),
                ("feed_forward_norm", "output_layer_norm"),
            ]],
            head_modules: &[
                &[("head.dense", "pre_classifier"), ("head.classifier", "classifier")],
                TOKEN_HEADS,
                &[
                    ("head.mlm", "vocab_projector"),
                    ("head.mlm.dense", "vocab_transform"),
                    ("head.mlm.norm", "vocab_layer_norm"),
                    ("head.mlm.decoder", "vocab_projector"),
                ],
            ],
        }],
        classification: classification::dense_relu,
        ..PLAIN
    },
    Family {
        model_types: &["deberta"],
        config_defaults: &config_defaults::DEBERTA,
        keys: ConfigKeys { head_dim: None, ..DEBERTA_V2.keys },
        defaults: Defaults {
            bias: Biases { projection: false, key: false, ..Biases::ALL },
            ..DEBERTA_V2.defaults
        },
        family_specific: &[family_specific::first_disentangled_attention],
        names: &[TensorNames {
            layer_modules: &[
                &[
                    ("attention.query", "attention.self.in_proj[0/3 per head]"),
                    ("attention.query.bias", "attention.self.q_bias="),
                    ("attention.key", "attention.self.in_proj[1/3 per head]"),
                    ("attention.value", "attention.self.in_proj[2/3 per head]"),
                    ("attention.value.bias", "attention.self.v_bias="),
                    ("attention.distance_key", "attention.self.pos_proj"),
                    ("attention.distance_query", "attention.self.pos_q_proj"),
                    ("attention.mix_before", "attention.self.head_logits_proj"),
                    ("attention.mix_after", "attention.self.head_weights_proj"),
                ],
                BERT_LAYER,
            ],
            ..DEBERTA_NAMES
        }],
        ..DEBERTA_V2
    },
    DEBERTA_V2,
    Family {
        model_types: &["roformer"],
        config_defaults: &config_defaults::ROFORMER,
        keys: ConfigKeys {
            embedding_size: Some("embedding_size"),
            embedding_size_or_hidden: true,
            ..BERT_KEYS
        },
        defaults: Defaults {
            positions: PositionEncoding::Rotary {
                layout: RotaryLayout::Interleaved,
                theta: 10_000.0,
                local: None,
                stored_table: true,
            },
            ..BERT_DEFAULTS
        },
        names: &[TensorNames {
            prefixes: &["", "roformer."],
            model_modules: &[
                &[("embeddings.projection", "embeddings_project"), ("rotary", "encoder.embed_positions")],
                BERT_MODEL,
            ],
            head_modules: &[ROBERTA_HEAD, TOKEN_HEADS, BERT_PRETRAINING],
            ..ROBERTA_NAMES
        }],
        classification: classification::dense_hidden_act,
        masked_lm: masked_lm::embedding_width,
        ..PLAIN
    },
    // Nomic's own code without a gate, with experts in some layers (nomic-embed-text-v2-moe).
    Family {
        discriminator: Some(("activation_function", &["gelu"])),
        defaults: Defaults { gated: false, activation: Activation::Gelu, ..NOMIC.defaults },
        names: &[TensorNames {
            layer_modules: &[
                &[
                    ("feed_forward.up", "mlp.fc1"),
                    ("feed_forward.router", "mlp.router.layer"),
                    ("feed_forward.experts", "mlp.experts"),
                    ("feed_forward.experts.up", "mlp.experts.mlp.w1="),
                    ("feed_forward.experts.down", "mlp.experts.mlp.w2="),
                ],
                NOMIC_NAMES.layer_modules[0],
            ],
            ..NOMIC_NAMES
        }],
        family_specific: &[family_specific::nomic_biases, family_specific::nomic_experts],
        own_fields: &[
            "qkv_proj_bias",
            "mlp_fc1_bias",
            "mlp_fc2_bias",
            "moe_every_n_layers",
            family_specific::ROTARY_FRACTION,
        ],
        ..NOMIC_FIRST_CODE
    },
    NOMIC_FIRST_CODE,
    NOMIC,
    JINA_V3,
    // The model type is `new` in Alibaba's own code, `gte` in transformers.
    Family {
        model_types: &["new"],
        config_defaults: &config_defaults::NONE,
        defaults: Defaults { positions: PositionEncoding::Named("rope"), ..GTE.defaults },
        names: &[NEW_NAMES],
        family_specific: &[family_specific::layer_norm_type],
        ..GTE
    },
    GTE,
    Family {
        model_types: &["modernbert"],
        config_defaults: &config_defaults::MODERNBERT,
        keys: ConfigKeys {
            token_types: None,
            activation: Some("hidden_activation"),
            rope_theta: "global_rope_theta",
            norm_eps: Some("norm_eps"),
            norm_bias: Some("norm_bias"),
            attention_bias: Some("attention_bias"),
            mlp_bias: Some("mlp_bias"),
            ..BERT_KEYS
        },
        defaults: Defaults {
            positions: PositionEncoding::Rotary {
                layout: RotaryLayout::HalfSplit,
                theta: 160_000.0,
                local: Some(LocalRotary {
                    theta_key: "local_rope_theta",
                    theta: 10_000.0,
                    shares_scaling: true,
                }),
                stored_table: false,
            },
            skip_first_norm: true,
            norm: NormSpec { bias: false, eps: 1e-5, ..LAYER_NORM },
            bias: Biases::NONE,
            gated: true,
            ..PRE_NORM
        },
        names: &[TensorNames {
            prefixes: &["", "model."],
            model_modules: &[&[
                ("embeddings.token", "embeddings.tok_embeddings"),
                ("embeddings.norm", "embeddings.norm"),
                ("final_norm", "final_norm"),
            ]],
            layer_prefix: "layers.{}.",
            layer_modules: &[&[
                ("attention.query", "attn.Wqkv[0/3]"),
                ("attention.key", "attn.Wqkv[1/3]"),
                ("attention.value", "attn.Wqkv[2/3]"),
                ("attention.output", "attn.Wo"),
                ("attention_norm", "attn_norm"),
                ("feed_forward.gate", "mlp.Wi[0/2]"),
                ("feed_forward.up", "mlp.Wi[1/2]"),
                ("feed_forward.activation", "mlp.act"),
                ("feed_forward.down", "mlp.Wo"),
                ("feed_forward_norm", "mlp_norm"),
            ]],
            head_modules: &[&[
                ("head.dense", "head.dense"),
                ("head.norm", "head.norm"),
                ("head.classifier", "classifier"),
                ("head.token_classifier", "classifier"),
                ("head.qa_outputs", "classifier"),
                ("head.mlm", "decoder"),
                ("head.mlm.dense", "head.dense"),
                ("head.mlm.norm", "head.norm"),
                ("head.mlm.decoder", "decoder"),
            ]],
        }],
        family_specific: &[family_specific::local_attention],
        classification: classification::prediction_head,
        token_head: token_head::prediction_head,
        masked_lm: masked_lm::prediction_head,
        ..PLAIN
    },
    Family {
        model_types: &["eurobert"],
        config_defaults: &config_defaults::EUROBERT,
        keys: ConfigKeys { attention_bias: Some("attention_bias"), mlp_bias: Some("mlp_bias"), ..LLAMA.keys },
        defaults: Defaults { norm: NormSpec { eps: 1e-5, ..RMS_NORM }, ..LLAMA.defaults },
        family_specific: &[],
        names: &[TensorNames {
            prefixes: &["", "model."],
            head_modules: &[
                &[
                    ("head.dense", "dense"),
                    ("head.classifier", "classifier"),
                    ("head.mlm", "lm_head"),
                    ("head.mlm.dense", "lm_head.dense"),
                    ("head.mlm.decoder", "lm_head"),
                ],
                TOKEN_HEADS,
            ],
            ..LLAMA_NAMES
        }],
        classification: classification::eurobert,
        token_head: token_head::linear,
        masked_lm: masked_lm::eurobert,
        ..LLAMA
    },
    Family {
        model_types: &["llama"],
        config_defaults: &config_defaults::LLAMA,
        keys: ConfigKeys { attention_bias: Some("attention_bias"), mlp_bias: Some("mlp_bias"), ..LLAMA.keys },
        ..LLAMA
    },
    // NVIDIA's own code: Llama without the causal mask.
    Family {
        model_types: &["llama_bidirec"],
        keys: ConfigKeys { attention_bias: Some("attention_bias"), mlp_bias: Some("mlp_bias"), ..LLAMA.keys },
        family_specific: &[],
        classification: classification::unsupported,
        token_head: token_head::unsupported,
        ..LLAMA
    },
    Family {
        model_types: &["mistral"],
        config_defaults: &config_defaults::MISTRAL,
        defaults: Defaults { key_value_heads: Some(8), ..LLAMA.defaults },
        family_specific: &[family_specific::causal, family_specific::window_of_all_layers],
        ..LLAMA
    },
    Family {
        model_types: &["qwen2"],
        config_defaults: &config_defaults::QWEN2,
        keys: ConfigKeys { head_dim: None, ..LLAMA.keys },
        defaults: Defaults {
            bias: Biases { query_value: true, key: true, ..Biases::NONE },
            key_value_heads: Some(32),
            ..LLAMA.defaults
        },
        family_specific: &[family_specific::causal, family_specific::window_of_upper_layers],
        ..LLAMA
    },
    Family {
        model_types: &["qwen3"],
        config_defaults: &config_defaults::QWEN3,
        keys: ConfigKeys { attention_bias: Some("attention_bias"), ..LLAMA.keys },
        defaults: Defaults {
            head_dim: Some(128),
            key_value_heads: Some(32),
            qk_norm: true,
            ..LLAMA.defaults
        },
        family_specific: &[family_specific::causal, family_specific::window_of_upper_layers],
        ..LLAMA
    },
    Family {
        model_types: &["ministral"],
        config_defaults: &config_defaults::MISTRAL,
        defaults: Defaults { key_value_heads: Some(8), ..LLAMA.defaults },
        family_specific: &[family_specific::causal, family_specific::window_of_layer_types],
        ..LLAMA
    },
    Family {
        model_types: &["ministral3"],
        config_defaults: &config_defaults::MINISTRAL3,
        defaults: Defaults {
            norm: NormSpec { eps: 1e-5, ..RMS_NORM },
            head_dim: Some(128),
            key_value_heads: Some(8),
            ..LLAMA.defaults
        },
        family_specific: &[family_specific::causal, family_specific::ministral3],
        ..LLAMA
    },
    Family {
        model_types: &["granite"],
        config_defaults: &config_defaults::GRANITE,
        keys: ConfigKeys {
            attention_bias: Some("attention_bias"),
            mlp_bias: Some("mlp_bias"),
            logit_divisor: Some("logits_scaling"),
            ..LLAMA.keys
        },
        family_specific: &[family_specific::causal, family_specific::granite],
        classification: classification::unsupported,
        token_head: token_head::unsupported,
        ..LLAMA
    },
    Family {
        model_types: &["lfm2"],
        config_defaults: &config_defaults::LFM2,
        keys: ConfigKeys { activation: None, head_dim: None, norm_eps: Some("norm_eps"), ..LLAMA.keys },
        defaults: Defaults {
            positions: rotary(1_000_000.0),
            norm: NormSpec { eps: 1e-5, ..RMS_NORM },
            key_value_heads: Some(8),
            qk_norm: true,
            ..LLAMA.defaults
        },
        names: &[LFM2_NAMES],
        family_specific: &[family_specific::causal, family_specific::lfm2],
        classification: classification::unsupported,
        token_head: token_head::unsupported,
        masked_lm: masked_lm::lfm2,
        ..LLAMA
    },
    Family {
        model_types: &["gemma"],
        config_defaults: &config_defaults::GEMMA,
        keys: ConfigKeys { attention_bias: Some("attention_bias"), ..LLAMA.keys },
        defaults: Defaults { key_value_heads: Some(16), ..GEMMA_DEFAULTS },
        family_specific: &[
            family_specific::causal,
            family_specific::scaled_embeddings,
            family_specific::gelu_is_tanh,
        ],
        ..LLAMA
    },
    Family {
        model_types: &["gemma2"],
        config_defaults: &config_defaults::GEMMA2,
        keys: ConfigKeys {
            activation: Some("hidden_activation"),
            attention_bias: Some("attention_bias"),
            logit_cap: Some("final_logit_softcapping"),
            ..LLAMA.keys
        },
        defaults: Defaults {
            norm_placement: NormPlacement::SandwichAndFinal,
            key_value_heads: Some(4),
            ..GEMMA_DEFAULTS
        },
        names: &[GEMMA_NAMES],
        family_specific: &[
            family_specific::causal,
            family_specific::scaled_embeddings,
            family_specific::gemma2,
        ],
        ..LLAMA
    },
    Family {
        model_types: &["gemma3_text"],
        config_defaults: &config_defaults::GEMMA3_TEXT,
        keys: ConfigKeys {
            activation: Some("hidden_activation"),
            attention_bias: Some("attention_bias"),
            logit_cap: Some("final_logit_softcapping"),
            ..LLAMA.keys
        },
        defaults: Defaults {
            positions: PositionEncoding::Rotary {
                layout: RotaryLayout::HalfSplit,
                theta: 1_000_000.0,
                local: Some(LocalRotary {
                    theta_key: "rope_local_base_freq",
                    theta: 10_000.0,
                    shares_scaling: false,
                }),
                stored_table: false,
            },
            norm_placement: NormPlacement::SandwichAndFinal,
            key_value_heads: Some(4),
            qk_norm: true,
            ..GEMMA_DEFAULTS
        },
        names: &[GEMMA_NAMES],
        family_specific: &[
            family_specific::causal,
            family_specific::scaled_embeddings,
            family_specific::gemma3,
        ],
        token_head: token_head::unsupported,
        ..LLAMA
    },
    CLIP,
    SIGLIP,
    Family {
        model_types: &["siglip2"],
        text_config: Some(TextConfig { model_types: &["siglip2"], keys: &[TEXT_CONFIG] }),
        lowercases: true,
        ..SIGLIP
    },
];

/// Modules of a layer of CLIP.
const CLIP_LAYER: ModuleNames = &[
    ("attention.query", "self_attn.q_proj"),
    ("attention.key", "self_attn.k_proj"),
    ("attention.value", "self_attn.v_proj"),
    ("attention.output", "self_attn.out_proj"),
    ("attention_norm", "layer_norm1"),
    ("feed_forward.up", "mlp.fc1"),
    ("feed_forward.activation", "mlp.activation_fn"),
    ("feed_forward.down", "mlp.fc2"),
    ("feed_forward_norm", "layer_norm2"),
];

/// Names of CLIP's text tower.
const CLIP_NAMES: TensorNames = TensorNames {
    prefixes: &[""],
    model_modules: &[&[
        ("embeddings.token", "text_model.embeddings.token_embedding"),
        ("embeddings.position", "text_model.embeddings.position_embedding"),
        ("final_norm", "text_model.final_layer_norm"),
        ("pooler", "text_projection"),
    ]],
    layer_prefix: "text_model.encoder.layers.{}.",
    layer_modules: &[CLIP_LAYER],
    head_modules: &[],
};

/// Names of a text tower that was saved without the model around it.
const TOWER_NAMES: TensorNames = TensorNames {
    model_modules: &[&[
        ("embeddings.token", "embeddings.token_embedding"),
        ("embeddings.position", "embeddings.position_embedding"),
        ("final_norm", "final_layer_norm"),
        ("pooler", "head"),
    ]],
    layer_prefix: "encoder.layers.{}.",
    ..CLIP_NAMES
};

/// The text tower of CLIP (Radford et al. 2021). The tower for images is not read.
const CLIP: Family = Family {
    model_types: &["clip_text_model", "clip"],
    text_config: Some(TextConfig { model_types: &["clip"], keys: &["text_config_dict", TEXT_CONFIG] }),
    config_defaults: &config_defaults::CLIP_TEXT,
    keys: ConfigKeys { token_types: None, ..BERT_KEYS },
    defaults: Defaults {
        embedding_norm: EmbeddingNorm::None,
        norm: NormSpec { eps: 1e-5, ..LAYER_NORM },
        activation: Activation::QuickGelu,
        ..PRE_NORM
    },
    names: &[CLIP_NAMES, TOWER_NAMES],
    pool: Pool::Pooler,
    classification: classification::unsupported,
    token_head: token_head::unsupported,
    masked_lm: masked_lm::unsupported,
    family_specific: &[family_specific::clip],
    ..PLAIN
};

/// The text tower of SigLIP (Zhai et al. 2023).
const SIGLIP: Family = Family {
    model_types: &["siglip_text_model", "siglip"],
    text_config: Some(TextConfig { model_types: &["siglip"], keys: &[TEXT_CONFIG] }),
    config_defaults: &config_defaults::SIGLIP_TEXT,
    defaults: Defaults {
        norm: NormSpec { eps: 1e-6, ..LAYER_NORM },
        activation: Activation::GeluTanh,
        ..CLIP.defaults
    },
    names: &[
        TensorNames {
            model_modules: &[&[("pooler", "text_model.head")], CLIP_NAMES.model_modules[0]],
            ..CLIP_NAMES
        },
        TOWER_NAMES,
    ],
    family_specific: &[family_specific::siglip],
    ..CLIP
};

/// Modules of a layer of Llama that `ROTARY_NAMES` does not have, or has under other names.
const LLAMA_LAYER: ModuleNames = &[
    ("attention.query_norm", "self_attn.q_norm"),
    ("attention.key_norm", "self_attn.k_norm"),
    ("attention_norm", "input_layernorm"),
    ("feed_forward_norm", "post_attention_layernorm"),
];

/// Names of Llama and of the language models that follow it.
const LLAMA_NAMES: TensorNames = TensorNames {
    // `transformer.` in checkpoints for question answering.
    prefixes: &["", "model.", "transformer."],
    model_modules: &[&[("embeddings.token", "embed_tokens"), ("final_norm", "norm")]],
    layer_modules: &[LLAMA_LAYER, ROTARY_NAMES.layer_modules[0]],
    head_modules: &[&[
        ("head.classifier", "score"),
        ("head.token_classifier", "score"),
        ("head.qa_outputs", "qa_outputs"),
        ("head.lm_head", "lm_head"),
    ]],
    ..ROTARY_NAMES
};

/// Llama without the flags of its biases: the base of the rows of decoder language models, whose hidden
/// states are embeddings. Their heads classify the last token, each token, or the ends of an answer; of those
/// that predict the next token, rerankers use the logits of one or two tokens.
const LLAMA: Family = Family {
    keys: ConfigKeys {
        token_types: None,
        key_value_heads: Some("num_key_value_heads"),
        head_dim: Some("head_dim"),
        norm_eps: Some("rms_norm_eps"),
        ..BERT_KEYS
    },
    defaults: Defaults {
        positions: rotary(10_000.0),
        embedding_norm: EmbeddingNorm::None,
        norm: RMS_NORM,
        bias: Biases::NONE,
        gated: true,
        activation: Activation::Silu,
        ..PRE_NORM
    },
    names: &[LLAMA_NAMES],
    classification: classification::last_token,
    token_head: token_head::linear,
    masked_lm: masked_lm::unsupported,
    family_specific: &[family_specific::causal],
    ..PLAIN
};

/// Names of LFM2, also in its own code for masked language models.
const LFM2_NAMES: TensorNames = TensorNames {
    prefixes: &["", "model.", "lfm2."],
    model_modules: &[&[("embeddings.token", "embed_tokens"), ("final_norm", "embedding_norm")]],
    layer_modules: &[&[
        ("attention.query", "self_attn.q_proj"),
        ("attention.key", "self_attn.k_proj"),
        ("attention.value", "self_attn.v_proj"),
        ("attention.output", "self_attn.out_proj"),
        ("attention.query_norm", "self_attn.q_layernorm"),
        ("attention.key_norm", "self_attn.k_layernorm"),
        ("short_convolution.input", "conv.in_proj"),
        ("short_convolution.taps", "conv.conv"),
        ("short_convolution.output", "conv.out_proj"),
        ("attention_norm", "operator_norm"),
        ("feed_forward.gate", "feed_forward.w1"),
        ("feed_forward.up", "feed_forward.w3"),
        ("feed_forward.down", "feed_forward.w2"),
        ("feed_forward_norm", "ffn_norm"),
    ]],
    head_modules: &[&[("head.lm_head", "lm_head"), ("head.mlm.decoder", "lm_head")], LM_HEAD],
    ..LLAMA_NAMES
};

/// What the releases of Gemma have in common.
const GEMMA_DEFAULTS: Defaults = Defaults {
    norm: NormSpec { unit_offset: true, ..RMS_NORM },
    activation: Activation::GeluTanh,
    head_dim: Some(256),
    ..LLAMA.defaults
};

/// Names of Gemma from the second release on, whose sublayers have a norm on both sides.
const GEMMA_NAMES: TensorNames = TensorNames {
    layer_modules: &[
        &[
            ("attention_output_norm", "post_attention_layernorm"),
            ("feed_forward_norm", "pre_feedforward_layernorm"),
            ("feed_forward_output_norm", "post_feedforward_layernorm"),
        ],
        LLAMA_LAYER,
        ROTARY_NAMES.layer_modules[0],
    ],
    ..LLAMA_NAMES
};

const T5_DEFAULTS: Defaults = Defaults {
    positions: PositionEncoding::None,
    embedding_norm: EmbeddingNorm::None,
    norm: RMS_NORM,
    bias: Biases::NONE,
    activation: Activation::Relu,
    // Relative positions have no limit; the number is that of the longest table of biases by position.
    max_positions: Some(1 << 15),
    ..PRE_NORM
};

/// T5's token embeddings, which encoder and decoder share.
const T5_SHARED_TOKENS: ModuleNames = &[("embeddings.token", "shared")];

/// T5's token embeddings under the name of the encoder's copy, of which some checkpoints have no other.
const T5_ENCODER_TOKENS: ModuleNames = &[("embeddings.token", "encoder.embed_tokens")];

/// Modules outside the layers, as T5 names them; the first layer has the biases of all.
const T5_MODEL: ModuleNames = &[
    ("relative_bias", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
    ("final_norm", "encoder.final_layer_norm"),
];

const T5_LAYER: ModuleNames = &[
    ("attention.query", "layer.0.SelfAttention.q"),
    ("attention.key", "layer.0.SelfAttention.k"),
    ("attention.value", "layer.0.SelfAttention.v"),
    ("attention.output", "layer.0.SelfAttention.o"),
    ("attention_norm", "layer.0.layer_norm"),
    ("feed_forward.activation", "layer.1.DenseReluDense.act"),
    ("feed_forward.down", "layer.1.DenseReluDense.wo"),
    ("feed_forward_norm", "layer.1.layer_norm"),
];

/// The biases of UMT5, whose layers have their own.
const UMT5_LAYER: ModuleNames =
    &[("attention.relative_bias", "layer.0.SelfAttention.relative_attention_bias")];

const T5_NAMES: TensorNames = TensorNames {
    prefixes: &["", "transformer."],
    model_modules: &[T5_SHARED_TOKENS, T5_MODEL],
    layer_prefix: "encoder.block.{}.",
    layer_modules: &[&[("feed_forward.up", "layer.1.DenseReluDense.wi")], T5_LAYER],
    // Those of sequences and of answers are heads of the decoder.
    head_modules: &[&[("head.token_classifier", "classifier")]],
};

const T5_GATED_NAMES: TensorNames = TensorNames {
    layer_modules: &[
        &[
            ("feed_forward.gate", "layer.1.DenseReluDense.wi_0"),
            ("feed_forward.up", "layer.1.DenseReluDense.wi_1"),
        ],
        T5_LAYER,
    ],
    ..T5_NAMES
};

/// The encoder of T5, whose feed-forward network is not gated.
const T5: Family = Family {
    model_types: &["t5"],
    config_defaults: &config_defaults::T5,
    keys: ConfigKeys {
        max_positions: "n_positions",
        token_types: None,
        hidden_size: "d_model",
        layers: "num_layers",
        heads: "num_heads",
        head_dim: Some("d_kv"),
        intermediate_size: "d_ff",
        activation: None,
        norm_eps: Some("layer_norm_epsilon"),
        ..BERT_KEYS
    },
    defaults: T5_DEFAULTS,
    names: &[T5_NAMES, TensorNames { model_modules: &[T5_ENCODER_TOKENS, T5_MODEL], ..T5_NAMES }],
    family_specific: &[family_specific::t5],
    ..PLAIN
};

/// The encoder of T5 1.1 and later, whose feed-forward network is gated.
const GATED_T5: Family = Family {
    discriminator: Some(("feed_forward_proj", &["gated-gelu", "gated-silu", "gated-relu"])),
    defaults: Defaults { gated: true, ..T5_DEFAULTS },
    names: &[T5_GATED_NAMES, TensorNames { model_modules: &[T5_ENCODER_TOKENS, T5_MODEL], ..T5_GATED_NAMES }],
    ..T5
};

const UMT5_GATED_NAMES: &[TensorNames] = &[TensorNames {
    layer_modules: &[UMT5_LAYER, T5_GATED_NAMES.layer_modules[0], T5_LAYER],
    ..T5_GATED_NAMES
}];

/// UMT5 with a gate.
const UMT5_GATED: Family = Family {
    model_types: &["umt5"],
    config_defaults: &config_defaults::MT5,
    names: UMT5_GATED_NAMES,
    family_specific: &[family_specific::t5, family_specific::bias_per_layer],
    ..GATED_T5
};

/// The heads of Nomic BERT.
const NOMIC_HEADS: &[ModuleNames] =
    &[BERT_HEAD, TOKEN_HEADS, &[("head.mlm.norm", "cls.predictions.transform.layer_norm")], BERT_PRETRAINING];

/// Names in Nomic's own code.
const NOMIC_NAMES: TensorNames = TensorNames {
    prefixes: &["", "bert.", "nomic_bert."],
    model_modules: &[&[("embeddings.norm", "emb_ln")], BERT_MODEL, BERT_POOLER],
    layer_prefix: "encoder.layers.{}.",
    layer_modules: &[&[
        ("attention.query", "attn.Wqkv[0/3]"),
        ("attention.key", "attn.Wqkv[1/3]"),
        ("attention.value", "attn.Wqkv[2/3]"),
        ("attention.output", "attn.out_proj"),
        ("attention_norm", "norm1"),
        ("feed_forward.gate", "mlp.fc12"),
        ("feed_forward.up", "mlp.fc11"),
        ("feed_forward.activation", "mlp.act_fn"),
        ("feed_forward.down", "mlp.fc2"),
        ("feed_forward_norm", "norm2"),
    ]],
    head_modules: NOMIC_HEADS,
};

const NOMIC: Family = Family {
    model_types: &["nomic_bert"],
    config_defaults: &config_defaults::NOMIC_BERT,
    keys: ConfigKeys { head_dim: Some("head_dim"), ..BERT_KEYS },
    defaults: Defaults {
        positions: rotary(1_000.0),
        bias: Biases::NONE,
        gated: true,
        activation: Activation::Silu,
        ..BERT_DEFAULTS
    },
    names: &[
        TensorNames {
            prefixes: &["", "nomic_bert."],
            model_modules: &[BERT_MODEL, BERT_POOLER],
            head_modules: NOMIC_HEADS,
            ..ROTARY_NAMES
        },
        NOMIC_NAMES,
    ],
    ..PLAIN
};

/// Nomic's own code, which has the config fields of GPT-2.
const NOMIC_FIRST_CODE: Family = Family {
    discriminator: Some(("n_embd", &[])),
    config_defaults: &config_defaults::NOMIC_FIRST_CODE,
    keys: ConfigKeys {
        hidden_size: "n_embd",
        layers: "n_layer",
        heads: "n_head",
        intermediate_size: "n_inner",
        max_positions: "n_positions",
        rope_theta: "rotary_emb_base",
        norm_eps: Some("layer_norm_epsilon"),
        activation: None,
        ..BERT_KEYS
    },
    names: &[NOMIC_NAMES],
    family_specific: &[family_specific::nomic_biases, family_specific::nomic],
    own_fields: &["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", family_specific::ROTARY_FRACTION],
    ..NOMIC
};

/// Names of jina-embeddings-v3 in its own code.
const JINA_V3_OWN_NAMES: TensorNames = TensorNames {
    prefixes: &["", "roberta."],
    model_modules: &[&[("embeddings.norm", "emb_ln")], BERT_MODEL, BERT_POOLER],
    layer_prefix: "encoder.layers.{}.",
    layer_modules: &[&[
        ("attention.query", "mixer.Wqkv[0/3]"),
        ("attention.key", "mixer.Wqkv[1/3]"),
        ("attention.value", "mixer.Wqkv[2/3]"),
        ("attention.output", "mixer.out_proj"),
        ("attention_norm", "norm1"),
        ("feed_forward.up", "mlp.fc1"),
        ("feed_forward.activation", "mlp.activation_fn"),
        ("feed_forward.down", "mlp.fc2"),
        ("feed_forward_norm", "norm2"),
    ]],
    head_modules: &[ROBERTA_HEAD, TOKEN_HEADS, LM_HEAD],
};

/// XLM-RoBERTa with rotary embeddings, the encoder of jina-embeddings-v3.
const JINA_V3: Family = Family {
    model_types: &["jina_embeddings_v3"],
    config_defaults: &config_defaults::JINA_EMBEDDINGS_V3,
    keys: ConfigKeys { head_dim: Some("head_dim"), ..BERT_KEYS },
    defaults: Defaults {
        positions: rotary(20_000.0),
        norm: NormSpec { eps: 1e-5, ..LAYER_NORM },
        ..BERT_DEFAULTS
    },
    names: &[
        TensorNames {
            prefixes: &["", "roberta."],
            model_modules: &[BERT_MODEL, BERT_POOLER],
            layer_modules: &[
                &[
                    ("feed_forward.up", "mlp.fc1"),
                    ("feed_forward.activation", "mlp.activation_fn"),
                    ("feed_forward.down", "mlp.fc2"),
                ],
                ROTARY_NAMES.layer_modules[0],
            ],
            head_modules: &[ROBERTA_HEAD, TOKEN_HEADS, LM_HEAD],
            ..ROTARY_NAMES
        },
        JINA_V3_OWN_NAMES,
    ],
    classification: classification::dense,
    masked_lm: masked_lm::gelu,
    ..PLAIN
};

/// Names in Alibaba's own code.
const NEW_NAMES: TensorNames = TensorNames {
    prefixes: &["", "new.", "gte."],
    layer_modules: &[&[
        ("attention.query", "attention.qkv_proj[0/3]"),
        ("attention.key", "attention.qkv_proj[1/3]"),
        ("attention.value", "attention.qkv_proj[2/3]"),
        ("attention.output", "attention.o_proj"),
        ("attention_norm", "attn_ln"),
        ("feed_forward.up", "mlp.up_gate_proj[0/2]"),
        ("feed_forward.activation", "mlp.act_fn"),
        ("feed_forward.gate", "mlp.up_gate_proj[1/2]"),
        ("feed_forward.down", "mlp.down_proj"),
        ("feed_forward_norm", "mlp_ln"),
    ]],
    head_modules: &[BERT_HEAD, TOKEN_HEADS, &[("head.mlm.norm", "lm_head.norm")], LM_HEAD],
    ..BERT_NAMES
};

const GTE: Family = Family {
    model_types: &["gte"],
    config_defaults: &config_defaults::GTE,
    keys: ConfigKeys { head_dim: Some("head_dim"), ..BERT_KEYS },
    defaults: Defaults {
        positions: rotary(160_000.0),
        bias: Biases { up: false, ..Biases::ALL },
        gated: true,
        ..BERT_DEFAULTS
    },
    names: &[
        TensorNames { prefixes: &["", "gte."], model_modules: &[BERT_MODEL, BERT_POOLER], ..ROTARY_NAMES },
        NEW_NAMES,
    ],
    masked_lm: masked_lm::gelu,
    ..PLAIN
};

/// Static embeddings, which have no encoder and no config that describes one.
pub static STATIC_EMBEDDING: Family = Family {
    model_types: &[MODEL2VEC],
    keys: ConfigKeys { max_positions: MAX_LENGTH, ..BERT_KEYS },
    names: &[
        TensorNames { model_modules: &[&[("embeddings.token", "embedding")]], ..STATIC_NAMES },
        STATIC_NAMES,
    ],
    ..PLAIN
};

/// Names of model2vec.
const STATIC_NAMES: TensorNames = TensorNames {
    prefixes: &[""],
    model_modules: &[&[
        ("embeddings.token", "embeddings="),
        ("embeddings.token_rows", "mapping="),
        ("embeddings.token_weights", "weights="),
    ]],
    layer_prefix: "layers.{}.",
    // Without layers there are none, but the choice of a naming asks for one.
    layer_modules: &[&[("attention.output", "attention.output")]],
    head_modules: &[],
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The example of "Add a model family" in CONTRIBUTING.md, line by line.
    const EXAMPLE: Family = Family {
        model_types: &["data2vec-text"],
        config_defaults: &config_defaults::XLM_ROBERTA,
        defaults: Defaults { positions: PositionEncoding::AfterPadding(1), ..BERT_DEFAULTS },
        names: &[TensorNames { prefixes: &["", "data2vec_text."], ..ROBERTA_NAMES }],
        classification: classification::dense,
        masked_lm: masked_lm::gelu,
        ..PLAIN
    };

    #[test]
    fn the_example_row_describes_its_config() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/data2vec-text-base.json");
        let config = Config::read(&path).unwrap();
        let row = Family::of(&config).unwrap();
        assert_eq!(EXAMPLE.model_types, row.model_types);
        assert_eq!(EXAMPLE.spec(&config).unwrap(), row.spec(&config).unwrap());
        assert_eq!(EXAMPLE.names[0].prefixes, row.names[0].prefixes);
    }
}
