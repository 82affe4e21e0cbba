//! `sconce attend`: its arguments, and the options that they become.

use std::env;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use super::args::ModelArgs;
use super::choice::{OrAuto, named, named_or_auto};
use super::resolve::{console, format_of, is_stdout, model};
use crate::error::UsageError;
use crate::load::ModelOptions;
use crate::named::Named;
use crate::nn::Pooling;
use crate::run::attend::{AttendOptions, AttentionFormat};
use crate::store::Target;
use crate::task::{AttentionOptions, Layers, Mixing, PromptChoice, Views};

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce attend \"The lamp is on\"                            mean of the last layer, in the terminal
  sconce attend \"The lamp is on\" -o lamp.html               a page: hover over a token, choose layer and head
  sconce attend \"The lamp is on\" -o lamp.svg                a grid of all layers and heads
  sconce attend \"The lamp is on\" -o lamp.png --layer 3 --head 5
  sconce attend \"The lamp is on\" --numbers --without-special
  sconce attend \"Is it on?\" \"The lamp is on\" -o pair.npy   an array (layers, heads, n, n)";

#[derive(Debug, Args)]
pub(super) struct AttendArgs {
    /// Text to encode
    #[arg(id = "attended_text", value_name = "TEXT", long_help)]
    pub text: String,

    /// Second text of a pair
    #[arg(value_name = "PAIR", long_help)]
    pub pair: Option<String>,

    /// svg, png, html, npy, safetensors or json [default: a picture on standard output]
    ///
    /// Output file, whose extension is one of these or txt. It is written atomically and replaces an existing
    /// file
    #[arg(id = "attention_output", short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Output format. auto: by file extension, text on standard output; text: a picture in 256 colors, or in
    /// plain characters with NO_COLOR or if standard output is not a terminal
    #[arg(
        id = "attention_format",
        long = "output-format",
        value_name = "FORMAT",
        default_value = "auto",
        value_parser = named_or_auto::<AttentionFormat>()
    )]
    pub format: OrAuto<AttentionFormat>,

    /// Layer, from 0 [default: all; the last without --output]
    ///
    /// Layers are counted as in output_attentions of transformers. With --rollout, the default is the last
    #[arg(long, value_name = "N")]
    pub layer: Option<usize>,

    /// Head, from 0 [default: all; their mean without --output]
    #[arg(long, value_name = "N", conflicts_with_all = ["mean", "rollout"], long_help)]
    pub head: Option<usize>,

    /// Mean over the heads
    ///
    /// One mean for each layer
    #[arg(long, conflicts_with = "rollout")]
    pub mean: bool,

    /// Attention rollout over the layers
    ///
    /// The rollout up to the layer (Abnar & Zuidema 2020) is the product over all layers of 0.5 times the
    /// mean over the heads plus 0.5 times the identity
    #[arg(long, conflicts_with = "mixing")]
    pub rollout: bool,

    /// Talking heads: before or after mixing [default: after]
    ///
    /// before: the probabilities of the softmax, before heads are mixed; after: the weights after that, by
    /// which values are summed
    #[arg(long, value_name = "WHEN", value_parser = named::<Mixing>())]
    pub mixing: Option<Mixing>,

    /// Leave special tokens such as [CLS] and [SEP] out
    ///
    /// The weights of the other tokens do not change: their rows sum to less than 1
    #[arg(long)]
    pub without_special: bool,

    /// Write the weights into the cells of the picture
    ///
    /// For text, svg and png, and for texts short enough to read them: 24 tokens in the terminal, 32 in a
    /// picture
    #[arg(long)]
    pub numbers: bool,

    /// Prompt to put before the text [default: from the model's files]
    #[arg(
        id = "attention_prompt",
        long = "prompt",
        value_name = "TEXT",
        conflicts_with = "attention_prompt_name"
    )]
    pub prompt: Option<String>,

    /// Name of a prompt in the model's files to put before the text
    #[arg(id = "attention_prompt_name", long = "prompt-name", value_name = "NAME")]
    pub prompt_name: Option<String>,

    /// Maximum tokens, including special tokens; a longer text is an error [default: the model's limit]
    #[arg(
        id = "attention_max_length",
        long = "max-length",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub max_length: Option<u32>,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `attend`.
///
/// # Errors
/// [`UsageError`] if the output format is not known, or it is binary and standard output is a terminal.
pub(super) fn options(args: AttendArgs) -> Result<AttendOptions> {
    let output = args.output.filter(|path| !is_stdout(path));
    let format = attention_format(args.format, output.as_deref())?;
    if args.numbers && !format.is_picture() {
        bail!(UsageError(format!(
            "--numbers: the format is {}, but text, svg and png have cells to write numbers into; choose one of these, or \
             leave --numbers out",
            format.name()
        )));
    }
    let is_terminal = output.is_none() && std::io::stdout().is_terminal();
    if is_terminal && format.is_binary() {
        bail!(UsageError(format!(
            "--output-format {}: standard output is a terminal; name a file with --output",
            format.name()
        )));
    }
    let views = match (args.head, args.mean, args.rollout) {
        (Some(head), ..) => Views::Head(head),
        (_, true, _) => Views::Mean,
        (.., true) => Views::Rollout,
        _ => Views::Heads,
    };
    let layers = match args.layer {
        Some(layer) => Layers::One(layer),
        None if args.rollout => Layers::Last,
        None => Layers::All,
    };
    Ok(AttendOptions {
        model: ModelOptions {
            max_length: args.max_length.map(|n| n as usize),
            // No vector is computed. Models for other tasks than embedding are accepted, too.
            pooling: Some(Pooling::None),
            ..model(&args.model)?
        },
        text: args.text,
        pair: args.pair,
        is_selected: args.layer.is_some() || views != Views::Heads,
        attention: AttentionOptions {
            prompt: args.prompt.map(PromptChoice::Text).or(args.prompt_name.map(PromptChoice::Name)),
            layers,
            views,
            mixing: args.mixing,
            without_special: args.without_special,
        },
        has_numbers: args.numbers,
        format,
        has_colours: is_terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        output: output.map_or(Target::Stdout, Target::File),
        console: console(&args.model.verbosity),
    })
}

/// The format of `attend`: as the option says, else by the extension of the output file, else text.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
fn attention_format(format: OrAuto<AttentionFormat>, output: Option<&Path>) -> Result<AttentionFormat> {
    let mut formats = AttentionFormat::ALL.iter().copied();
    format_of(format, output, AttentionFormat::Text, |extension| {
        formats.find(|format| format.name() == extension || format.aliases().contains(&extension))
    })
}
