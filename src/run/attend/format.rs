//! The forms of attention: pictures, a page, and arrays with their metadata.

use anyhow::Result;
use serde::Serialize;

use crate::formats::Array;
use crate::named::{Named, names};
use crate::rows::FileMetadata;
use crate::rows::metadata::Key;
use crate::task::{AttentionMaps, View};

/// The form of the attention of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionFormat {
    /// Characters of a terminal.
    Text,
    /// A picture as SVG.
    Svg,
    /// A picture as PNG.
    Png,
    /// An interactive page.
    Html,
    /// A NumPy array `(layers, heads, n, n)`.
    Npy,
    /// A safetensors file with a tensor `attentions` `(layers, heads, n, n)`, and tokens in its metadata.
    Safetensors,
    /// A JSON object.
    Json,
}

names!(AttentionFormat {
    Text => "text" | "txt",
    Svg => "svg",
    Png => "png",
    Html => "html" | "htm",
    Npy => "npy",
    Safetensors => "safetensors",
    Json => "json",
});

impl AttentionFormat {
    /// Whether the bytes of the format are not text.
    pub fn is_binary(self) -> bool {
        matches!(self, AttentionFormat::Png | AttentionFormat::Npy | AttentionFormat::Safetensors)
    }

    /// Whether the format is a picture without interaction.
    pub fn is_picture(self) -> bool {
        matches!(self, AttentionFormat::Text | AttentionFormat::Svg | AttentionFormat::Png)
    }
}

/// The name of the values: `heads`, `mean` or `rollout`.
fn kind(maps: &AttentionMaps) -> &'static str {
    match maps.views.first() {
        Some(View::Mean) => "mean",
        Some(View::Rollout) => "rollout",
        _ => "heads",
    }
}

/// The indices of the heads; empty for the mean and the rollout.
fn heads(maps: &AttentionMaps) -> Vec<usize> {
    let index = |view: &View| if let View::Head(head) = view { Some(*head) } else { None };
    maps.views.iter().filter_map(index).collect()
}

/// The shape of the values, `(layers, heads, n, n)`. The mean and the rollout have an axis of length 1 for
/// the heads.
pub(super) fn shape(maps: &AttentionMaps) -> [usize; 4] {
    let n = maps.ids.len();
    [maps.layers.len(), maps.views.len(), n, n]
}

/// The array of an npy or safetensors file.
pub(super) fn array<'a>(maps: &'a AttentionMaps, shape: &'a [usize; 4]) -> Array<'a> {
    Array { name: "attentions", shape, values: &maps.values }
}

/// The metadata of a safetensors file; lists are JSON.
pub(super) fn metadata(maps: &AttentionMaps, model: &str) -> Result<FileMetadata> {
    let values = [
        (Key::Format.name(), "sconce".into()),
        (Key::Model.name(), model.into()),
        ("kind", kind(maps).into()),
        ("layers", serde_json::to_string(&maps.layers)?),
        ("heads", serde_json::to_string(&heads(maps))?),
        ("tokens", serde_json::to_string(&maps.tokens)?),
        ("ids", serde_json::to_string(&maps.ids)?),
        ("token_type_ids", serde_json::to_string(&maps.token_type_ids)?),
    ];
    let mixing = maps.mixing.map(|mixing| ("mixing", mixing.name().into()));
    let without_special = maps.without_special.then(|| ("without_special", "true".into()));
    Ok(values
        .into_iter()
        .chain(mixing)
        .chain(without_special)
        .map(|(key, value)| (key.to_owned(), value))
        .collect())
}

/// The JSON object of a text.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mixing: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    without_special: bool,
    layers: &'a [usize],
    heads: Vec<usize>,
    tokens: &'a [String],
    ids: &'a [u32],
    token_type_ids: &'a [u32],
    special_tokens_mask: Vec<u8>,
    /// `(layers, heads, n, n)`.
    attentions: Vec<Vec<Vec<&'a [f32]>>>,
}

/// The bytes of a JSON object. Numbers are written so that reading them back gives the same f32.
pub(super) fn json(maps: &AttentionMaps, model: &str) -> Result<Vec<u8>> {
    let n = maps.ids.len();
    let report = Report {
        model,
        kind: kind(maps),
        mixing: maps.mixing.map(Named::name),
        without_special: maps.without_special,
        layers: &maps.layers,
        heads: heads(maps),
        tokens: &maps.tokens,
        ids: &maps.ids,
        token_type_ids: &maps.token_type_ids,
        special_tokens_mask: maps.is_special.iter().map(|is_special| u8::from(*is_special)).collect(),
        attentions: maps.values.chunks(maps.views.len() * n * n).map(|layer| matrices(layer, n)).collect(),
    };
    let mut bytes = serde_json::to_vec(&report)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Divides the values of a layer into matrices `(n, n)`, as lists of rows.
fn matrices(layer: &[f32], n: usize) -> Vec<Vec<&[f32]>> {
    layer.chunks(n * n).map(|matrix| matrix.chunks(n).collect()).collect()
}
