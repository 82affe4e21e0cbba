//! The configuration classes, as a table.

use super::ConfigDefaults;
use super::DefaultValue::{self, Flag, Name, Number, Size};

/// No defaults: the class is not one of `transformers`, but code of the model's own.
pub const NONE: ConfigDefaults = ConfigDefaults { base: None, fields: &[], aliases: &[] };

/// The names of GPT-2, whose class that of Nomic's own code is based on; its defaults are not used.
pub static NOMIC_FIRST_CODE: ConfigDefaults = ConfigDefaults {
    aliases: &[
        ("hidden_size", "n_embd"),
        ("max_position_embeddings", "n_positions"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
    ],
    ..NONE
};

/// A class with the fields of `base` and its own.
const fn based_on(
    base: &'static ConfigDefaults,
    fields: &'static [(&'static str, DefaultValue)],
) -> ConfigDefaults {
    ConfigDefaults { base: Some(base), fields, ..NONE }
}

/// The sizes of BERT base, with the fields that nearly all encoders have.
static ENCODER: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(30522)),
        ("hidden_size", Size(768)),
        ("num_hidden_layers", Size(12)),
        ("num_attention_heads", Size(12)),
        ("intermediate_size", Size(3072)),
        ("hidden_act", Name("gelu")),
        ("max_position_embeddings", Size(512)),
        ("layer_norm_eps", Number(1e-12)),
        ("pad_token_id", Size(0)),
    ],
);

/// `BertConfig`.
pub static BERT: ConfigDefaults = based_on(&ENCODER, &[("type_vocab_size", Size(2))]);

/// `XLMRobertaConfig`, `CamembertConfig` and `Data2VecTextConfig`.
pub static XLM_ROBERTA: ConfigDefaults = based_on(&BERT, &[("pad_token_id", Size(1))]);

/// `RobertaConfig` and `RobertaPreLayerNormConfig`.
pub static ROBERTA: ConfigDefaults = based_on(&XLM_ROBERTA, &[("vocab_size", Size(50265))]);

/// `LongformerConfig`.
pub static LONGFORMER: ConfigDefaults =
    based_on(&XLM_ROBERTA, &[("attention_window", Size(512)), ("sep_token_id", Size(2))]);

/// `MobileBertConfig`.
pub static MOBILE_BERT: ConfigDefaults = based_on(
    &BERT,
    &[
        ("hidden_size", Size(512)),
        ("num_hidden_layers", Size(24)),
        ("num_attention_heads", Size(4)),
        ("intermediate_size", Size(512)),
        ("hidden_act", Name("relu")),
        ("embedding_size", Size(128)),
        ("trigram_input", Flag(true)),
        ("use_bottleneck", Flag(true)),
        ("intra_bottleneck_size", Size(128)),
        ("true_hidden_size", Size(128)),
        ("use_bottleneck_attention", Flag(false)),
        ("key_query_shared_bottleneck", Flag(true)),
        ("num_feedforward_networks", Size(4)),
        ("normalization_type", Name("no_norm")),
        ("classifier_activation", Flag(true)),
    ],
);

/// `BigBirdConfig`.
pub static BIG_BIRD: ConfigDefaults = based_on(
    &BERT,
    &[
        ("vocab_size", Size(50358)),
        ("hidden_act", Name("gelu_new")),
        ("max_position_embeddings", Size(4096)),
        ("attention_type", Name("block_sparse")),
        ("use_bias", Flag(true)),
        ("rescale_embeddings", Flag(false)),
        ("block_size", Size(64)),
        ("num_random_blocks", Size(3)),
    ],
);

/// `EsmConfig`.
pub static ESM: ConfigDefaults = based_on(
    &NONE,
    &[
        ("hidden_size", Size(768)),
        ("num_hidden_layers", Size(12)),
        ("num_attention_heads", Size(12)),
        ("intermediate_size", Size(3072)),
        ("max_position_embeddings", Size(1026)),
        ("rope_theta", Number(10000.0)),
        ("layer_norm_eps", Number(1e-12)),
        ("position_embedding_type", Name("absolute")),
        ("is_folding_model", Flag(false)),
        ("is_decoder", Flag(false)),
        ("add_cross_attention", Flag(false)),
        ("tie_word_embeddings", Flag(true)),
    ],
);

/// `XLMRobertaXLConfig`.
pub static XLM_ROBERTA_XL: ConfigDefaults = based_on(
    &XLM_ROBERTA,
    &[
        ("vocab_size", Size(250_880)),
        ("hidden_size", Size(2560)),
        ("num_hidden_layers", Size(36)),
        ("num_attention_heads", Size(32)),
        ("intermediate_size", Size(10240)),
        ("max_position_embeddings", Size(514)),
        ("type_vocab_size", Size(1)),
        ("layer_norm_eps", Number(1e-5)),
    ],
);

/// `MegatronBertConfig`.
pub static MEGATRON_BERT: ConfigDefaults = based_on(
    &BERT,
    &[
        ("vocab_size", Size(29056)),
        ("hidden_size", Size(1024)),
        ("num_hidden_layers", Size(24)),
        ("num_attention_heads", Size(16)),
        ("intermediate_size", Size(4096)),
    ],
);

/// `ErnieConfig`.
pub static ERNIE: ConfigDefaults =
    based_on(&BERT, &[("use_task_id", Flag(false)), ("task_type_vocab_size", Size(3))]);

/// `ElectraConfig`.
pub static ELECTRA: ConfigDefaults = based_on(
    &BERT,
    &[
        ("embedding_size", Size(128)),
        ("hidden_size", Size(256)),
        ("num_attention_heads", Size(4)),
        ("intermediate_size", Size(1024)),
    ],
);

/// `RemBertConfig`.
pub static REMBERT: ConfigDefaults = based_on(
    &BERT,
    &[
        ("vocab_size", Size(250_300)),
        ("input_embedding_size", Size(256)),
        ("output_embedding_size", Size(1664)),
        ("hidden_size", Size(1152)),
        ("num_hidden_layers", Size(32)),
        ("num_attention_heads", Size(18)),
        ("intermediate_size", Size(4608)),
    ],
);

/// `AlbertConfig`.
pub static ALBERT: ConfigDefaults = based_on(
    &BERT,
    &[
        ("vocab_size", Size(30000)),
        ("embedding_size", Size(128)),
        ("hidden_size", Size(4096)),
        ("num_hidden_groups", Size(1)),
        ("inner_group_num", Size(1)),
        ("num_attention_heads", Size(64)),
        ("intermediate_size", Size(16384)),
        ("hidden_act", Name("gelu_new")),
    ],
);

/// `MPNetConfig`.
pub static MPNET: ConfigDefaults = based_on(
    &ENCODER,
    &[("vocab_size", Size(30527)), ("relative_attention_num_buckets", Size(32)), ("pad_token_id", Size(1))],
);

/// `DistilBertConfig`.
pub static DISTILBERT: ConfigDefaults = ConfigDefaults {
    base: None,
    fields: &[
        ("vocab_size", Size(30522)),
        ("dim", Size(768)),
        ("n_layers", Size(6)),
        ("n_heads", Size(12)),
        ("hidden_dim", Size(3072)),
        ("activation", Name("gelu")),
        ("max_position_embeddings", Size(512)),
        ("pad_token_id", Size(0)),
    ],
    aliases: &[("hidden_size", "dim"), ("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers")],
};

/// `DebertaV2Config`.
pub static DEBERTA_V2: ConfigDefaults = based_on(
    &ENCODER,
    &[
        ("vocab_size", Size(128_100)),
        ("hidden_size", Size(1536)),
        ("num_hidden_layers", Size(24)),
        ("num_attention_heads", Size(24)),
        ("intermediate_size", Size(6144)),
        ("type_vocab_size", Size(0)),
        ("layer_norm_eps", Number(1e-7)),
        ("relative_attention", Flag(false)),
        ("position_biased_input", Flag(true)),
        ("pooler_hidden_act", Name("gelu")),
    ],
);

/// `DebertaConfig`.
pub static DEBERTA: ConfigDefaults = based_on(
    &DEBERTA_V2,
    &[
        ("vocab_size", Size(50265)),
        ("hidden_size", Size(768)),
        ("num_hidden_layers", Size(12)),
        ("num_attention_heads", Size(12)),
        ("intermediate_size", Size(3072)),
    ],
);

/// `RoFormerConfig`.
pub static ROFORMER: ConfigDefaults = based_on(
    &BERT,
    &[("vocab_size", Size(50000)), ("max_position_embeddings", Size(1536)), ("rotary_value", Flag(false))],
);

/// `NomicBertConfig`.
pub static NOMIC_BERT: ConfigDefaults = based_on(
    &BERT,
    &[("vocab_size", Size(30528)), ("hidden_act", Name("silu")), ("max_position_embeddings", Size(2048))],
);

/// `JinaEmbeddingsV3Config`.
pub static JINA_EMBEDDINGS_V3: ConfigDefaults = based_on(
    &XLM_ROBERTA,
    &[
        ("vocab_size", Size(250_002)),
        ("hidden_size", Size(1024)),
        ("num_hidden_layers", Size(24)),
        ("num_attention_heads", Size(16)),
        ("intermediate_size", Size(4096)),
        ("max_position_embeddings", Size(8194)),
        ("type_vocab_size", Size(1)),
        ("layer_norm_eps", Number(1e-5)),
    ],
);

/// `GteConfig`.
pub static GTE: ConfigDefaults = based_on(
    &XLM_ROBERTA,
    &[("vocab_size", Size(250_048)), ("max_position_embeddings", Size(8192)), ("type_vocab_size", Size(1))],
);

/// `ModernBertConfig`. `local_attention` has its default where neither it nor `sliding_window` is there.
pub static MODERNBERT: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(50368)),
        ("hidden_size", Size(768)),
        ("intermediate_size", Size(1152)),
        ("num_hidden_layers", Size(22)),
        ("num_attention_heads", Size(12)),
        ("hidden_activation", Name("gelu")),
        ("max_position_embeddings", Size(8192)),
        ("norm_eps", Number(1e-5)),
        ("norm_bias", Flag(false)),
        ("attention_bias", Flag(false)),
        ("mlp_bias", Flag(false)),
        ("decoder_bias", Flag(true)),
        ("classifier_pooling", Name("cls")),
        ("classifier_bias", Flag(false)),
        ("classifier_activation", Name("gelu")),
    ],
);

/// `EuroBertConfig`.
pub static EUROBERT: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(128_256)),
        ("hidden_size", Size(768)),
        ("intermediate_size", Size(3072)),
        ("num_hidden_layers", Size(12)),
        ("num_attention_heads", Size(12)),
        ("hidden_act", Name("silu")),
        ("max_position_embeddings", Size(8192)),
        ("rms_norm_eps", Number(1e-5)),
        ("attention_bias", Flag(false)),
        ("mlp_bias", Flag(false)),
        ("classifier_pooling", Name("late")),
    ],
);

/// The fields that the decoder language models share.
static DECODER: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(32000)),
        ("hidden_size", Size(4096)),
        ("num_hidden_layers", Size(32)),
        ("num_attention_heads", Size(32)),
        ("hidden_act", Name("silu")),
        ("rms_norm_eps", Number(1e-6)),
        ("tie_word_embeddings", Flag(false)),
    ],
);

/// `LlamaConfig`.
pub static LLAMA: ConfigDefaults = based_on(
    &DECODER,
    &[
        ("intermediate_size", Size(11008)),
        ("max_position_embeddings", Size(2048)),
        ("attention_bias", Flag(false)),
        ("mlp_bias", Flag(false)),
    ],
);

/// `MistralConfig` and `MinistralConfig`.
pub static MISTRAL: ConfigDefaults = based_on(
    &DECODER,
    &[
        ("intermediate_size", Size(14336)),
        ("num_key_value_heads", Size(8)),
        ("max_position_embeddings", Size(131_072)),
        ("sliding_window", Size(4096)),
    ],
);

/// `Ministral3Config`. Its window is null, which is no default of the table.
pub static MINISTRAL3: ConfigDefaults = based_on(
    &DECODER,
    &[
        ("vocab_size", Size(131_072)),
        ("num_hidden_layers", Size(34)),
        ("intermediate_size", Size(14336)),
        ("num_key_value_heads", Size(8)),
        ("head_dim", Size(128)),
        ("max_position_embeddings", Size(262_144)),
        ("rms_norm_eps", Number(1e-5)),
    ],
);

/// `GraniteConfig`.
pub static GRANITE: ConfigDefaults = based_on(
    &LLAMA,
    &[
        ("attention_multiplier", Number(1.0)),
        ("embedding_multiplier", Number(1.0)),
        ("residual_multiplier", Number(1.0)),
    ],
);

/// `Lfm2Config`.
pub static LFM2: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(65536)),
        ("hidden_size", Size(2560)),
        ("num_hidden_layers", Size(32)),
        ("num_attention_heads", Size(32)),
        ("intermediate_size", Size(12288)),
        ("num_key_value_heads", Size(8)),
        ("max_position_embeddings", Size(128_000)),
        ("norm_eps", Number(1e-5)),
        ("conv_bias", Flag(false)),
        ("conv_L_cache", Size(3)),
        ("block_auto_adjust_ff_dim", Flag(true)),
        ("block_ffn_dim_multiplier", Number(1.0)),
        ("block_multiple_of", Size(256)),
        ("tie_word_embeddings", Flag(true)),
    ],
);

/// `Qwen2Config`. `sliding_window` counts only with `use_sliding_window`.
pub static QWEN2: ConfigDefaults = based_on(
    &DECODER,
    &[
        ("vocab_size", Size(151_936)),
        ("intermediate_size", Size(22016)),
        ("num_key_value_heads", Size(32)),
        ("max_position_embeddings", Size(32768)),
        ("use_sliding_window", Flag(false)),
        ("max_window_layers", Size(28)),
    ],
);

/// `Qwen3Config`.
pub static QWEN3: ConfigDefaults =
    based_on(&QWEN2, &[("head_dim", Size(128)), ("attention_bias", Flag(false))]);

/// `GemmaConfig`. `use_bidirectional_attention` has none.
pub static GEMMA: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(256_000)),
        ("hidden_size", Size(3072)),
        ("intermediate_size", Size(24576)),
        ("num_hidden_layers", Size(28)),
        ("num_attention_heads", Size(16)),
        ("num_key_value_heads", Size(16)),
        ("head_dim", Size(256)),
        ("hidden_act", Name("gelu_pytorch_tanh")),
        ("max_position_embeddings", Size(8192)),
        ("rms_norm_eps", Number(1e-6)),
        ("attention_bias", Flag(false)),
        ("tie_word_embeddings", Flag(true)),
    ],
);

/// The sizes that the second and the third release of Gemma share.
static LATER_GEMMA: ConfigDefaults = based_on(
    &NONE,
    &[
        ("hidden_size", Size(2304)),
        ("intermediate_size", Size(9216)),
        ("num_hidden_layers", Size(26)),
        ("num_attention_heads", Size(8)),
        ("num_key_value_heads", Size(4)),
        ("head_dim", Size(256)),
        ("hidden_activation", Name("gelu_pytorch_tanh")),
        ("rms_norm_eps", Number(1e-6)),
        ("attention_bias", Flag(false)),
        ("query_pre_attn_scalar", Size(256)),
        ("sliding_window", Size(4096)),
        ("tie_word_embeddings", Flag(true)),
    ],
);

/// `Gemma2Config`.
pub static GEMMA2: ConfigDefaults = based_on(
    &LATER_GEMMA,
    &[
        ("vocab_size", Size(256_000)),
        ("max_position_embeddings", Size(8192)),
        ("attn_logit_softcapping", Number(50.0)),
        ("final_logit_softcapping", Number(30.0)),
    ],
);

/// `Gemma3TextConfig`.
pub static GEMMA3_TEXT: ConfigDefaults = based_on(
    &LATER_GEMMA,
    &[
        ("vocab_size", Size(262_208)),
        ("max_position_embeddings", Size(131_072)),
        ("use_bidirectional_attention", Flag(false)),
    ],
);

/// `T5Config`.
pub static T5: ConfigDefaults = ConfigDefaults {
    base: None,
    fields: &[
        ("vocab_size", Size(32128)),
        ("d_model", Size(512)),
        ("d_kv", Size(64)),
        ("d_ff", Size(2048)),
        ("num_layers", Size(6)),
        ("num_heads", Size(8)),
        ("relative_attention_num_buckets", Size(32)),
        ("relative_attention_max_distance", Size(128)),
        ("layer_norm_epsilon", Number(1e-6)),
        ("feed_forward_proj", Name("relu")),
    ],
    aliases: &[
        ("hidden_size", "d_model"),
        ("num_attention_heads", "num_heads"),
        ("num_hidden_layers", "num_layers"),
        ("head_dim", "d_kv"),
    ],
};

/// `MT5Config`.
pub static MT5: ConfigDefaults = based_on(
    &T5,
    &[
        ("vocab_size", Size(250_112)),
        ("d_ff", Size(1024)),
        ("num_layers", Size(8)),
        ("num_heads", Size(6)),
        ("feed_forward_proj", Name("gated-gelu")),
    ],
);

/// `CLIPTextConfig`.
pub static CLIP_TEXT: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(49_408)),
        ("hidden_size", Size(512)),
        ("intermediate_size", Size(2048)),
        ("projection_dim", Size(512)),
        ("num_hidden_layers", Size(12)),
        ("num_attention_heads", Size(8)),
        ("max_position_embeddings", Size(77)),
        ("hidden_act", Name("quick_gelu")),
        ("layer_norm_eps", Number(1e-5)),
    ],
);

/// `SiglipTextConfig` and `Siglip2TextConfig`.
pub static SIGLIP_TEXT: ConfigDefaults = based_on(
    &NONE,
    &[
        ("vocab_size", Size(32_000)),
        ("hidden_size", Size(768)),
        ("intermediate_size", Size(3072)),
        ("num_hidden_layers", Size(12)),
        ("num_attention_heads", Size(12)),
        ("max_position_embeddings", Size(64)),
        ("hidden_act", Name("gelu_pytorch_tanh")),
        ("layer_norm_eps", Number(1e-6)),
    ],
);
