//! The table of model families: what a checkpoint of each calls things.

use std::ops::RangeInclusive;

use anyhow::{Result, bail};

use super::config::Config;
use super::names::Names;
use crate::nn::{
    ACTIVATIONS, Activation, EncoderSpec, LayerSharing, NormKind, NormSpec, Numbering, Pool, Positions,
    ScoreBias,
};

/// One row of the table.
pub struct Family {
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// What the config calls things.
    keys: Keys,
    /// Where positions are numbered from the padding id: what that is.
    padding: Option<Padding>,
    /// The activation where the config names none.
    activation: Activation,
    /// What the checkpoint calls the tensors.
    pub names: Names,
    /// How to pool where no pipeline file says it.
    pub pool: Pool,
}

/// The padding id that positions are numbered from.
enum Padding {
    /// The config's `pad_token_id`, or this where it has none.
    Config(u32),
    /// This, whatever the config says.
    Fixed(u32),
}

/// Names of config fields; `None` for what a family has not.
struct Keys {
    vocab_size: &'static str,
    embedding_size: Option<&'static str>,
    max_positions: &'static str,
    token_types: Option<&'static str>,
    /// The flag that switches task embeddings on, and their number.
    task_types: Option<(&'static str, &'static str)>,
    hidden_size: &'static str,
    layers: &'static str,
    /// Groups of layers, and layers in a group.
    groups: Option<(&'static str, &'static str)>,
    heads: &'static str,
    /// Rows of a table of bucketed relative biases.
    relative_bias: Option<&'static str>,
    intermediate_size: &'static str,
    activation: &'static str,
    /// A family without the field has 1e-12.
    norm_eps: Option<&'static str>,
}

type Modules = &'static [(&'static str, &'static str)];

const BERT_KEYS: Keys = Keys {
    vocab_size: "vocab_size",
    embedding_size: None,
    max_positions: "max_position_embeddings",
    token_types: Some("type_vocab_size"),
    task_types: None,
    hidden_size: "hidden_size",
    layers: "num_hidden_layers",
    groups: None,
    heads: "num_attention_heads",
    relative_bias: None,
    intermediate_size: "intermediate_size",
    activation: "hidden_act",
    norm_eps: Some("layer_norm_eps"),
};

const BERT_EMBEDDINGS: Modules = &[
    ("embeddings.token", "embeddings.word_embeddings"),
    ("embeddings.position", "embeddings.position_embeddings"),
    ("embeddings.token_type", "embeddings.token_type_embeddings"),
    ("embeddings.task_type", "embeddings.task_type_embeddings"),
    ("embeddings.norm", "embeddings.LayerNorm"),
];

const BERT_LAYERS: Modules = &[
    ("layers.attention.query", "encoder.layer.{}.attention.self.query"),
    ("layers.attention.key", "encoder.layer.{}.attention.self.key"),
    ("layers.attention.value", "encoder.layer.{}.attention.self.value"),
    ("layers.attention.output", "encoder.layer.{}.attention.output.dense"),
    ("layers.attention_norm", "encoder.layer.{}.attention.output.LayerNorm"),
    ("layers.feed_forward.up", "encoder.layer.{}.intermediate.dense"),
    ("layers.feed_forward.down", "encoder.layer.{}.output.dense"),
    ("layers.feed_forward_norm", "encoder.layer.{}.output.LayerNorm"),
];

const BERT: Family = Family {
    model_types: &["bert"],
    keys: BERT_KEYS,
    padding: None,
    activation: Activation::Gelu,
    names: Names { prefixes: &["", "bert."], modules: &[BERT_EMBEDDINGS, BERT_LAYERS] },
    // What sentence-transformers does with a model that is no pipeline.
    pool: Pool::Mean,
};

/// Every family that Sconce runs.
pub static FAMILIES: &[Family] = &[
    BERT,
    Family {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        padding: Some(Padding::Config(1)),
        names: Names { prefixes: &["", "roberta."], ..BERT.names },
        ..BERT
    },
    Family {
        model_types: &["data2vec-text"],
        padding: Some(Padding::Config(1)),
        names: Names { prefixes: &["", "data2vec_text."], ..BERT.names },
        ..BERT
    },
    Family {
        model_types: &["ernie"],
        keys: Keys { task_types: Some(("use_task_id", "task_type_vocab_size")), ..BERT_KEYS },
        names: Names { prefixes: &["", "ernie."], ..BERT.names },
        ..BERT
    },
    Family {
        model_types: &["electra"],
        keys: Keys { embedding_size: Some("embedding_size"), ..BERT_KEYS },
        names: Names {
            prefixes: &["", "electra."],
            modules: &[BERT_EMBEDDINGS, &[("embeddings.projection", "embeddings_project")], BERT_LAYERS],
        },
        ..BERT
    },
    Family {
        model_types: &["albert"],
        keys: Keys {
            embedding_size: Some("embedding_size"),
            groups: Some(("num_hidden_groups", "inner_group_num")),
            ..BERT_KEYS
        },
        activation: Activation::GeluTanh,
        names: Names {
            prefixes: &["", "albert."],
            modules: &[
                BERT_EMBEDDINGS,
                &[
                    ("embeddings.projection", "encoder.embedding_hidden_mapping_in"),
                    (
                        "layers.attention.query",
                        "encoder.albert_layer_groups.{}.albert_layers.{}.attention.query",
                    ),
                    ("layers.attention.key", "encoder.albert_layer_groups.{}.albert_layers.{}.attention.key"),
                    (
                        "layers.attention.value",
                        "encoder.albert_layer_groups.{}.albert_layers.{}.attention.value",
                    ),
                    (
                        "layers.attention.output",
                        "encoder.albert_layer_groups.{}.albert_layers.{}.attention.dense",
                    ),
                    (
                        "layers.attention_norm",
                        "encoder.albert_layer_groups.{}.albert_layers.{}.attention.LayerNorm",
                    ),
                    ("layers.feed_forward.up", "encoder.albert_layer_groups.{}.albert_layers.{}.ffn"),
                    (
                        "layers.feed_forward.down",
                        "encoder.albert_layer_groups.{}.albert_layers.{}.ffn_output",
                    ),
                    (
                        "layers.feed_forward_norm",
                        "encoder.albert_layer_groups.{}.albert_layers.{}.full_layer_layer_norm",
                    ),
                ],
            ],
        },
        ..BERT
    },
    Family {
        model_types: &["mpnet"],
        keys: Keys { token_types: None, relative_bias: Some("relative_attention_num_buckets"), ..BERT_KEYS },
        padding: Some(Padding::Fixed(1)),
        names: Names {
            prefixes: &["", "mpnet."],
            modules: &[
                BERT_EMBEDDINGS,
                &[
                    ("relative_bias", "encoder.relative_attention_bias"),
                    ("layers.attention.query", "encoder.layer.{}.attention.attn.q"),
                    ("layers.attention.key", "encoder.layer.{}.attention.attn.k"),
                    ("layers.attention.value", "encoder.layer.{}.attention.attn.v"),
                    ("layers.attention.output", "encoder.layer.{}.attention.attn.o"),
                    ("layers.attention_norm", "encoder.layer.{}.attention.LayerNorm"),
                ],
                BERT_LAYERS,
            ],
        },
        ..BERT
    },
    Family {
        model_types: &["distilbert"],
        keys: Keys {
            token_types: None,
            hidden_size: "dim",
            layers: "n_layers",
            heads: "n_heads",
            intermediate_size: "hidden_dim",
            activation: "activation",
            norm_eps: None,
            ..BERT_KEYS
        },
        names: Names {
            prefixes: &["", "distilbert."],
            modules: &[
                BERT_EMBEDDINGS,
                &[
                    ("layers.attention.query", "transformer.layer.{}.attention.q_lin"),
                    ("layers.attention.key", "transformer.layer.{}.attention.k_lin"),
                    ("layers.attention.value", "transformer.layer.{}.attention.v_lin"),
                    ("layers.attention.output", "transformer.layer.{}.attention.out_lin"),
                    ("layers.attention_norm", "transformer.layer.{}.sa_layer_norm"),
                    ("layers.feed_forward.up", "transformer.layer.{}.ffn.lin1"),
                    ("layers.feed_forward.down", "transformer.layer.{}.ffn.lin2"),
                    ("layers.feed_forward_norm", "transformer.layer.{}.output_layer_norm"),
                ],
            ],
        },
        ..BERT
    },
];

/// The largest width, vocabulary or position count that is taken for a size and not for a slip of the pen.
const WIDTH: RangeInclusive<usize> = 1..=1 << 24;
const LAYERS: RangeInclusive<usize> = 1..=1 << 12;

/// Buckets of MPNet's relative bias: `transformers` uses so many, however many rows its table has.
const BUCKETS: usize = 32;

impl Family {
    /// The family of a config.
    ///
    /// # Errors
    /// If `model_type` is missing or in no row of the table.
    pub fn of(config: &Config) -> Result<&'static Family> {
        let path = config.path().display();
        let Some(model_type) = config.string("model_type")? else {
            bail!("{path} has no field \"model_type\"; it is required")
        };
        let family = FAMILIES.iter().find(|family| family.model_types.contains(&model_type));
        family.ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
            anyhow::anyhow!(
                "{path}: model type {model_type:?} is not supported; supported are {}",
                known.join(", ")
            )
        })
    }

    /// The stack that a config of this family describes.
    ///
    /// # Errors
    /// If a field is missing, out of range or asks for what the stack cannot compute.
    pub fn spec(&self, config: &Config) -> Result<EncoderSpec> {
        let keys = &self.keys;
        for key in ["is_decoder", "add_cross_attention"] {
            if config.flag(key)? {
                bail!("{}", config.wrong(key, true, "false: Sconce runs encoders"));
            }
        }
        if let Some(kind) = config.string("position_embedding_type")?
            && kind != "absolute"
        {
            let key = "position_embedding_type";
            bail!(
                "{}",
                config.wrong(key, format!("{kind:?}"), "\"absolute\": other kinds are not supported")
            );
        }
        let hidden_size = config.size(keys.hidden_size, WIDTH)?;
        let layers = config.size(keys.layers, LAYERS)?;
        let spec = EncoderSpec {
            vocab_size: config.size(keys.vocab_size, WIDTH)?,
            embedding_size: match keys.embedding_size {
                Some(key) => config.size(key, WIDTH)?,
                None => hidden_size,
            },
            positions: self.positions(config)?,
            token_types: keys.token_types.map(|key| config.size(key, WIDTH)).transpose()?,
            task_types: match keys.task_types {
                Some((flag, key)) if config.flag(flag)? => Some(config.size(key, WIDTH)?),
                _ => None,
            },
            hidden_size,
            layers,
            layer_sharing: match keys.groups {
                Some((groups, inner)) => LayerSharing {
                    groups: config.size(groups, 1..=layers)?,
                    inner: config.size(inner, LAYERS)?,
                },
                None => LayerSharing { groups: layers, inner: 1 },
            },
            heads: config.size(keys.heads, WIDTH)?,
            score_bias: match keys.relative_bias {
                Some(key) => ScoreBias::Bucketed {
                    rows: config.size(key, BUCKETS..=*WIDTH.end())?,
                    buckets: BUCKETS,
                    max_distance: 128,
                },
                None => ScoreBias::None,
            },
            intermediate_size: config.size(keys.intermediate_size, WIDTH)?,
            activation: activation(config, keys.activation)?.unwrap_or(self.activation),
            norm: NormSpec {
                kind: NormKind::Layer,
                bias: true,
                eps: match keys.norm_eps {
                    Some(key) => config.fraction(key, 1e-12)?,
                    None => 1e-12,
                },
            },
        };
        if !spec.hidden_size.is_multiple_of(spec.heads) {
            let expected = format!("a multiple of {:?}, which is {}", keys.heads, spec.heads);
            bail!("{}", config.wrong(keys.hidden_size, spec.hidden_size, &expected));
        }
        Ok(spec)
    }

    fn positions(&self, config: &Config) -> Result<Positions> {
        let key = self.keys.max_positions;
        let rows = config.size(key, WIDTH)?;
        let padding = match self.padding {
            None => return Ok(Positions { rows, numbering: Numbering::FromZero }),
            Some(Padding::Config(default)) => config.id("pad_token_id")?.unwrap_or(default),
            Some(Padding::Fixed(padding)) => padding,
        };
        let positions = Positions { rows, numbering: Numbering::AfterPadding(padding) };
        if positions.longest() == 0 {
            let expected = format!("more than \"pad_token_id\" + 1, which is {}", u64::from(padding) + 1);
            bail!("{}", config.wrong(key, rows, &expected));
        }
        Ok(positions)
    }
}

/// The activation that a config field names.
fn activation(config: &Config, key: &str) -> Result<Option<Activation>> {
    let Some(name) = config.string(key)? else { return Ok(None) };
    match Activation::from_name(name) {
        Some(activation) => Ok(Some(activation)),
        None => {
            let known: Vec<_> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
            bail!("{}", config.wrong(key, format!("{name:?}"), &format!("one of {}", known.join(", "))))
        }
    }
}
