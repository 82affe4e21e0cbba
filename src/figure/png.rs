//! Heat maps as PNG: the SVG picture in pixels.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::{Result, anyhow, bail};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{FontResolver, Options, Tree, fontdb};

use super::HeatMaps;
use super::label::is_zero_width;
use super::svg::svg;

/// Pixels of the PNG per pixel of the SVG, for displays of high density and for print.
const DENSITY: f32 = 2.0;
/// Maximum width and height in pixels: larger pictures get fewer pixels.
const MAX_SIDE: f32 = 12_000.0;

/// A picture.
pub struct Png {
    /// The bytes of the PNG file.
    pub bytes: Vec<u8>,
    /// Characters of labels that no font has.
    pub missing: BTreeSet<char>,
}

/// Renders the picture with the fonts of the system, and with DejaVu Sans Mono in any case.
pub fn png(maps: &HeatMaps) -> Result<Png> {
    let missing = Mutex::new(BTreeSet::new());
    let fallback = FontResolver::default_fallback_selector();
    let resolver = FontResolver {
        select_font: FontResolver::default_font_selector(),
        select_fallback: Box::new(|c, used, fonts| {
            let found = fallback(c, used, fonts);
            if found.is_none()
                && !is_zero_width(c)
                && let Ok(mut missing) = missing.lock()
            {
                missing.insert(c);
            }
            found
        }),
    };
    let options = Options { fontdb: Arc::new(fonts()), font_resolver: resolver, ..Options::default() };
    let tree = Tree::from_str(&svg(maps), &options)
        .map_err(|error| anyhow!("cannot draw the picture ({error}); write it as svg or html"))?;
    drop(options);
    let size = tree.size();
    let density = DENSITY.min(MAX_SIDE / size.width().max(size.height()));
    let (width, height) = ((size.width() * density).ceil() as u32, (size.height() * density).ceil() as u32);
    let Some(mut pixels) = Pixmap::new(width, height) else {
        bail!("a picture of {width} × {height} pixels is too large; write it as svg or html")
    };
    resvg::render(&tree, Transform::from_scale(density, density), &mut pixels.as_mut());
    let bytes = pixels
        .encode_png()
        .map_err(|error| anyhow!("cannot encode the picture ({error}); write it as svg or html"))?;
    let missing = missing.into_inner().unwrap_or_default();
    Ok(Png { bytes, missing })
}

/// DejaVu Sans Mono and the regular fonts of the system.
fn fonts() -> fontdb::Database {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(dejavu::sans_mono::regular().to_vec());
    fonts.set_monospace_family("DejaVu Sans Mono");
    fonts.set_sans_serif_family("DejaVu Sans Mono");
    fonts.load_system_fonts();
    // So that no script is drawn in bold because that is the first face that has it.
    let is_regular = |face: &&fontdb::FaceInfo| {
        (face.weight, face.style, face.stretch)
            == (fontdb::Weight::NORMAL, fontdb::Style::Normal, fontdb::Stretch::Normal)
    };
    let others: Vec<fontdb::ID> =
        fonts.faces().filter(|face| !is_regular(face)).map(|face| face.id).collect();
    others.into_iter().for_each(|id| fonts.remove_face(id));
    fonts
}

#[cfg(test)]
mod tests {
    use super::png;
    use crate::figure::maps::tests::uniform;

    #[test]
    fn latin_arabic_and_marks_of_tokenizers_need_no_installed_font() {
        let missing =
            png(&uniform(&["[CLS]", "##ß", "Ġthe", "▁de", "␣", "e\u{301}", "سلام", "жук"])).unwrap().missing;
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn characters_that_no_font_has_are_reported_and_the_rest_is_drawn() {
        let picture = png(&uniform(&["a", "\u{10fffd}"])).unwrap();
        assert_eq!(picture.missing.into_iter().collect::<String>(), "\u{10fffd}");
        assert_eq!(picture.bytes[1..4], *b"PNG");
    }
}
