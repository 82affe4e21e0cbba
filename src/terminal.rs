//! Standard error. Everything that is written there passes through [`printable`], so that no file and no server can
//! send control sequences to a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;

/// The message with control characters, and those that change the direction of text or break a line, as escapes.
pub fn printable(message: &str) -> Cow<'_, str> {
    if !message.contains(is_unprintable) {
        return Cow::Borrowed(message);
    }
    let mut escaped = String::with_capacity(message.len() + 16);
    for c in message.chars() {
        match c {
            '\t' | '\n' | '\r' => escaped.extend(c.escape_default()),
            c if is_unprintable(c) => {
                write!(escaped, "\\u{{{:x}}}", u32::from(c)).expect("a string can be written")
            }
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

fn is_unprintable(c: char) -> bool {
    let breaks_lines = matches!(c, '\u{2028}' | '\u{2029}');
    let turns_text =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || breaks_lines || turns_text
}

/// Writes one line to standard error. One that cannot be written to is no reason to stop.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "sconce: {}", printable(message));
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_are_escaped_and_letters_are_not() {
        assert_eq!(printable("größe 日本 🦀 \"a\" \\n"), "größe 日本 🦀 \"a\" \\n");
        assert_eq!(printable("\u{1b}]0;title\u{7}\r\nx\t"), "\\u{1b}]0;title\\u{7}\\r\\nx\\t");
        assert_eq!(printable("a\u{9b}31m\u{7f}\u{202e}b\u{2028}"), "a\\u{9b}31m\\u{7f}\\u{202e}b\\u{2028}");
    }
}
