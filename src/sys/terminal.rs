//! Messages on standard error. [`escape_controls`] is applied to all of them, so that no file name and no
//! server response can send control sequences to a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;

/// Escapes control characters, line breaks and bidirectional formatting characters of a message.
pub fn escape_controls(message: &str) -> Cow<'_, str> {
    if !message.contains(needs_escape) {
        return Cow::Borrowed(message);
    }
    let mut escaped = String::with_capacity(message.len() + 16);
    for c in message.chars() {
        match c {
            '\t' | '\n' | '\r' => escaped.extend(c.escape_default()),
            c if needs_escape(c) => {
                write!(escaped, "\\u{{{:x}}}", u32::from(c)).expect("writing to a String does not fail")
            }
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

fn needs_escape(c: char) -> bool {
    let is_line_separator = matches!(c, '\u{2028}' | '\u{2029}');
    let is_bidi_control =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_line_separator || is_bidi_control
}

/// The columns of the terminal that standard output is; `None` if it is none.
pub fn stdout_columns() -> Option<usize> {
    #[cfg(unix)]
    {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }
    #[cfg(not(unix))]
    None
}

/// Prints `sconce: message` as one line on standard error. Write errors are ignored: the exit code still
/// reports a failure.
pub fn eprint_message(message: &str) {
    let _ = writeln!(std::io::stderr(), "sconce: {}", escape_controls(message));
}

/// Prints a line for programs, such as JSON, on standard error as it is. Write errors are ignored.
pub fn eprint_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::escape_controls;

    #[test]
    fn control_characters_are_escaped_and_letters_are_not() {
        assert_eq!(escape_controls("größe 日本 🦀 \"a\" \\n"), "größe 日本 🦀 \"a\" \\n");
        assert_eq!(escape_controls("\u{1b}]0;title\u{7}\r\nx\t"), "\\u{1b}]0;title\\u{7}\\r\\nx\\t");
        assert_eq!(
            escape_controls("a\u{9b}31m\u{7f}\u{202e}b\u{2028}"),
            "a\\u{9b}31m\\u{7f}\\u{202e}b\\u{2028}"
        );
    }
}
