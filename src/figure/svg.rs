//! Heat maps as SVG: one matrix with a label per token, or a grid of matrices.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::HeatMaps;
use super::colour::{LEVELS, Scale, Theme, colour, hex};
use super::label;
use crate::sys::terminal::escape_controls;

/// The fonts of labels; the first is the one that the PNG has in any case.
pub(super) const FONTS: &str = "DejaVu Sans Mono, Menlo, Consolas, monospace, sans-serif";
/// Width of a column of a monospace font, in em.
const COLUMN_EM: f64 = 0.61;
/// Pixels around the picture and between matrices.
const MARGIN: f64 = 16.0;
const GAP: f64 = 10.0;
/// Font sizes of the title and of names of layers and heads, in pixels.
const TITLE: f64 = 15.0;
const NAME: f64 = 12.0;
/// Pixels from the top to the names of layers and heads: the title, the text, and what the axes are.
const HEADER: f64 = MARGIN + TITLE + 2.0 * (NAME + 6.0) + 16.0;
/// Height of the legend, and width of its bar.
const LEGEND: f64 = 58.0;
const BAR: f64 = 384.0;
/// Smallest cells in which token labels are readable.
const MIN_LABELLED_CELL: f64 = 8.0;
/// Maximum tokens of a picture with numbers in its cells.
pub const MAX_NUMBERED_TOKENS: usize = 32;
/// Side of a cell with a number, and the font size of the number.
const NUMBERED_CELL: f64 = 36.0;
const NUMBER: f64 = 11.0;
/// Maximum characters of a label.
const MAX_LABEL: usize = 24;

/// Where the parts of a picture are, in pixels.
struct Layout {
    /// Side of a cell, and of a matrix.
    cell: f64,
    side: f64,
    /// Labels of tokens; empty if cells are too small.
    labels: Vec<String>,
    /// Left and top of the first matrix.
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    /// The rows and columns of the grid are exchanged: several layers of one view are shown side by side.
    transposed: bool,
}

impl Layout {
    fn new(maps: &HeatMaps) -> Self {
        let n = maps.tokens.len().max(1) as f64;
        let transposed = maps.columns.len() == 1 && maps.rows.len() > 1;
        let (mut down, mut across) = (maps.rows.len() as f64, maps.columns.len() as f64);
        if transposed {
            (down, across) = (across, down);
        }
        let cell = if maps.has_numbers {
            NUMBERED_CELL
        } else if maps.is_single() {
            (1400.0 / n).clamp(11.0, 36.0)
        } else {
            let cell = (2000.0 / across).clamp(160.0, 420.0) / n;
            // Matrices of short texts get labels.
            if n <= 32.0 { cell.clamp(MIN_LABELLED_CELL, 36.0) } else { cell }
        };
        let side = cell * n;
        let labels = if cell >= MIN_LABELLED_CELL { maps.labels(MAX_LABEL) } else { Vec::new() };
        let font = font_size(cell);
        let longest = labels.iter().map(|label| label::width(label)).max().unwrap_or(0);
        let label_space = longest as f64 * COLUMN_EM * font + if labels.is_empty() { 0.0 } else { 6.0 };
        let names = if maps.is_single() { 0.0 } else { NAME + 8.0 };
        let left = MARGIN + names + label_space;
        let top = HEADER + names + label_space;
        let extent = |count: f64| count * (side + GAP) - GAP;
        let width = (left + extent(across)).max(MARGIN + BAR + 40.0) + MARGIN;
        let height = top + extent(down) + GAP + LEGEND + MARGIN;
        Layout { cell, side, labels, left, top, width, height, transposed }
    }

    /// Left and top of a matrix.
    fn origin(&self, row: usize, column: usize) -> (f64, f64) {
        let (down, across) = if self.transposed { (column, row) } else { (row, column) };
        (self.left + across as f64 * (self.side + GAP), self.top + down as f64 * (self.side + GAP))
    }
}

/// Font size of token labels beside cells of this size.
fn font_size(cell: f64) -> f64 {
    (0.86 * cell).min(13.0)
}

/// The picture as an SVG document.
pub fn svg(maps: &HeatMaps) -> String {
    let layout = Layout::new(maps);
    let scale = Scale::of(maps);
    let (width, height) = (layout.width.ceil(), layout.height.ceil());
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"{FONTS}\" fill=\"#1c1e26\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let mut writer = Writer { out: &mut out, layout: &layout, maps };
    writer.title();
    writer.names();
    writer.token_labels();
    for row in 0..maps.rows.len() {
        for column in 0..maps.columns.len() {
            writer.matrix(row, column, scale);
        }
    }
    writer.legend(scale);
    out.push_str("</svg>\n");
    out
}

struct Writer<'a> {
    out: &'a mut String,
    layout: &'a Layout,
    maps: &'a HeatMaps,
}

impl Writer<'_> {
    /// Text at a position; `attributes` are further attributes of its element.
    fn text(&mut self, x: f64, y: f64, size: f64, attributes: &str, text: &str) {
        let text = escape_xml(text);
        let _ = writeln!(
            self.out,
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\" {attributes}>{text}</text>",
            round(x),
            round(y),
            round(size)
        );
    }

    fn title(&mut self) {
        let HeatMaps { title, text, rows, columns, .. } = self.maps;
        let mut title = escape_controls(title).into_owned();
        if self.maps.is_single() {
            title = format!("{title}: {}, {}", rows[0], columns[0]);
        }
        self.text(MARGIN, MARGIN + TITLE, TITLE, "font-weight=\"bold\"", &title);
        let text = escape_controls(text);
        // The columns that fit the width of the picture, as characters of this text.
        let columns = (self.layout.width - 2.0 * MARGIN) / (COLUMN_EM * NAME);
        let chars = columns * text.chars().count() as f64 / label::width(&text).max(1) as f64;
        let text = label::shortened(&text, (chars as usize).max(1));
        self.text(MARGIN, MARGIN + TITLE + NAME + 6.0, NAME, "unicode-bidi=\"plaintext\"", &text);
        let order = if self.layout.labels.is_empty() { ", in the order of the text" } else { "" };
        let axes = format!("rows: queries, columns: keys{order}");
        self.text(MARGIN, MARGIN + TITLE + 2.0 * (NAME + 6.0), NAME, "fill=\"#555b6e\"", &axes);
    }

    /// The names of layers and heads beside a grid.
    fn names(&mut self) {
        let (layout, maps) = (self.layout, self.maps);
        if maps.is_single() {
            return;
        }
        let (down, across) =
            if layout.transposed { (&maps.columns, &maps.rows) } else { (&maps.rows, &maps.columns) };
        let center = |start: f64, i: usize| start + i as f64 * (layout.side + GAP) + layout.side / 2.0;
        let y = HEADER + NAME;
        for (i, name) in across.iter().enumerate() {
            self.text(center(layout.left, i), y, NAME, "text-anchor=\"middle\"", name);
        }
        let x = MARGIN + NAME;
        for (i, name) in down.iter().enumerate() {
            let y = center(layout.top, i);
            let rotated =
                format!("text-anchor=\"middle\" transform=\"rotate(-90 {} {})\"", round(x), round(y));
            self.text(x, y, NAME, &rotated, name);
        }
    }

    /// The labels of queries left of the first column of matrices, and of keys above the first row.
    fn token_labels(&mut self) {
        let layout = self.layout;
        let size = font_size(layout.cell);
        let (down, across) = match (self.maps.rows.len(), self.maps.columns.len()) {
            (rows, columns) if layout.transposed => (columns, rows),
            size => size,
        };
        for (i, label) in layout.labels.iter().enumerate() {
            // The baseline that centers letters in the cell.
            let middle = (i as f64 + 0.5) * layout.cell + 0.35 * size;
            let color = if self.maps.tokens[i].is_special { " fill=\"#7a4fb5\"" } else { "" };
            for matrix in 0..down {
                let y = layout.top + matrix as f64 * (layout.side + GAP) + middle;
                let anchor = format!("text-anchor=\"end\" unicode-bidi=\"plaintext\"{color}");
                self.text(layout.left - 5.0, y, size, &anchor, label);
            }
            for matrix in 0..across {
                let x = layout.left + matrix as f64 * (layout.side + GAP) + middle;
                let y = layout.top - 5.0;
                let rotated = format!(
                    "transform=\"rotate(-90 {} {})\" unicode-bidi=\"plaintext\"{color}",
                    round(x),
                    round(y)
                );
                self.text(x, y, size, &rotated, label);
            }
        }
    }

    /// The cells of a matrix: one path per colour, with a rectangle per run of cells.
    fn matrix(&mut self, row: usize, column: usize, scale: Scale) {
        let n = self.maps.tokens.len();
        let (x, y) = self.layout.origin(row, column);
        let (cell, side) = (self.layout.cell, round(self.layout.side));
        let mut paths: BTreeMap<i32, String> = BTreeMap::new();
        for (query, weights) in self.maps.matrix(row, column).chunks(n.max(1)).enumerate() {
            let levels: Vec<i32> = weights.iter().map(|weight| scale.level(*weight)).collect();
            let mut key = 0;
            for run in levels.chunk_by(|a, b| a == b) {
                if run[0] != 0 {
                    let path = paths.entry(run[0]).or_default();
                    let _ = write!(path, "M{key} {query}h{0}v1h-{0}z", run.len());
                }
                key += run.len();
            }
        }
        let name = format!("{}, {}", self.maps.rows[row], self.maps.columns[column]);
        let _ = writeln!(
            self.out,
            "<g transform=\"translate({} {})\"><title>{}</title>\
             <g transform=\"scale({})\" shape-rendering=\"crispEdges\">",
            round(x),
            round(y),
            escape_xml(&name),
            (cell * 1e6).round() / 1e6
        );
        for (level, path) in paths {
            let fill = hex(colour(level as f32 / LEVELS as f32, Theme::Light));
            let _ = writeln!(self.out, "<path fill=\"{fill}\" d=\"{path}\"/>");
        }
        let _ = writeln!(
            self.out,
            "</g><rect width=\"{side}\" height=\"{side}\" fill=\"none\" stroke=\"#9aa0b0\" stroke-width=\"1\"/>"
        );
        if self.maps.has_numbers {
            self.numbers(row, column, scale);
        }
        self.out.push_str("</g>\n");
    }

    /// The values of a matrix in the middle of their cells.
    fn numbers(&mut self, row: usize, column: usize, scale: Scale) {
        let (n, cell) = (self.maps.tokens.len(), self.layout.cell);
        let center = |i: usize| (i as f64 + 0.5) * cell;
        for (i, &value) in self.maps.matrix(row, column).iter().enumerate() {
            // White on the dark colours of large values.
            let fill = if scale.position(value).abs() > 0.5 { "#fff" } else { "#1c1e26" };
            let attributes = format!("text-anchor=\"middle\" fill=\"{fill}\"");
            let y = center(i / n) + 0.35 * NUMBER;
            self.text(center(i % n), y, NUMBER, &attributes, &label::number(value));
        }
    }

    fn legend(&mut self, scale: Scale) {
        let top = self.layout.height - MARGIN - LEGEND + 18.0;
        let first = if scale.has_negative { -(LEVELS as i32) } else { 0 };
        let levels = (LEVELS as i32 - first + 1) as f64;
        for (i, level) in (first..=LEVELS as i32).enumerate() {
            let fill = hex(colour(level as f32 / LEVELS as f32, Theme::Light));
            let _ = writeln!(
                self.out,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"12\" fill=\"{fill}\" shape-rendering=\"crispEdges\"/>",
                round(MARGIN + 8.0 + i as f64 * BAR / levels),
                round(top),
                round(BAR / levels + 0.5)
            );
        }
        for tick in scale.ticks() {
            let start = if scale.has_negative { -1.0 } else { 0.0 };
            let part = (f64::from(scale.position(tick)) - start) / (1.0 - start);
            let x = MARGIN + 8.0 + part * BAR;
            let tick = ((tick * 1000.0).round() / 1000.0).to_string();
            self.text(x, top + 26.0, 10.0, "text-anchor=\"middle\"", &tick);
        }
        let what = if scale.has_negative { "attention weight" } else { "attention probability" };
        self.text(MARGIN + 8.0, top - 5.0, 10.0, "fill=\"#555b6e\"", &format!("{what}, square root scale"));
    }
}

/// A coordinate with up to two decimals.
fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// Escapes text of XML, without the characters that XML does not allow.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::svg;
    use crate::figure::maps::tests::uniform;

    #[test]
    fn labels_are_escaped_and_special_tokens_marked() {
        let picture = svg(&uniform(&["[CLS]", "<b>&\u{1}", "שלום"]));
        assert!(picture.contains(">&lt;b&gt;&amp;\\u{1}</text>"), "{picture}");
        assert!(picture.contains("#7a4fb5\">[CLS]<") && picture.contains(">שלום<"), "{picture}");
    }

    #[test]
    fn equal_neighbours_share_a_rectangle_and_zeros_have_none() {
        let mut maps = uniform(&["a", "b"]);
        maps.values = vec![1.0, 0.0, 0.5, 0.5];
        let picture = svg(&maps);
        let paths: Vec<&str> =
            picture.split(" d=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(paths, ["M0 1h2v1h-2z", "M0 0h1v1h-1z"]);
    }

    #[test]
    fn numbers_are_readable_in_every_cell() {
        let mut maps = uniform(&["a", "b"]);
        maps.values = vec![1.0, 0.0, 0.25, -0.5];
        assert!(!svg(&maps).contains(">0.00</text>"));
        maps.has_numbers = true;
        let picture = svg(&maps);
        for number in ["fill=\"#fff\">1.00<", "fill=\"#1c1e26\">0.00<", ">0.25<", ">-0.50<"] {
            assert!(picture.contains(number), "{number}: {picture}");
        }
    }

    #[test]
    fn the_text_is_a_subtitle_that_fits_the_picture() {
        let mut maps = uniform(&["a", "b"]);
        let mut subtitle = |text: String| {
            maps.text = text;
            let picture = svg(&maps);
            let line = picture.lines().find(|line| line.contains("unicode-bidi=\"plaintext\">"));
            let line = line.unwrap_or_default().to_owned();
            line.split(['<', '>']).nth(2).unwrap_or_default().to_owned()
        };
        assert_eq!(subtitle("a\n<b>".into()), "a\\n&lt;b&gt;");
        let long = subtitle("lamp ".repeat(100));
        assert!(long.ends_with('…') && (50..70).contains(&long.chars().count()), "{long}");
        let wide = subtitle("灯".repeat(100));
        assert!((25..35).contains(&wide.chars().count()), "{wide}");
    }

    /// A grid has labels for short texts only; its matrices do not overlap.
    #[test]
    fn grids_have_a_place_for_every_matrix() {
        for (tokens, is_labelled) in [(6, true), (60, false)] {
            let words: Vec<String> = (0..tokens).map(|i| format!("t{i}")).collect();
            let mut maps = uniform(&words.iter().map(String::as_str).collect::<Vec<_>>());
            maps.rows = (0..2).map(|i| format!("layer {i}")).collect();
            maps.columns = (0..3).map(|i| format!("head {i}")).collect();
            maps.values = maps.values.repeat(6);
            let picture = svg(&maps);
            assert_eq!(picture.contains(">t5</text>"), is_labelled);
            let origins: Vec<&str> = picture.split("<g transform=\"translate(").skip(1).collect();
            assert_eq!(origins.len(), 6);
            let mut places: Vec<&str> = origins.iter().filter_map(|rest| rest.split(')').next()).collect();
            places.dedup();
            assert_eq!(places.len(), 6);
        }
    }
}
