//! Places in texts, for people: the score, the file and the line of each chunk that is found, and its first
//! words, or its lines with those around it.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;

use anyhow::Result;
use unicode_width::UnicodeWidthChar;

use super::texts::{COLUMNS, SearchedTexts};
use super::{NeighbourWeights, SearchOptions};
use crate::formats::{MAX_CELL_CHARS, cell, on_one_line};
use crate::input::{Entries, Entry, Fields, Source};
use crate::neighbours::Neighbour;
use crate::rows::FieldValue;
use crate::rows::columns::{SCORE, WEIGHT};
use crate::store::{Access, Destination, OutputLock, Target};
use crate::sys::terminal::{escape_controls, stdout_columns};
use crate::vectors::VectorFile;

/// Columns of a terminal that the first words have at least, whatever is before them.
const MIN_WORDS_WIDTH: usize = 20;
/// Spaces that stand for a tab.
const TAB: &str = "    ";

/// Writes the places of all queries.
pub(super) fn write(
    options: &SearchOptions,
    texts: &SearchedTexts,
    file: &VectorFile,
    lock: &OutputLock,
    found: &[Vec<Neighbour>],
) -> Result<()> {
    let columns = if options.output == Target::Stdout { stdout_columns() } else { None };
    let mut page = Places { texts, weights: options.weights, columns, contents: HashMap::new() };
    let mut output = Destination::open(lock, None, Access::Sequential)?;
    let mut write = |output: &mut Destination| {
        for (query, neighbours) in found.iter().enumerate() {
            let number = if found.len() > 1 { format!("{query}  ") } else { String::new() };
            output.append(page.places(&number, file, neighbours)?.as_bytes())?;
        }
        Ok(())
    };
    match write(&mut output) {
        Ok(()) => output.commit(),
        Err(error) => {
            drop(output);
            let _ = lock.discard();
            Err(error)
        }
    }
}

/// All places of a page.
struct Places<'a> {
    texts: &'a SearchedTexts,
    weights: Option<NeighbourWeights>,
    /// The width of the terminal, if the page is printed on one.
    columns: Option<usize>,
    /// The texts that were read again, by their names; `None` for one that cannot be read any more.
    contents: HashMap<String, Option<String>>,
}

impl Places<'_> {
    /// The places of a query, each after the number of the query.
    fn places(&mut self, number: &str, file: &VectorFile, neighbours: &[Neighbour]) -> Result<String> {
        let mut rows: Vec<usize> = neighbours.iter().map(|neighbour| neighbour.index).collect();
        rows.sort_unstable();
        let fields = file.values(&rows, &(0..COLUMNS.len()).collect::<Vec<_>>())?;
        let scores: Vec<f32> = neighbours.iter().map(|neighbour| neighbour.score).collect();
        let weights = self.weights.map(|weights| weights.of_scores(&scores));
        let mut page = String::new();
        for (i, neighbour) in neighbours.iter().enumerate() {
            let score = cell(SCORE, &neighbour.score.into());
            let weight = weights.as_ref().map(|weights| format!("  {}", cell(WEIGHT, &weights[i].into())));
            let prefix = format!("{number}{score}{}  ", weight.unwrap_or_default());
            self.add(&mut page, &prefix, &fields[rows.partition_point(|row| *row < neighbour.index)]);
        }
        Ok(page)
    }

    /// Adds a place with these fields, see [`COLUMNS`].
    fn add(&mut self, page: &mut String, prefix: &str, fields: &[FieldValue]) {
        let [name, text] = [0, 3].map(|i| fields[i].json().as_str().unwrap_or_default().to_owned());
        let [line, end_line] = [1, 2].map(|i| fields[i].json().as_u64().unwrap_or_default());
        let start = format!("{prefix}{}:{line}: ", escape_controls(&name));
        let width = self
            .columns
            .map_or(MAX_CELL_CHARS, |columns| columns.saturating_sub(width_of(&start)).max(MIN_WORDS_WIDTH));
        page.push_str(&start);
        page.push_str(&clipped(&on_one_line(&text), width));
        page.push('\n');
        if let Some(around) = self.texts.context {
            self.add_lines(page, &name, line..end_line + 1, around as u64);
        }
    }

    /// Adds the lines of a chunk and those around it, with their numbers, and an empty line.
    fn add_lines(&mut self, page: &mut String, name: &str, chunk: Range<u64>, around: u64) {
        let sources = &self.texts.sources;
        let read = || sources.iter().find(|source| source.path.to_string() == name).and_then(text_of);
        let text = self.contents.entry(name.to_owned()).or_insert_with(read);
        let first = chunk.start.saturating_sub(around).max(1);
        let shown = first..chunk.end + around;
        let lines = text.iter().flat_map(|text| text.lines()).zip(1u64..).skip(first as usize - 1);
        let digits = shown.end.to_string().len();
        for (line, number) in lines.take_while(|(_, number)| shown.contains(number)) {
            let mark = if chunk.contains(&number) { ':' } else { '-' };
            let line = line.replace('\t', TAB);
            let line = format!("{number:>digits$}{mark} {}", escape_controls(line.trim_end()));
            let line = match self.columns {
                Some(columns) => clipped(&line, columns),
                None => line,
            };
            // Writing to a string does not fail.
            let _ = writeln!(page, "{}", line.trim_end());
        }
        page.push('\n');
    }
}

/// The text of a file, read again.
fn text_of(source: &Source) -> Option<String> {
    match Entries::open(vec![source.clone()], Fields::default()).ok()?.next()?.ok()? {
        Entry::Record(record) => Some(record.text),
        Entry::Unreadable(_) => None,
    }
}

/// The width of a text in columns of a terminal.
fn width_of(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// A text in at most `width` columns; a longer one ends in an ellipsis.
fn clipped(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    let start: String = text.chars().take_while(fits).collect();
    format!("{}…", start.trim_end())
}

#[cfg(test)]
mod tests {
    use super::clipped;

    #[test]
    fn texts_are_clipped_to_columns() {
        for (text, width, expected) in [
            ("a lamp", 6, "a lamp"),
            ("a lamp", 5, "a la…"),
            ("a lamp", 3, "a…"),
            ("灯火が", 6, "灯火が"),
            ("灯火が", 5, "灯火…"),
            ("灯火が", 4, "灯…"),
            ("lamp", 0, "…"),
        ] {
            assert_eq!(clipped(text, width), expected, "{text} {width}");
        }
    }
}
