//! Tokenizers from the files of older releases: `vocab.txt`, or `vocab.json` with `merges.txt`. Each class does what
//! the class of its name does in transformers.

use std::path::Path;

use anyhow::{Error, Result, anyhow, bail};
use tokenizers::models::bpe::{self, BPE};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{ModelWrapper, Tokenizer};

use super::settings::{Settings, Specials};
use crate::disk;

/// How a tokenizer in another form becomes usable.
pub(super) const SAVE: &str = "save a tokenizer.json once with transformers \
    (AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT))";

/// Where special tokens stand around texts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Frame {
    /// `[CLS] A [SEP]`, and `B [SEP]` as the second segment.
    Bert,
    /// `<s> A </s>`, and `</s> B </s>` in the same segment.
    Roberta,
    /// The same with the tokens that begin and end a sequence, not with those of classification and separation.
    BosEos,
    /// Nothing, or what `add_bos_token` and `add_eos_token` say; B is the second segment.
    Ends,
}

/// Tokenizers that work alike.
pub(super) struct Class {
    /// Their names; the first stands for all.
    pub names: &'static [&'static str],
    /// How the name of their vocabulary ends; empty where that is not read.
    pub file: &'static str,
    /// Their special tokens where no file names others.
    pub tokens: &'static [(&'static str, &'static str)],
    /// What they put around texts.
    pub frame: Frame,
}

pub(super) const CLASSES: &[Class] = &[
    Class {
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
        file: "vocab.txt",
        tokens: &[
            ("unk_token", "[UNK]"),
            ("sep_token", "[SEP]"),
            ("pad_token", "[PAD]"),
            ("cls_token", "[CLS]"),
            ("mask_token", "[MASK]"),
        ],
        frame: Frame::Bert,
    },
    // Its <mask> takes the space before it; WordPiece drops that space anyway.
    Class {
        names: &["MPNetTokenizer"],
        file: "vocab.txt",
        tokens: &[
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("unk_token", "[UNK]"),
            ("sep_token", "</s>"),
            ("pad_token", "<pad>"),
            ("cls_token", "<s>"),
            ("mask_token", "<mask>"),
        ],
        frame: Frame::Roberta,
    },
    Class {
        names: &["RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"],
        file: "vocab.json",
        tokens: &[
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("unk_token", "<unk>"),
            ("sep_token", "</s>"),
            ("pad_token", "<pad>"),
            ("cls_token", "<s>"),
            ("mask_token", "<mask>"),
        ],
        frame: Frame::Roberta,
    },
    Class {
        names: &["GPT2Tokenizer"],
        file: "vocab.json",
        tokens: &[
            ("bos_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("unk_token", "<|endoftext|>"),
        ],
        frame: Frame::Ends,
    },
];

/// Models whose vocabulary looks like BERT's or RoBERTa's but is not, where no file names the class.
const CLASS_OF_MODEL: &[(&str, &str)] = &[
    ("mpnet", "MPNetTokenizer"),
    ("gpt2", "GPT2Tokenizer"),
    ("roformer", "RoFormerTokenizer"),
    ("deberta", "DebertaTokenizer"),
];

/// Whether a file is a vocabulary by its name.
pub(super) fn is_vocabulary(name: &str) -> bool {
    CLASSES.iter().any(|class| name.ends_with(class.file))
}

/// Reads a vocabulary with what stands beside it.
///
/// # Errors
/// If a file is missing or broken, or if the vocabulary is of a tokenizer that works differently.
pub(super) fn read(path: &Path) -> Result<Tokenizer> {
    let settings = Settings::read(path)?;
    let class = class_of(path, &settings)?;
    let specials = settings.specials(class.tokens);
    let mut tokenizer = match class.file {
        "vocab.txt" => word_pieces(path, class, &settings, &specials)?,
        _ => byte_pairs(path, &settings)?,
    };
    tokenizer.set_encode_special_tokens(settings.flag("split_special_tokens", false)?);
    add_frame(path, class, &settings, specials, &mut tokenizer)?;
    Ok(tokenizer)
}

/// Adds special tokens to a vocabulary and puts those of the class around texts.
pub(super) fn add_frame(
    path: &Path,
    class: &Class,
    settings: &Settings,
    specials: Specials,
    tokenizer: &mut Tokenizer,
) -> Result<()> {
    let ends = frame_tokens(path, class, settings, &specials, tokenizer)?;
    let unfit = |error| unfit(path, error);
    tokenizer.add_tokens(specials.tokens).map_err(unfit)?;
    let ends = ends.map(|end| end.and_then(|token| Some((tokenizer.token_to_id(&token)?, token))));
    tokenizer.with_post_processor(Some(frame(class.frame, ends).map_err(unfit)?));
    Ok(())
}

/// The class that the files name, else the one that such a file is usually of.
fn class_of(path: &Path, settings: &Settings) -> Result<&'static Class> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let of_model = |kind: &String| CLASS_OF_MODEL.iter().find(|(model, _)| model == kind);
    let of_model = settings.model_type.as_ref().and_then(of_model).map(|(_, class)| *class);
    let said = settings.class.as_deref().or(of_model);
    let said = said.map(|said| said.strip_suffix("Fast").unwrap_or(said));
    let mut fitting = CLASSES.iter().filter(|class| name.ends_with(class.file));
    let found = match said {
        Some(said) => fitting.find(|class| class.names.contains(&said)),
        None => fitting.next(),
    };
    match found {
        Some(class) => Ok(class),
        None => bail!(
            "{} belongs to a {}, which Sconce cannot build from it; {SAVE}",
            path.display(),
            said.unwrap_or("tokenizer")
        ),
    }
}

/// The tokens before and after a text, which the vocabulary has to have.
fn frame_tokens(
    path: &Path,
    class: &Class,
    settings: &Settings,
    specials: &Specials,
    tokenizer: &Tokenizer,
) -> Result<[Option<String>; 2]> {
    let wanted = match class.frame {
        Frame::Bert | Frame::Roberta => [Some("cls_token"), Some("sep_token")],
        Frame::BosEos => [Some("bos_token"), Some("eos_token")],
        Frame::Ends => [
            settings.flag("add_bos_token", false)?.then_some("bos_token"),
            settings.flag("add_eos_token", false)?.then_some("eos_token"),
        ],
    };
    let mut tokens = [None, None];
    for (token, name) in tokens.iter_mut().zip(wanted) {
        let Some(name) = name else { continue };
        let content = named(specials, name);
        let known =
            |content: &&String| tokenizer.token_to_id(content).is_some() || specials.listed.contains(content);
        match content.filter(known) {
            Some(content) => *token = Some(content.clone()),
            None => return Err(lacks(path, class, name, content)),
        }
    }
    Ok(tokens)
}

/// The token that a name stands for.
pub(super) fn named<'a>(specials: &'a Specials, name: &str) -> Option<&'a String> {
    specials.named.iter().find(|(key, _)| key == name).map(|(_, token)| token)
}

fn lacks(path: &Path, class: &Class, name: &str, token: Option<&String>) -> Error {
    let (shown, class) = (path.display(), class.names[0]);
    match token {
        Some(token) => anyhow!(
            "{shown} lacks {token:?}, the {name} of a tokenizer like {class}; fetch the model again, or name the \
             token in tokenizer_config.json beside it"
        ),
        None => anyhow!(
            "{shown} is of a tokenizer like {class}, but the files beside it say that there is no {name}"
        ),
    }
}

/// Puts special tokens around texts.
pub(super) fn frame(
    frame: Frame,
    ends: [Option<(u32, String)>; 2],
) -> tokenizers::Result<PostProcessorWrapper> {
    let [first, last] = ends;
    if let (Frame::Roberta | Frame::BosEos, Some((first_id, first)), Some((last_id, last))) =
        (frame, &first, &last)
    {
        // Offsets are of no use here.
        let frame = RobertaProcessing::new((last.clone(), *last_id), (first.clone(), *first_id));
        return Ok(frame.trim_offsets(false).into());
    }
    let piece =
        |end: &Option<(u32, String)>, segment: u8| end.as_ref().map(|(_, t)| format!("{t}:{segment}"));
    let single = [piece(&first, 0), Some("$A:0".into()), piece(&last, 0)];
    // A text of GPT-2 has its own beginning wherever it stands.
    let again = if frame == Frame::Ends { piece(&first, 1) } else { None };
    let second = [again, Some("$B:1".into()), piece(&last, 1)];
    let single: Vec<String> = single.into_iter().flatten().collect();
    let pair: Vec<String> = single.iter().cloned().chain(second.into_iter().flatten()).collect();
    let tokens: Vec<(String, u32)> =
        [first, last].into_iter().flatten().map(|(id, token)| (token, id)).collect();
    let template =
        TemplateProcessing::builder().try_single(single)?.try_pair(pair)?.special_tokens(tokens).build()?;
    Ok(template.into())
}

/// `vocab.txt`: one token a line, the line is its id.
fn word_pieces(path: &Path, class: &Class, settings: &Settings, specials: &Specials) -> Result<Tokenizer> {
    let text = text(path)?;
    if text.trim().is_empty() {
        bail!("{} is empty; fetch the model again", path.display());
    }
    let vocabulary = WordPiece::read_bytes(text.as_bytes()).map_err(|error| unfit(path, error))?;
    let unknown = named(specials, "unk_token");
    let Some(unknown) = unknown.filter(|token| vocabulary.contains_key(*token)) else {
        return Err(lacks(path, class, "unk_token", unknown));
    };
    let model = WordPiece::builder().vocab(vocabulary).unk_token(unknown.clone()).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|error| unfit(path, error))?);
    tokenizer.with_normalizer(Some(casing(settings)?)).map_err(|error| unfit(path, error))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    Ok(tokenizer)
}

/// How BERT and its kin normalize texts.
pub(super) fn casing(settings: &Settings) -> Result<BertNormalizer> {
    Ok(BertNormalizer::new(
        true,
        settings.flag("tokenize_chinese_chars", true)?,
        settings.open_flag("strip_accents")?,
        settings.flag("do_lower_case", true)?,
    ))
}

/// `vocab.json` with its merges: pieces of bytes, which are written as letters.
fn byte_pairs(path: &Path, settings: &Settings) -> Result<Tokenizer> {
    let shown = path.display();
    let vocabulary: bpe::Vocab = match serde_json::from_str::<std::collections::HashMap<_, _>>(&text(path)?) {
        Ok(vocabulary) => vocabulary.into_iter().collect(),
        Err(error) => bail!(
            "{shown} is not a map of tokens to ids (line {}, column {}); fix the file",
            error.line(),
            error.column()
        ),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let merges_path = path.with_file_name(name.replace("vocab.json", "merges.txt"));
    let mut merges = Vec::new();
    for (number, line) in text(&merges_path)?.lines().enumerate() {
        if line.starts_with("#version") {
            continue;
        }
        // The library takes every pair for one whose parts and whole are in the vocabulary.
        let known =
            |(a, b): &(&str, &str)| [*a, *b, &format!("{a}{b}")].iter().all(|t| vocabulary.contains_key(*t));
        match line.split_once(' ').filter(known) {
            Some((a, b)) => merges.push((a.to_owned(), b.to_owned())),
            None => bail!(
                "{}, line {}: not a pair of tokens that {shown} has together and apart; use the files of one tokenizer",
                merges_path.display(),
                number + 1
            ),
        }
    }
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).build();
    let mut tokenizer = Tokenizer::new(ModelWrapper::from(model.map_err(|error| unfit(path, error))?));
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(
        settings.flag("add_prefix_space", false)?,
        false,
        true,
    )));
    Ok(tokenizer)
}

fn text(path: &Path) -> Result<String> {
    let shown = path.display();
    match disk::read(path, disk::MAX_TOKENIZER_BYTES).map(String::from_utf8) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => bail!("{shown} is not UTF-8; fetch the model again"),
        Err(error) => bail!("cannot read {shown} ({error}); download the model again"),
    }
}

fn unfit(path: &Path, error: tokenizers::Error) -> Error {
    anyhow!("{} and the files beside it make no tokenizer ({error}); fetch the model again", path.display())
}
