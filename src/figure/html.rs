//! Heat maps as an HTML page without any other file: `page.html`, `page.css` and `page.js` with the data in
//! them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use half::f16;
use serde_json::json;

use super::HeatMaps;
use super::colour::{LEVELS, Scale, Theme, colour, hex};
use super::label;
use crate::sys::terminal::escape_controls;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page. Weights are stored as f16: at least three significant digits for probabilities above 6e-5.
pub fn html(maps: &HeatMaps) -> String {
    let title = escape_controls(&maps.title).replace('&', "&amp;").replace('<', "&lt;");
    let values: Vec<u8> =
        maps.values.iter().flat_map(|value| f16::from_f32(*value).to_bits().to_le_bytes()).collect();
    let parts = [
        ("{title}", title),
        ("{style}", STYLE.into()),
        ("{data}", description(maps)),
        ("{weights}", BASE64_STANDARD.encode(values)),
        ("{script}", SCRIPT.into()),
    ];
    let mut page =
        String::with_capacity(PAGE.len() + parts.iter().map(|(_, part)| part.len()).sum::<usize>());
    let mut rest = PAGE;
    for (marker, part) in &parts {
        // Every marker is in the page, in this order; the text of a part is not searched.
        let (before, after) = rest.split_once(marker).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// What the script needs besides the weights, as JSON that may be inside a script element.
fn description(maps: &HeatMaps) -> String {
    let scale = Scale::of(maps);
    let palette = |theme| {
        let levels = -(LEVELS as i32)..=LEVELS as i32;
        levels.map(|level| hex(colour(level as f32 / LEVELS as f32, theme))).collect::<Vec<_>>()
    };
    let tokens = maps.tokens.iter().map(|token| json!([label::visible(&token.text), token.is_special]));
    let description = json!({
        "rows": maps.rows,
        "columns": maps.columns,
        "tokens": tokens.collect::<Vec<_>>(),
        "max": scale.max,
        "ticks": scale.ticks().iter().map(|tick| [*tick, scale.position(*tick)]).collect::<Vec<_>>(),
        "negative": scale.has_negative,
        "light": palette(Theme::Light),
        "dark": palette(Theme::Dark),
    });
    description.to_string().replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::{PAGE, html};
    use crate::figure::maps::tests::uniform;

    #[test]
    fn a_token_cannot_end_the_script_or_replace_a_part() {
        let mut maps = uniform(&["</script><b>", "{weights}", "{script}"]);
        maps.title = "<i>&{data}".into();
        let page = html(&maps);
        assert!(!page.contains("</script><b>") && page.contains("\\u003c/script>\\u003cb>"));
        assert!(page.contains("<title>&lt;i>&amp;{data}") && page.contains("[\"{weights}\",false]"));
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
    }

    #[test]
    fn the_page_loads_nothing() {
        let page = html(&uniform(&["a"]));
        for reference in ["http:", "https:", " src=", " href=", "@import", "url("] {
            assert!(!page.contains(reference), "{reference}");
        }
    }
}
