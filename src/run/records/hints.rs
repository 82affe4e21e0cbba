//! Hints about probable mistakes: the path of a file as a text, JSON or HTML as lines of text.

use std::path::Path;

use super::Input;
use crate::input::Format;
use crate::job::RecordSource;
use crate::sys::console::Console;

/// Prints a hint if a text on the command line is the path of a file.
pub(super) fn of_arguments(input: &Input, console: &Console) {
    let Input::Texts(texts) = input else { return };
    let is_file = |text: &&String| {
        let path = Path::new(text);
        path.is_file() || (text.contains('/') && path.is_dir())
    };
    if let Some(name) = texts.iter().find(is_file) {
        console.note(format!(
            "hint: {name:?} is taken as a text; pass --input {name} to read the contents of the file"
        ));
    }
}

/// Prints a note if the first input is UTF-16, and a hint if the first line of a text file is JSON or HTML.
pub(super) fn of_records(input: &Input, records: &mut RecordSource, console: &Console) {
    let Some(source) = input.sources().first().filter(|source| !source.format.is_binary()) else { return };
    let text = records.first_text();
    if records.is_utf16() {
        console.note(format!("{} is UTF-16; it is converted to UTF-8", source.path));
    }
    let Some(text) = text.filter(|_| source.format == Format::Lines) else { return };
    if let Some((format, remedy)) = detect(&text) {
        let source = &source.path;
        console.note(format!(
            "hint: {source} looks like {format}, but each of its lines is taken as a text; {remedy}"
        ));
    }
}

/// The format that a line looks like, and the remedy.
fn detect(line: &str) -> Option<(&'static str, &'static str)> {
    let line = line.trim();
    let starts = |name: &str| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    if line.starts_with('{') && serde_json::from_str::<serde_json::Map<_, _>>(line).is_ok() {
        Some(("JSON lines", "pass --input-format jsonl to read a field of each object"))
    } else if starts("<!doctype html") || starts("<html") {
        Some(("HTML", "convert it to text first, because its tags are taken as text, too"))
    } else {
        None
    }
}
