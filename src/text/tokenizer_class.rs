//! The tokenizer classes of transformers: the model of each, its special tokens, and where it adds them to a
//! text.

use std::path::Path;

use anyhow::{Error, Result, anyhow};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::processors::template::TemplateProcessing;

use super::bpe_parts::{CLIP, GEMMA, LLAMA, QWEN2};
use super::token_model::LibraryTokenizer;
use super::tokenizer_config::{SpecialTokens, TokenizerConfig};

/// How the model of a tokenizer splits words into tokens.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ModelType {
    WordPiece,
    /// Of bytes.
    Bpe,
    /// Of the pieces of a SentencePiece model, and of the bytes of other characters.
    PieceBpe,
    Unigram,
    /// Of tokens that follow one another without anything between them.
    WordLevel,
}

impl ModelType {
    /// Whether its vocabulary may be in a file of this name, which older releases wrote without a
    /// `tokenizer.json`.
    pub(super) fn is_vocab_file(self, name: &str) -> bool {
        match self {
            ModelType::WordPiece | ModelType::WordLevel => name.ends_with("vocab.txt"),
            ModelType::Bpe => name.ends_with("vocab.json"),
            ModelType::PieceBpe | ModelType::Unigram => false,
        }
    }
}

/// Where special tokens are added to a text, and to a pair of texts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Template {
    /// `[CLS] A [SEP]`, and for a pair `B [SEP]` after it, with token type 1.
    Bert,
    /// `<s> A </s>`, and for a pair `</s> B </s>` after it, with token type 0: `cls_token` and `sep_token`.
    Roberta,
    /// The same with `bos_token` and `eos_token`.
    BosEos,
    /// The same as [`Template::Roberta`], with offsets of tokens that have the spaces before them.
    ClsSep,
    /// `bos_token` and `eos_token` only if `add_bos_token` and `add_eos_token` are set; `B` has token type 1.
    OptionalBosEos,
    /// `<cls> A <eos>`, and for a pair `B <eos>` after it, with token type 1: `cls_token`, and `eos_token`
    /// unless it is null.
    ClsEos,
    /// `A </s>`, and for a pair `B </s>` after it, with token type 0: `eos_token`.
    Eos,
}

/// A tokenizer class of transformers, and others that work in the same way.
pub(super) struct TokenizerClass {
    /// The names of the classes. The first one is the name of this value in messages.
    pub names: &'static [&'static str],
    pub model: ModelType,
    /// Pairs of a name, for example `cls_token`, and the token that it has by default.
    pub special_tokens: &'static [(&'static str, &'static str)],
    /// The special tokens that are added to a text or pair.
    pub template: Template,
}

impl TokenizerClass {
    /// The class with this name.
    pub(super) fn find(name: &str) -> Option<&'static TokenizerClass> {
        CLASSES.iter().find(|class| class.names.contains(&name))
    }
}

/// The name of the class that takes a `tokenizer.json` as it is.
pub(super) const BACKEND_CLASS: &str = "TokenizersBackend";

/// The model types whose files name another class than that of their tokenizers.
const WRONG_CLASSES: [&str; 3] = ["modernbert", "qwen2", "siglip2"];

/// The name of the class that the files name, without its suffix `Fast`, else that `of_model_type`, as
/// `AutoTokenizer` chooses it.
pub(super) fn class_name<'a>(
    config: &'a TokenizerConfig,
    of_model_type: Option<&'static str>,
) -> Option<&'a str> {
    let named = config.class.as_deref().map(|name| name.strip_suffix("Fast").unwrap_or(name));
    let is_wrong = config.model_type.as_deref().is_some_and(|name| WRONG_CLASSES.contains(&name));
    match named {
        // Files of a type whose tokenizers have no class of their own are read as a whole.
        Some(_) if of_model_type == Some(BACKEND_CLASS) || is_wrong => of_model_type.or(named),
        named => named.or(of_model_type),
    }
}

/// A tokenizer of the library, and the token for what is not in the vocabulary: that which the files next to
/// it name, else the default of its class. It may be another than that of its model.
pub(super) struct ClassTokenizer {
    pub tokenizer: LibraryTokenizer,
    pub unk_token: Option<String>,
}

/// All classes. Of those with the same model, the first is the default for a vocabulary without a
/// `tokenizer_class`.
pub(super) const CLASSES: &[TokenizerClass] = &[
    TokenizerClass {
        names: &[
            "BertTokenizer",
            "DistilBertTokenizer",
            "ElectraTokenizer",
            "ConvBertTokenizer",
            "LayoutLMTokenizer",
            "LxmertTokenizer",
            "MobileBertTokenizer",
            "SqueezeBertTokenizer",
        ],
        model: ModelType::WordPiece,
        special_tokens: &[
            ("unk_token", "[UNK]"),
            ("sep_token", "[SEP]"),
            ("pad_token", "[PAD]"),
            ("cls_token", "[CLS]"),
            ("mask_token", "[MASK]"),
        ],
        template: Template::Bert,
    },
    // In transformers, its <mask> includes the space before it. WordPiece drops that space in any case.
    TokenizerClass {
        names: &["MPNetTokenizer"],
        model: ModelType::WordPiece,
        special_tokens: &[
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("unk_token", "[UNK]"),
            ("sep_token", "</s>"),
            ("pad_token", "<pad>"),
            ("cls_token", "<s>"),
            ("mask_token", "<mask>"),
        ],
        template: Template::Roberta,
    },
    TokenizerClass {
        names: &["RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"],
        model: ModelType::Bpe,
        special_tokens: ROBERTA_TOKENS,
        template: Template::Roberta,
    },
    TokenizerClass {
        names: &["DebertaTokenizer"],
        model: ModelType::Bpe,
        special_tokens: DEBERTA_TOKENS,
        template: Template::ClsSep,
    },
    TokenizerClass {
        names: &["GPT2Tokenizer"],
        model: ModelType::Bpe,
        special_tokens: &[
            ("bos_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("unk_token", "<|endoftext|>"),
        ],
        template: Template::OptionalBosEos,
    },
    TokenizerClass {
        names: &[CLIP],
        model: ModelType::Bpe,
        special_tokens: &[
            ("bos_token", "<|startoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("unk_token", "<|endoftext|>"),
            ("pad_token", "<|endoftext|>"),
        ],
        template: Template::BosEos,
    },
    TokenizerClass {
        names: &[QWEN2],
        model: ModelType::Bpe,
        special_tokens: &[
            ("unk_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("pad_token", "<|endoftext|>"),
        ],
        template: Template::OptionalBosEos,
    },
    TokenizerClass {
        names: &[LLAMA],
        model: ModelType::PieceBpe,
        special_tokens: &[("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")],
        template: Template::OptionalBosEos,
    },
    // Siglip2Tokenizer lowercases texts, too, as the family of its models does here.
    TokenizerClass {
        names: &[GEMMA, "Siglip2Tokenizer"],
        model: ModelType::PieceBpe,
        special_tokens: &[
            ("unk_token", "<unk>"),
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
        template: Template::OptionalBosEos,
    },
    TokenizerClass {
        names: &["XLMRobertaTokenizer"],
        model: ModelType::Unigram,
        special_tokens: ROBERTA_TOKENS,
        template: Template::BosEos,
    },
    // In transformers, its <mask> includes the spaces before it, which are in no token in any case.
    TokenizerClass {
        names: &["CamembertTokenizer"],
        model: ModelType::Unigram,
        special_tokens: ROBERTA_TOKENS,
        template: Template::BosEos,
    },
    TokenizerClass {
        names: &["AlbertTokenizer"],
        model: ModelType::Unigram,
        special_tokens: ALBERT_TOKENS,
        template: Template::Bert,
    },
    TokenizerClass {
        names: &["BigBirdTokenizer"],
        model: ModelType::Unigram,
        special_tokens: &[
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("unk_token", "<unk>"),
            ("sep_token", "[SEP]"),
            ("pad_token", "<pad>"),
            ("cls_token", "[CLS]"),
            ("mask_token", "[MASK]"),
        ],
        template: Template::Bert,
    },
    TokenizerClass {
        names: &["RemBertTokenizer"],
        model: ModelType::Unigram,
        special_tokens: ALBERT_TOKENS,
        template: Template::Bert,
    },
    TokenizerClass {
        names: &["DebertaV2Tokenizer"],
        model: ModelType::Unigram,
        special_tokens: DEBERTA_TOKENS,
        template: Template::Bert,
    },
    TokenizerClass {
        names: &["T5Tokenizer"],
        model: ModelType::Unigram,
        special_tokens: &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
        template: Template::Eos,
    },
    TokenizerClass {
        names: &[ESM],
        model: ModelType::WordLevel,
        special_tokens: &[
            ("unk_token", "<unk>"),
            ("cls_token", "<cls>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
            ("eos_token", "<eos>"),
        ],
        template: Template::ClsEos,
    },
];

/// The name of ESM's class: amino acids, or nucleotides, one by one or several at a time.
pub(super) const ESM: &str = "EsmTokenizer";

const ROBERTA_TOKENS: &[(&str, &str)] = &[
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
    ("sep_token", "</s>"),
    ("pad_token", "<pad>"),
    ("cls_token", "<s>"),
    ("mask_token", "<mask>"),
];

const ALBERT_TOKENS: &[(&str, &str)] = &[
    ("bos_token", "[CLS]"),
    ("eos_token", "[SEP]"),
    ("unk_token", "<unk>"),
    ("sep_token", "[SEP]"),
    ("pad_token", "<pad>"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];

const DEBERTA_TOKENS: &[(&str, &str)] = &[
    ("bos_token", "[CLS]"),
    ("eos_token", "[SEP]"),
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];

/// Adds special tokens to the vocabulary of a tokenizer, and has it add those of its class to each text.
pub(super) fn add_special_tokens(
    path: &Path,
    class: &TokenizerClass,
    config: &TokenizerConfig,
    special_tokens: SpecialTokens,
    tokenizer: &mut LibraryTokenizer,
) -> Result<()> {
    let ends = template_tokens(path, class, config, &special_tokens, tokenizer)?;
    tokenizer.add_tokens(special_tokens.tokens).map_err(|error| cannot_build(path, error))?;
    let ends = ends.map(|end| end.and_then(|token| Some((tokenizer.token_to_id(&token)?, token))));
    let is_byte_level = class.model == ModelType::Bpe && class.template == Template::Roberta;
    let add_prefix_space = is_byte_level && config.bool("add_prefix_space", false)?;
    let post_processor = post_processor(class.template, ends, add_prefix_space);
    let post_processor = post_processor.map_err(|error| cannot_build(path, error))?;
    tokenizer.with_post_processor(Some(post_processor));
    Ok(())
}

/// The tokens before and after a text, which the vocabulary has to contain.
fn template_tokens(
    path: &Path,
    class: &TokenizerClass,
    config: &TokenizerConfig,
    special_tokens: &SpecialTokens,
    tokenizer: &LibraryTokenizer,
) -> Result<[Option<String>; 2]> {
    let names = match class.template {
        Template::Bert | Template::Roberta | Template::ClsSep => [Some("cls_token"), Some("sep_token")],
        Template::BosEos => [Some("bos_token"), Some("eos_token")],
        Template::ClsEos => [Some("cls_token"), Some("eos_token")],
        Template::Eos => [None, Some("eos_token")],
        Template::OptionalBosEos => [
            config.bool("add_bos_token", false)?.then_some("bos_token"),
            config.bool("add_eos_token", false)?.then_some("eos_token"),
        ],
    };
    let mut tokens = [None, None];
    for (token, name) in tokens.iter_mut().zip(names) {
        let Some(name) = name else { continue };
        let content = special_tokens.get(name);
        let is_optional = match class.template {
            Template::OptionalBosEos => true,
            Template::ClsEos => name == "eos_token",
            Template::Bert | Template::Roberta | Template::ClsSep | Template::BosEos | Template::Eos => false,
        };
        if content.is_none() && is_optional {
            continue;
        }
        let is_known = |content: &&String| {
            tokenizer.token_to_id(content).is_some() || special_tokens.with_id.contains(content)
        };
        match content.filter(is_known) {
            Some(content) => *token = Some(content.clone()),
            None => return Err(missing_token(path, class, name, content)),
        }
    }
    Ok(tokens)
}

/// The post-processor that adds the tokens `[begin, end]` to a text and a pair, each with its id. Offsets of
/// tokens are without the spaces around them where the class has it so; with `add_prefix_space` the first
/// token has none.
pub(super) fn post_processor(
    template: Template,
    [begin, end]: [Option<(u32, String)>; 2],
    add_prefix_space: bool,
) -> tokenizers::Result<PostProcessorWrapper> {
    if let (
        Template::Roberta | Template::ClsSep | Template::BosEos,
        Some((begin_id, begin)),
        Some((end_id, end)),
    ) = (template, &begin, &end)
    {
        let post_processor = RobertaProcessing::new((end.clone(), *end_id), (begin.clone(), *begin_id));
        let trims = template == Template::Roberta;
        return Ok(post_processor.trim_offsets(trims).add_prefix_space(add_prefix_space).into());
    }
    let piece = |token: &Option<(u32, String)>, token_type: u8| {
        token.as_ref().map(|(_, token)| format!("{token}:{token_type}"))
    };
    let single = [piece(&begin, 0), Some("$A:0".into()), piece(&end, 0)];
    // GPT-2 begins the second text of a pair with `bos_token`, too.
    let second_begin = if template == Template::OptionalBosEos { piece(&begin, 1) } else { None };
    let second_type = if template == Template::Eos { 0 } else { 1 };
    let second = [second_begin, Some(format!("$B:{second_type}")), piece(&end, second_type)];
    let single: Vec<String> = single.into_iter().flatten().collect();
    let pair: Vec<String> = single.iter().cloned().chain(second.into_iter().flatten()).collect();
    let tokens: Vec<(String, u32)> =
        [begin, end].into_iter().flatten().map(|(id, token)| (token, id)).collect();
    let post_processor =
        TemplateProcessing::builder().try_single(single)?.try_pair(pair)?.special_tokens(tokens).build()?;
    Ok(post_processor.into())
}

/// The error for a special token that the class needs, but that the vocabulary or the files next to it do not
/// have.
pub(super) fn missing_token(
    path: &Path,
    class: &TokenizerClass,
    name: &str,
    token: Option<&String>,
) -> Error {
    let (shown, class) = (path.display(), class.names[0]);
    match token {
        Some(token) => anyhow!(
            "{shown} has no token {token:?}, the {name} of {class}; download the model again, or set {name} in \
             tokenizer_config.json"
        ),
        None => anyhow!("{shown}: {class} needs a {name}, but the files next to it set it to null; fix them"),
    }
}

/// The error for files that the tokenizers library rejects.
pub(super) fn cannot_build(path: &Path, error: tokenizers::Error) -> Error {
    anyhow!(
        "cannot build a tokenizer from {} and the files next to it ({error}); download the model again",
        path.display()
    )
}
