//! Labels of tokens.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::sys::terminal::escape_controls;

/// A token with its white space, control characters and bidirectional formatting characters made visible.
pub(super) fn visible(token: &str) -> String {
    if token.is_empty() {
        return "∅".into();
    }
    let visible = |c: char| match c {
        ' ' | '\u{a0}' | '\u{3000}' => '␣',
        c if c.is_whitespace() && !c.is_control() => '␣',
        c => c,
    };
    escape_controls(&token.chars().map(visible).collect::<String>()).into_owned()
}

/// The first characters of a label and an ellipsis, if it has more than `max_chars`.
pub(super) fn shortened(label: &str, max_chars: usize) -> String {
    if label.chars().count() <= max_chars {
        return label.into();
    }
    label.chars().take(max_chars - 1).chain(['…']).collect()
}

/// A value with two digits, as cells show it.
pub(super) fn number(value: f32) -> String {
    // Without the sign of a value that is rounded to zero.
    let rounded = if value.abs() < 0.005 { 0.0 } else { value };
    format!("{rounded:.2}")
}

/// Columns of a monospace font that a label takes.
pub(super) fn width(label: &str) -> usize {
    UnicodeWidthStr::width(label)
}

/// Whether a character takes no column of its own, such as a combining mark.
pub(super) fn is_zero_width(c: char) -> bool {
    UnicodeWidthChar::width(c).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::{number, shortened, visible, width};

    #[test]
    fn numbers_have_two_digits_and_zero_no_sign() {
        let numbers = [0.0, 1.0, 0.004, -0.004, -0.006, 0.996, f32::NAN].map(number);
        assert_eq!(numbers, ["0.00", "1.00", "0.00", "0.00", "-0.01", "1.00", "NaN"]);
    }

    #[test]
    fn white_space_and_control_characters_are_visible() {
        let found = ["", "a b", "\n", "\u{3000}", "\u{202e}x", "▁de"].map(visible);
        assert_eq!(found, ["∅", "a␣b", "\\n", "␣", "\\u{202e}x", "▁de"]);
    }

    #[test]
    fn long_labels_are_shortened_by_characters() {
        assert_eq!(shortened("größer", 6), "größer");
        assert_eq!(shortened("größere", 6), "größe…");
        assert_eq!([width("灯台"), width("שלום"), width("e\u{301}")], [4, 4, 1]);
    }
}
