//! Heat maps in the characters of a terminal.

use std::fmt::Write;

use super::HeatMaps;
use super::colour::{Scale, Theme, colour, xterm};
use super::label;
use crate::sys::terminal::escape_controls;

/// Maximum tokens of a picture: two columns per token and a label fit into a wide terminal.
pub const MAX_TOKENS: usize = 64;
/// Maximum tokens of a picture with numbers, which takes five columns per token.
pub const MAX_NUMBERED_TOKENS: usize = 24;

/// Characters by weight, without colours: from 0 to the maximum, in ten steps of the same size on the scale.
const RAMP: &[u8; 10] = b" .:-=+*#%@";
/// The character of a negative weight, without colours.
const NEGATIVE: char = '~';
/// Maximum characters of a label.
const MAX_LABEL: usize = 30;

/// The matrices one after the other, a line per query and two columns per key, or five with numbers: in the
/// colours of a 256-colour terminal, or in plain characters. Labels come last in a line, so that text of any
/// direction and width keeps the columns in place.
pub fn text(maps: &HeatMaps, has_colours: bool) -> String {
    let scale = Scale::of(maps);
    let mut out = String::new();
    for (row, row_name) in maps.rows.iter().enumerate() {
        for (column, column_name) in maps.columns.iter().enumerate() {
            let _ = writeln!(out, "{}, {row_name}, {column_name}", escape_controls(&maps.title));
            write_matrix(&mut out, maps, maps.matrix(row, column), scale, has_colours);
            out.push('\n');
        }
    }
    out.push_str("rows: queries, columns: keys");
    if has_colours || !maps.has_numbers {
        write_legend(&mut out, scale, has_colours);
    }
    out.push('\n');
    out
}

fn write_matrix(out: &mut String, maps: &HeatMaps, matrix: &[f32], scale: Scale, has_colours: bool) {
    let labels = maps.labels(MAX_LABEL);
    let n = labels.len();
    let margin = n.saturating_sub(1).to_string().len();
    if maps.has_numbers {
        let keys: String = (0..n).map(|key| format!("{key:>5}")).collect();
        let _ = writeln!(out, "{:margin$} {keys}", "");
    } else {
        write_keys(out, n, margin);
    }
    for (query, label) in labels.iter().enumerate() {
        let _ = write!(out, "{query:>margin$} ");
        for value in &matrix[query * n..][..n] {
            let cell = if maps.has_numbers { numbered_cell } else { cell };
            out.push_str(&cell(*value, scale, has_colours));
        }
        let _ = writeln!(out, " {label}");
    }
}

/// The indices of `n` keys, read downward, to the right of `margin` columns.
fn write_keys(out: &mut String, n: usize, margin: usize) {
    for digit in 0..margin {
        let _ = write!(out, "{:margin$} ", "");
        for key in 0..n {
            let index = format!("{key:>margin$}");
            let _ = write!(out, "{} ", &index[digit..=digit]);
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
}

/// A value in two columns.
fn cell(value: f32, scale: Scale, has_colours: bool) -> String {
    let position = scale.position(value);
    if has_colours {
        return format!("\x1b[48;5;{}m  \x1b[0m", xterm(colour(position, Theme::Dark)));
    }
    let step = (position.abs() * RAMP.len() as f32) as usize;
    let shade = char::from(RAMP[step.min(RAMP.len() - 1)]);
    if position < 0.0 && step > 0 { format!("{NEGATIVE}{shade}") } else { format!("{shade} ") }
}

/// A value as a number in five columns.
fn numbered_cell(value: f32, scale: Scale, has_colours: bool) -> String {
    let number = label::number(value);
    if !has_colours {
        return format!("{number:>5}");
    }
    let position = scale.position(value);
    // White on the dark colours of small values, black on the light ones.
    let text = if position.abs() < 0.6 { 231 } else { 16 };
    format!("\x1b[48;5;{};38;5;{text}m{number:>5}\x1b[0m", xterm(colour(position, Theme::Dark)))
}

fn write_legend(out: &mut String, scale: Scale, has_colours: bool) {
    out.push(';');
    for tick in scale.ticks() {
        let _ = write!(out, "  {}{tick}", cell(tick, scale, has_colours));
    }
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::figure::maps::tests::uniform;

    #[test]
    fn plain_characters_have_no_control_sequence() {
        let mut maps = uniform(&["[CLS]", "a\u{1b}b", "灯"]);
        maps.values = vec![1.0, 0.0, 0.25, 0.0, 1.0, 0.01, 0.04, 0.0, 0.96];
        let expected = "\
model, layer 0, head 0
  0 1 2
0 @   +  [CLS]
1   @ .  a\\u{1b}b
2 :   @  灯

rows: queries, columns: keys;    0  . 0.01  : 0.05  = 0.2  # 0.5  @ 1
";
        assert_eq!(text(&maps, false), expected);
        let coloured = text(&maps, true);
        assert!(coloured.contains("\x1b[48;5;") && !coloured.contains("a\x1b"), "{coloured:?}");
    }

    #[test]
    fn numbers_are_in_the_columns_of_their_keys() {
        let mut maps = uniform(&["[CLS]", "a", "灯"]);
        maps.values = vec![1.0, 0.0, 0.25, -0.5, 1.0, 0.01, 0.04, 0.0, 0.96];
        maps.has_numbers = true;
        let expected = "\
model, layer 0, head 0
      0    1    2
0  1.00 0.00 0.25 [CLS]
1 -0.50 1.00 0.01 a
2  0.04 0.00 0.96 灯

rows: queries, columns: keys
";
        assert_eq!(text(&maps, false), expected);
        let coloured = text(&maps, true);
        for part in ["38;5;16m 1.00\x1b[0m", "38;5;231m 0.00\x1b[0m", "keys;  \x1b["] {
            assert!(coloured.contains(part), "{coloured:?}");
        }
    }
}
