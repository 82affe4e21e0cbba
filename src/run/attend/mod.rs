//! `sconce attend`: the attention of a text as a picture, a page or an array.

mod format;

use std::path::Path;

use anyhow::{Result, bail};
use bytesize::ByteSize;

pub use format::AttentionFormat;

use crate::error::UsageError;
use crate::figure::{self, HeatMaps, Token};
use crate::load::{Loaded, ModelOptions, load};
use crate::named::Named;
use crate::store::{self, Target};
use crate::sys::console::Console;
use crate::task::{AttentionMaps, AttentionOptions, Layers, Views, attend as compute};

/// The options of `attend`.
#[derive(Debug, Clone)]
pub struct AttendOptions {
    /// The model. Its pooling is not used.
    pub model: ModelOptions,
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
    /// The layers and heads.
    pub attention: AttentionOptions,
    /// Whether the user chooses layers or views; if not, the terminal shows the mean of the last layer.
    pub is_selected: bool,
    /// Whether the cells of a picture have their weights as numbers.
    pub has_numbers: bool,
    /// Where the result is written.
    pub output: Target,
    /// The form of the result.
    pub format: AttentionFormat,
    /// Whether pictures of characters have colours.
    pub has_colours: bool,
    /// Messages.
    pub console: Console,
}

/// Size in bytes of a picture or page that takes a browser more than a moment.
const SLOW_BYTES: usize = 16 << 20;

/// Runs `sconce attend`.
pub fn attend(options: &AttendOptions) -> Result<()> {
    let mut attention = options.attention.clone();
    match options.format {
        // One picture fits on a screen.
        AttentionFormat::Text if !options.is_selected => {
            (attention.layers, attention.views) = (Layers::Last, Views::Mean);
        }
        AttentionFormat::Html if attention.views == Views::Heads => attention.views = Views::Everything,
        _ => {}
    }
    let loaded = load(&options.model, &options.console)?;
    let read = loaded.origin.read_files();
    let pair = options.pair.as_deref();
    let maps = compute(&loaded, &options.text, pair, &attention, &options.console)?;
    if maps.values.iter().any(|value| !value.is_finite()) {
        options.console.warn("the attention has values that are NaN or infinite, which pictures show as 0");
    }
    let bytes = encode(options, &loaded, maps)?;
    if bytes.len() > SLOW_BYTES && matches!(options.format, AttentionFormat::Svg | AttentionFormat::Html) {
        options.console.note(format!(
            "the {} has {}, which takes a browser a while to open; choose a part with --layer or --head, or write a png",
            options.format.name(),
            ByteSize(bytes.len() as u64).display().si()
        ));
    }
    store::write(&options.output, &bytes, &read)
}

/// The bytes of the result.
fn encode(options: &AttendOptions, loaded: &Loaded, maps: AttentionMaps) -> Result<Vec<u8>> {
    check_tokens(options, maps.ids.len())?;
    let shape = format::shape(&maps);
    let model = match &options.model.config {
        Some(config) => &*config.display().to_string(),
        None => &*options.model.source.model,
    };
    Ok(match options.format {
        AttentionFormat::Npy => format::array(&maps, &shape).npy(),
        AttentionFormat::Safetensors => {
            format::array(&maps, &shape).safetensors(&format::metadata(&maps, model)?)
        }
        AttentionFormat::Json => format::json(&maps, model)?,
        AttentionFormat::Svg => figure::svg(&heat_maps(options, loaded, maps)).into_bytes(),
        AttentionFormat::Html => figure::html(&heat_maps(options, loaded, maps)).into_bytes(),
        AttentionFormat::Text => {
            figure::text(&heat_maps(options, loaded, maps), options.has_colours).into_bytes()
        }
        AttentionFormat::Png => {
            let picture = figure::png(&heat_maps(options, loaded, maps))?;
            warn_about_characters(&picture, &options.console);
            picture.bytes
        }
    })
}

/// Checks that a picture of this many tokens is readable.
fn check_tokens(options: &AttendOptions, tokens: usize) -> Result<()> {
    let (limit, picture, remedy) = match (options.format, options.has_numbers) {
        (AttentionFormat::Text, false) => (
            figure::MAX_TEXT_TOKENS,
            "a picture in the terminal",
            "write a file with -o attention.html or .svg",
        ),
        (AttentionFormat::Text, true) if tokens <= figure::MAX_NUMBERED_TOKENS => (
            figure::MAX_NUMBERED_TEXT_TOKENS,
            "--numbers in the terminal",
            "leave --numbers out, or write a file with -o attention.svg",
        ),
        (_, true) => (
            figure::MAX_NUMBERED_TOKENS,
            "--numbers in a picture",
            "leave --numbers out; -o attention.json has the numbers without it",
        ),
        (_, false) => return Ok(()),
    };
    if tokens > limit {
        bail!(UsageError(format!(
            "the text has {tokens} tokens, but {picture} shows up to {limit}; {remedy}"
        )));
    }
    Ok(())
}

/// Says which characters no font has.
fn warn_about_characters(picture: &figure::Png, console: &Console) {
    /// Characters that are listed.
    const MAX_LISTED: usize = 8;
    if picture.missing.is_empty() {
        return;
    }
    let listed: Vec<String> = picture.missing.iter().take(MAX_LISTED).map(char::to_string).collect();
    let more = if picture.missing.len() > MAX_LISTED { " …" } else { "" };
    console.warn(format!(
        "no installed font can draw {}{more}; install a font for the script, or write the picture as svg or html",
        listed.join(" ")
    ));
}

/// The model as titles name it: the checkpoint, or the config that replaces that of the checkpoint, and
/// whether its weights are random.
fn title(options: &AttendOptions, loaded: &Loaded) -> String {
    let config = options.model.config.as_deref().and_then(Path::file_stem);
    let name = match config {
        Some(config) => config.to_string_lossy().into_owned(),
        None => model_name(loaded, &options.model.source.model),
    };
    let weights = options.model.random_weights.map(|seed| format!(" (random weights, seed {seed})"));
    name + &weights.unwrap_or_default()
}

/// The name of a model: the last part of its path or id.
fn model_name(loaded: &Loaded, model: &str) -> String {
    let folder = || {
        let folder = loaded.origin.config.path().canonicalize().ok()?;
        Some(folder.parent()?.file_name()?.to_string_lossy().into_owned())
    };
    // `.` and `..` have no name of their own.
    let name = Path::new(model).file_name().map(|name| name.to_string_lossy().into_owned());
    name.or_else(folder).unwrap_or_else(|| model.to_owned())
}

/// The maps as a picture shows them.
fn heat_maps(options: &AttendOptions, loaded: &Loaded, maps: AttentionMaps) -> HeatMaps {
    let tokens = maps.labels.into_iter().zip(maps.is_special);
    let mixing = maps.mixing.map(|mixing| format!(" ({} mixing)", mixing.name())).unwrap_or_default();
    let without = if maps.without_special { " (without special tokens)" } else { "" };
    let pair = options.pair.as_ref().map(|pair| format!(" | {pair}")).unwrap_or_default();
    HeatMaps {
        title: format!("{}{mixing}{without}", title(options, loaded)),
        text: format!("{}{pair}", options.text),
        tokens: tokens.map(|(text, is_special)| Token { text, is_special }).collect(),
        rows: maps.layers.iter().map(|layer| format!("layer {layer}")).collect(),
        columns: maps.views.iter().map(ToString::to_string).collect(),
        values: maps.values,
        has_numbers: options.has_numbers,
    }
}
