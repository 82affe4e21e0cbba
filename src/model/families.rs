//! The table of model families: what a config and a checkpoint of each call things, and what it computes whatever
//! its config says. `spec.rs` reads a config by a row of this table.

use anyhow::Result;

use super::config::Config;
use super::names::{Modules, Names};
use super::own_fields;
use crate::nn::{
    Activation, Biases, EmbeddingNorm, EncoderSpec, NormKind, NormPlacement, NormSpec, Pool, RotaryLayout,
};

/// One row of the table.
pub struct Family {
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// A field, and values of it, that tell this row from a later one with the same model type; without values, that the
    /// field is there.
    pub mark: Option<(&'static str, &'static [&'static str])>,
    /// What the config calls things.
    pub keys: Keys,
    /// What the family computes.
    pub maths: Maths,
    /// What checkpoints call the tensors: one way, or several.
    pub names: &'static [Names],
    /// How to pool where no pipeline file says it.
    pub pool: Pool,
    /// What reads the fields that no other family has, one after another.
    pub own_fields: &'static [Read],
}

/// Changes a spec as far as a config says.
pub type Read = fn(&Config, &mut EncoderSpec) -> Result<()>;

/// Names of config fields; `None` for what a family has not.
#[derive(Clone, Copy)]
pub struct Keys {
    /// Rows of the token table.
    pub vocab_size: &'static str,
    /// Without the field it is the hidden size, where [`Keys::embedding_size_or_hidden`] says so.
    pub embedding_size: Option<&'static str>,
    /// Whether the config may leave the embedding size out.
    pub embedding_size_or_hidden: bool,
    /// Rows of the position table, or the longest text.
    pub max_positions: &'static str,
    /// Theta of rotary positions.
    pub rope_theta: &'static str,
    /// The segment table; 0 is none.
    pub token_types: Option<&'static str>,
    /// The flag that switches task embeddings on, and their number.
    pub task_types: Option<(&'static str, &'static str)>,
    /// Width of the hidden states.
    pub hidden_size: &'static str,
    /// Layers that a text passes.
    pub layers: &'static str,
    /// Groups of layers, and layers in a group.
    pub groups: Option<(&'static str, &'static str)>,
    /// Attention heads.
    pub heads: &'static str,
    /// Heads of keys and values, and columns of a head, where the config may set them.
    pub key_value_heads: Option<&'static str>,
    pub head_size: Option<&'static str>,
    /// Rows of a table of bucketed relative biases.
    pub relative_bias: Option<&'static str>,
    /// Width inside of the feed-forward network.
    pub intermediate_size: &'static str,
    /// A family without the field has [`Maths::activation`], or a field of its own.
    pub activation: Option<&'static str>,
    /// A family without the field has that of [`Maths::norm`].
    pub norm_eps: Option<&'static str>,
    /// Flags that decide whether norms, attention and the feed-forward network have a bias; without them it is as
    /// [`Maths`] has it.
    pub norm_bias: Option<&'static str>,
    pub attention_bias: Option<&'static str>,
    pub mlp_bias: Option<&'static str>,
}

/// What a family computes where its config does not say otherwise.
#[derive(Clone, Copy)]
pub struct Maths {
    /// How it tells tokens where they stand.
    pub places: Places,
    /// Where the embedding layer has its norm.
    pub embedding_norm: EmbeddingNorm,
    /// Whether there is a projection to the hidden size even where the embeddings are as wide.
    pub always_projects: bool,
    /// Where the norms of a layer stand.
    pub norm_placement: NormPlacement,
    /// Whether the first layer goes without the norm before its attention.
    pub skip_first_norm: bool,
    /// The norms, with the eps of a config that has none.
    pub norm: NormSpec,
    /// Which linear layers have a bias.
    pub bias: Biases,
    /// Whether the feed-forward network is gated.
    pub gated: bool,
    /// The activation where the config names none.
    pub activation: Activation,
}

/// How a family tells tokens where they stand.
#[derive(Clone, Copy)]
pub enum Places {
    /// By a learned table, numbered from 0.
    Learned,
    /// The same, if this flag of the config is not false.
    LearnedIf(&'static str),
    /// By a learned table, numbered from the config's `pad_token_id` + 1, or from this + 1 where it has none.
    AfterPadding(u32),
    /// By a learned table, numbered from this + 1, whatever the config says.
    AfterFixed(u32),
    /// By turning queries and keys. Each theta is for a config that has none.
    Rotary {
        layout: RotaryLayout,
        theta: f64,
        /// Theta in layers with a window; a family without such layers has none.
        local_theta: Option<f64>,
        /// Whether checkpoints hold the angles as a table.
        stored: bool,
    },
    /// As `position_embedding_type` says, or this where it says nothing.
    Named(&'static str),
}

const fn rotary(theta: f64) -> Places {
    Places::Rotary { layout: RotaryLayout::Halves, theta, local_theta: None, stored: false }
}

const BERT_KEYS: Keys = Keys {
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
    head_size: None,
    relative_bias: None,
    intermediate_size: "intermediate_size",
    activation: Some("hidden_act"),
    norm_eps: Some("layer_norm_eps"),
    norm_bias: None,
    attention_bias: None,
    mlp_bias: None,
};

const LAYER_NORM: NormSpec = NormSpec { kind: NormKind::Layer, bias: true, eps: 1e-12 };

const ALL: Biases = Biases { projection: true, qkv: true, attention_output: true, up: true, down: true };
const NONE: Biases =
    Biases { projection: false, qkv: false, attention_output: false, up: false, down: false };

const BERT_MATHS: Maths = Maths {
    places: Places::Learned,
    embedding_norm: EmbeddingNorm::Before,
    always_projects: false,
    norm_placement: NormPlacement::After,
    skip_first_norm: false,
    norm: LAYER_NORM,
    bias: ALL,
    gated: false,
    activation: Activation::Gelu,
};

const PRE_NORM: Maths = Maths { norm_placement: NormPlacement::BeforeAndFinal, ..BERT_MATHS };

const BERT_OUTSIDE: Modules = &[
    ("embeddings.token", "embeddings.word_embeddings"),
    ("embeddings.position", "embeddings.position_embeddings"),
    ("embeddings.token_type", "embeddings.token_type_embeddings"),
    ("embeddings.task_type", "embeddings.task_type_embeddings"),
    ("embeddings.norm", "embeddings.LayerNorm"),
    ("final_norm", "encoder.LayerNorm"),
];

const BERT_INSIDE: Modules = &[
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

const BERT_POOLER: Modules = &[("pooler", "pooler.dense")];

const BERT_NAMES: Names = Names {
    prefixes: &["", "bert."],
    outside: &[BERT_OUTSIDE, BERT_POOLER],
    layer: "encoder.layer.{}.",
    inside: &[BERT_INSIDE],
};

const BERT: Family = Family {
    model_types: &["bert"],
    mark: None,
    keys: Keys {
        head_size: Some("attention_key_size"),
        attention_bias: Some("attention_bias"),
        mlp_bias: Some("mlp_bias"),
        ..BERT_KEYS
    },
    maths: Maths { places: Places::Named("absolute"), ..BERT_MATHS },
    names: &[BERT_NAMES],
    // What sentence-transformers does with a model that is no pipeline.
    pool: Pool::Mean,
    own_fields: &[own_fields::variations],
};

/// What the families after BERT are built on.
const PLAIN: Family = Family { keys: BERT_KEYS, maths: BERT_MATHS, own_fields: &[], ..BERT };

/// Rotary families as `transformers` itself builds them.
const ROTARY_NAMES: Names = Names {
    prefixes: &[""],
    outside: &[BERT_OUTSIDE],
    layer: "layers.{}.",
    inside: &[&[
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
};

/// Every family that Sconce runs.
pub static FAMILIES: &[Family] = &[
    // JinaBERT v2, with the model type of BERT.
    Family {
        mark: Some(("feed_forward_type", &["geglu", "reglu"])),
        maths: Maths {
            places: Places::Named("absolute"),
            bias: Biases { up: false, ..ALL },
            gated: true,
            ..BERT_MATHS
        },
        own_fields: &[own_fields::gate_type, own_fields::variations],
        names: &[Names {
            inside: &[
                &[
                    ("feed_forward.gate", "mlp.gated_layers[0/2]"),
                    ("feed_forward.up", "mlp.gated_layers[1/2]"),
                    ("feed_forward.down", "mlp.wo"),
                    ("feed_forward_norm", "mlp.layernorm"),
                ],
                BERT_INSIDE,
            ],
            ..BERT_NAMES
        }],
        ..BERT
    },
    BERT,
    Family {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        maths: Maths { places: Places::AfterPadding(1), ..BERT_MATHS },
        names: &[Names { prefixes: &["", "roberta."], ..BERT_NAMES }],
        ..PLAIN
    },
    Family {
        model_types: &["data2vec-text"],
        maths: Maths { places: Places::AfterPadding(1), ..BERT_MATHS },
        names: &[Names { prefixes: &["", "data2vec_text."], ..BERT_NAMES }],
        ..PLAIN
    },
    Family {
        model_types: &["roberta-prelayernorm"],
        maths: Maths { places: Places::AfterPadding(1), ..PRE_NORM },
        names: &[Names {
            prefixes: &["", "roberta_prelayernorm."],
            outside: &[&[("final_norm", "LayerNorm")], BERT_OUTSIDE, BERT_POOLER],
            inside: &[
                &[("attention_norm", "attention.LayerNorm"), ("feed_forward_norm", "intermediate.LayerNorm")],
                BERT_INSIDE,
            ],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["xlm-roberta-xl"],
        maths: Maths {
            places: Places::AfterPadding(1),
            embedding_norm: EmbeddingNorm::None,
            norm: NormSpec { eps: 1e-5, ..LAYER_NORM },
            ..PRE_NORM
        },
        names: &[Names {
            prefixes: &["", "roberta."],
            inside: &[
                &[("attention_norm", "attention.self_attn_layer_norm"), ("feed_forward_norm", "LayerNorm")],
                BERT_INSIDE,
            ],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["megatron-bert"],
        maths: Maths { embedding_norm: EmbeddingNorm::None, ..PRE_NORM },
        names: &[Names {
            outside: &[&[("final_norm", "encoder.ln")], BERT_OUTSIDE, BERT_POOLER],
            inside: &[&[("attention_norm", "attention.ln"), ("feed_forward_norm", "ln")], BERT_INSIDE],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["ernie"],
        keys: Keys { task_types: Some(("use_task_id", "task_type_vocab_size")), ..BERT_KEYS },
        names: &[Names { prefixes: &["", "ernie."], ..BERT_NAMES }],
        ..PLAIN
    },
    Family {
        model_types: &["electra"],
        keys: Keys { embedding_size: Some("embedding_size"), ..BERT_KEYS },
        names: &[Names {
            prefixes: &["", "electra."],
            outside: &[&[("embeddings.projection", "embeddings_project")], BERT_OUTSIDE],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["rembert"],
        keys: Keys { embedding_size: Some("input_embedding_size"), ..BERT_KEYS },
        maths: Maths { always_projects: true, ..BERT_MATHS },
        names: &[Names {
            prefixes: &["", "rembert."],
            outside: &[
                &[("embeddings.projection", "encoder.embedding_hidden_mapping_in")],
                BERT_OUTSIDE,
                BERT_POOLER,
            ],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["albert"],
        keys: Keys {
            embedding_size: Some("embedding_size"),
            groups: Some(("num_hidden_groups", "inner_group_num")),
            ..BERT_KEYS
        },
        maths: Maths { activation: Activation::GeluTanh, always_projects: true, ..BERT_MATHS },
        names: &[Names {
            prefixes: &["", "albert."],
            outside: &[
                &[("embeddings.projection", "encoder.embedding_hidden_mapping_in"), ("pooler", "pooler")],
                BERT_OUTSIDE,
            ],
            layer: "encoder.albert_layer_groups.{}.albert_layers.{}.",
            inside: &[&[
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
        }],
        ..PLAIN
    },
    Family {
        model_types: &["mpnet"],
        keys: Keys { token_types: None, relative_bias: Some("relative_attention_num_buckets"), ..BERT_KEYS },
        maths: Maths { places: Places::AfterFixed(1), ..BERT_MATHS },
        names: &[Names {
            prefixes: &["", "mpnet."],
            outside: &[&[("relative_bias", "encoder.relative_attention_bias")], BERT_OUTSIDE, BERT_POOLER],
            inside: &[
                &[
                    ("attention.query", "attention.attn.q"),
                    ("attention.key", "attention.attn.k"),
                    ("attention.value", "attention.attn.v"),
                    ("attention.output", "attention.attn.o"),
                    ("attention_norm", "attention.LayerNorm"),
                ],
                BERT_INSIDE,
            ],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["distilbert"],
        keys: Keys {
            token_types: None,
            hidden_size: "dim",
            layers: "n_layers",
            heads: "n_heads",
            intermediate_size: "hidden_dim",
            activation: Some("activation"),
            norm_eps: None,
            ..BERT_KEYS
        },
        names: &[Names {
            prefixes: &["", "distilbert."],
            outside: &[BERT_OUTSIDE],
            layer: "transformer.layer.{}.",
            inside: &[&[
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
        }],
        ..PLAIN
    },
    Family {
        model_types: &["deberta-v2"],
        keys: Keys {
            embedding_size: Some("embedding_size"),
            embedding_size_or_hidden: true,
            head_size: Some("attention_head_size"),
            ..BERT_KEYS
        },
        maths: Maths {
            embedding_norm: EmbeddingNorm::After,
            norm: NormSpec { eps: 1e-7, ..LAYER_NORM },
            bias: Biases { projection: false, ..ALL },
            places: Places::LearnedIf("position_biased_input"),
            ..BERT_MATHS
        },
        own_fields: &[own_fields::disentangled_attention, own_fields::convolution],
        names: &[Names {
            prefixes: &["", "deberta."],
            outside: &[
                &[
                    ("embeddings.projection", "embeddings.embed_proj"),
                    ("convolution", "encoder.conv.conv"),
                    ("convolution_norm", "encoder.conv.LayerNorm"),
                    ("distances", "encoder.rel_embeddings"),
                    ("distances_norm", "encoder.LayerNorm"),
                ],
                BERT_OUTSIDE,
            ],
            inside: &[
                &[
                    ("attention.query", "attention.self.query_proj"),
                    ("attention.key", "attention.self.key_proj"),
                    ("attention.value", "attention.self.value_proj"),
                    ("attention.distance_key", "attention.self.pos_key_proj"),
                    ("attention.distance_query", "attention.self.pos_query_proj"),
                ],
                BERT_INSIDE,
            ],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    Family {
        model_types: &["roformer"],
        keys: Keys { embedding_size: Some("embedding_size"), embedding_size_or_hidden: true, ..BERT_KEYS },
        maths: Maths {
            places: Places::Rotary {
                layout: RotaryLayout::Neighbours,
                theta: 10_000.0,
                local_theta: None,
                stored: true,
            },
            ..BERT_MATHS
        },
        names: &[Names {
            prefixes: &["", "roformer."],
            outside: &[
                &[("embeddings.projection", "embeddings_project"), ("rotary", "encoder.embed_positions")],
                BERT_OUTSIDE,
            ],
            ..BERT_NAMES
        }],
        ..PLAIN
    },
    // Nomic's own code, with the field names of GPT-2.
    Family {
        mark: Some(("n_embd", &[])),
        keys: Keys {
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
        own_fields: &[own_fields::nomic],
        ..NOMIC
    },
    NOMIC,
    Family {
        model_types: &["jina_embeddings_v3"],
        keys: Keys { head_size: Some("head_dim"), ..BERT_KEYS },
        maths: Maths { places: rotary(20_000.0), norm: NormSpec { eps: 1e-5, ..LAYER_NORM }, ..BERT_MATHS },
        names: &[
            Names {
                prefixes: &["", "roberta."],
                outside: &[BERT_OUTSIDE, BERT_POOLER],
                inside: &[
                    &[
                        ("feed_forward.up", "mlp.fc1"),
                        ("feed_forward.activation", "mlp.activation_fn"),
                        ("feed_forward.down", "mlp.fc2"),
                    ],
                    ROTARY_NAMES.inside[0],
                ],
                ..ROTARY_NAMES
            },
            Names {
                prefixes: &["", "roberta."],
                outside: &[&[("embeddings.norm", "emb_ln")], BERT_OUTSIDE, BERT_POOLER],
                layer: "encoder.layers.{}.",
                inside: &[&[
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
            },
        ],
        ..PLAIN
    },
    // Alibaba's own code calls its type `new`; transformers has it as `gte`.
    Family {
        model_types: &["new"],
        maths: Maths { places: Places::Named("rope"), ..GTE.maths },
        names: &[NEW_NAMES],
        own_fields: &[own_fields::layer_norm_type],
        ..GTE
    },
    GTE,
    Family {
        model_types: &["modernbert"],
        keys: Keys {
            token_types: None,
            activation: Some("hidden_activation"),
            rope_theta: "global_rope_theta",
            norm_eps: Some("norm_eps"),
            norm_bias: Some("norm_bias"),
            attention_bias: Some("attention_bias"),
            mlp_bias: Some("mlp_bias"),
            ..BERT_KEYS
        },
        maths: Maths {
            places: Places::Rotary {
                layout: RotaryLayout::Halves,
                theta: 160_000.0,
                local_theta: Some(10_000.0),
                stored: false,
            },
            skip_first_norm: true,
            norm: NormSpec { bias: false, eps: 1e-5, ..LAYER_NORM },
            bias: NONE,
            gated: true,
            ..PRE_NORM
        },
        names: &[Names {
            prefixes: &["", "model."],
            outside: &[&[
                ("embeddings.token", "embeddings.tok_embeddings"),
                ("embeddings.norm", "embeddings.norm"),
                ("final_norm", "final_norm"),
            ]],
            layer: "layers.{}.",
            inside: &[&[
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
        }],
        ..PLAIN
    },
    Family {
        model_types: &["eurobert"],
        keys: Keys {
            token_types: None,
            key_value_heads: Some("num_key_value_heads"),
            head_size: Some("head_dim"),
            norm_eps: Some("rms_norm_eps"),
            attention_bias: Some("attention_bias"),
            mlp_bias: Some("mlp_bias"),
            ..BERT_KEYS
        },
        maths: Maths {
            places: rotary(10_000.0),
            embedding_norm: EmbeddingNorm::None,
            norm: NormSpec { kind: NormKind::RootMeanSquare, bias: false, eps: 1e-5 },
            bias: NONE,
            gated: true,
            activation: Activation::Silu,
            ..PRE_NORM
        },
        names: &[Names {
            prefixes: &["", "model."],
            outside: &[&[("embeddings.token", "embed_tokens"), ("final_norm", "norm")]],
            inside: &[
                &[("attention_norm", "input_layernorm"), ("feed_forward_norm", "post_attention_layernorm")],
                ROTARY_NAMES.inside[0],
            ],
            ..ROTARY_NAMES
        }],
        ..PLAIN
    },
];

/// As Nomic's own code names them.
const NOMIC_NAMES: Names = Names {
    prefixes: &["", "bert.", "nomic_bert."],
    outside: &[&[("embeddings.norm", "emb_ln")], BERT_OUTSIDE, BERT_POOLER],
    layer: "encoder.layers.{}.",
    inside: &[&[
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
};

const NOMIC: Family = Family {
    model_types: &["nomic_bert"],
    keys: Keys { head_size: Some("head_dim"), ..BERT_KEYS },
    maths: Maths {
        places: rotary(1_000.0),
        bias: NONE,
        gated: true,
        activation: Activation::Silu,
        ..BERT_MATHS
    },
    names: &[
        Names { prefixes: &["", "nomic_bert."], outside: &[BERT_OUTSIDE, BERT_POOLER], ..ROTARY_NAMES },
        NOMIC_NAMES,
    ],
    ..PLAIN
};

/// As Alibaba's own code names them.
const NEW_NAMES: Names = Names {
    prefixes: &["", "new.", "gte."],
    inside: &[&[
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
    ..BERT_NAMES
};

const GTE: Family = Family {
    model_types: &["gte"],
    keys: Keys { head_size: Some("head_dim"), ..BERT_KEYS },
    maths: Maths { places: rotary(160_000.0), bias: Biases { up: false, ..ALL }, gated: true, ..BERT_MATHS },
    names: &[
        Names { prefixes: &["", "gte."], outside: &[BERT_OUTSIDE, BERT_POOLER], ..ROTARY_NAMES },
        NEW_NAMES,
    ],
    ..PLAIN
};
