//! Hints: what was typed can be done, but is likely to be a slip.

use std::path::Path;

use super::Input;
use super::records::Records;
use crate::input::{Format, Source};
use crate::run::Console;

/// Says so if an argument, which is a text, is the name of a file.
pub fn of_arguments(input: &Input, console: &Console) {
    let Input::Texts(texts) = input else { return };
    let is_file = |text: &&String| {
        let path = Path::new(text);
        path.is_file() || (text.contains('/') && path.is_dir())
    };
    if let Some(name) = texts.iter().find(is_file) {
        console.note(format!(
            "hint: {name:?} is embedded as a text; pass --input {name} to embed what is in the file"
        ));
    }
}

/// Says so if what is read as lines looks like something else by its first record.
pub fn of_records(input: &Input, records: &mut Records, console: &Console) {
    let Some(source) = input.sources().first().filter(|source| source.format == Format::Lines) else {
        return;
    };
    let Some(text) = records.first_text() else { return };
    if let Some((what, remedy)) = looks_like(&text) {
        console.note(format!(
            "hint: {} looks like {what}, but each of its lines is a text; {remedy}",
            shown(source)
        ));
    }
}

fn shown(source: &Source) -> String {
    source.place.to_string()
}

/// What a line looks like, and what to do about it.
fn looks_like(line: &str) -> Option<(&'static str, &'static str)> {
    let line = line.trim();
    let begins = |name: &str| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    if line.starts_with('{') && serde_json::from_str::<serde_json::Map<_, _>>(line).is_ok() {
        Some(("JSON lines", "pass --input-format jsonl to embed a field of each object"))
    } else if begins("<!doctype html") || begins("<html") {
        Some(("HTML", "take its text out first, since its tags are embedded, too"))
    } else {
        None
    }
}
