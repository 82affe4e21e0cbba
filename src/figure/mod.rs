//! Pictures of attention: matrices over the tokens of one text as SVG, PNG, an HTML page, or characters of a
//! terminal.
//!
//! * `colour`: from a value to a colour. `label`: from a token to its label. `maps`: what is shown.
//! * `svg`: the layout and the picture. `png`: the same picture in pixels. `html`: the interactive page.
//!   `text`: the terminal.

mod colour;
mod html;
mod label;
mod maps;
mod png;
mod svg;
mod text;

pub use html::html;
pub use maps::{HeatMaps, Token};
pub use png::{Png, png};
pub use svg::{MAX_NUMBERED_TOKENS, svg};
pub use text::{MAX_NUMBERED_TOKENS as MAX_NUMBERED_TEXT_TOKENS, MAX_TOKENS as MAX_TEXT_TOKENS, text};
