//! Comma-separated values with a header: `index`, `id` if rows have ids, the columns of [`Span`] if rows are
//! chunks, `tokens`, `truncated`, the kept columns, and the content: for vectors `scale` for `int8`, and the
//! elements as `e0`, `e1` and so on, or the vector as `[0.1,0.2]` in a column whose name the user has chosen;
//! for scores `rank` if rows are sorted, and `score`; for labels
//! `labels`, for masks `masks`, for sparse vectors `weights`, for entities `entities`, for answers `answers`
//! and `no_answer`, lists and maps as JSON. Null is an empty field.

use std::borrow::Cow;

use anyhow::Result;

use crate::formats::encoder::RowEncoder;
use crate::formats::jsonl::write::Weights;
use crate::rows::columns::{INDEX, RANK, SCALE, SCORE, TOKENS, TRUNCATED, WEIGHTS, element};
use crate::rows::{Content, ContentType, FieldValue, OutputDtype, OutputSchema, Row, Span, to_text};

/// Encodes rows as CSV.
pub(crate) struct CsvEncoder {
    schema: OutputSchema,
}

impl CsvEncoder {
    /// An encoder for rows of `schema`.
    pub(crate) fn new(schema: &OutputSchema) -> Self {
        CsvEncoder { schema: schema.clone() }
    }
}

impl RowEncoder for CsvEncoder {
    fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        append_record(bytes, column_names(&self.schema));
        Ok(())
    }

    fn encode(&mut self, row: &Row, bytes: &mut Vec<u8>) -> Result<()> {
        let id = self.schema.ids.as_ref().map(|_| row.id.and_then(to_text).unwrap_or_default());
        let [index, tokens, truncated] =
            [row.index.to_string(), row.tokens.to_string(), row.truncated.to_string()].map(Cow::Owned);
        let kept = row.kept.iter().map(|value| Cow::Owned(text(value)));
        let chunk =
            row.chunk.iter().flat_map(|chunk| chunk.values()).map(|value| Cow::Owned(value.to_string()));
        let fields = [index].into_iter().chain(id).chain(chunk).chain([tokens, truncated]).chain(kept);
        let content = match row.content {
            Content::Null => {
                vec![String::new(); content_names(&self.schema.content, self.schema.vector_column()).len()]
            }
            content => content_fields(content, self.schema.vector_column().is_some())?,
        };
        append_record(bytes, fields.chain(content.into_iter().map(Cow::Owned)));
        Ok(())
    }
}

/// The header.
pub(crate) fn column_names(schema: &OutputSchema) -> impl Iterator<Item = Cow<'_, str>> {
    let id = schema.ids.as_ref().map(|_| schema.metadata.id_column());
    let chunk = Span::NAMES.into_iter().filter(|_| schema.chunks);
    let names = [INDEX].into_iter().chain(id).chain(chunk).chain([TOKENS, TRUNCATED]);
    let names = names.chain(schema.kept.iter().map(|column| column.name.as_str()));
    names.map(Cow::Borrowed).chain(content_names(&schema.content, schema.vector_column()))
}

/// Appends a line with these values of the columns of a table.
pub(crate) fn append_values(bytes: &mut Vec<u8>, row: &[FieldValue]) {
    append_record(bytes, row.iter().map(|value| Cow::Owned(text(value))));
}

/// A value as a field.
fn text(value: &FieldValue) -> String {
    to_text(&value.json()).unwrap_or_default().into_owned()
}

/// The names of the columns of the content. `vector` is that of the only column of the vector, if it has one.
fn content_names<'a>(content: &ContentType, vector: Option<&'a str>) -> Vec<Cow<'a, str>> {
    match content {
        ContentType::Vectors(vectors) => {
            let scale = (vectors.dtype == OutputDtype::Int8).then_some(Cow::Borrowed(SCALE));
            let elements = (0..vectors.width()).map(|i| Cow::Owned(element(i)));
            match vector {
                Some(name) => scale.into_iter().chain([Cow::Borrowed(name)]).collect(),
                None => scale.into_iter().chain(elements).collect(),
            }
        }
        ContentType::Scores { ranked } => {
            ranked.then_some(RANK).into_iter().chain([SCORE]).map(Cow::Borrowed).collect()
        }
        ContentType::Sparse { .. } => vec![Cow::Borrowed(WEIGHTS)],
        ContentType::Outputs(outputs) => {
            outputs.parts().flat_map(|part| content_names(&part, None)).collect()
        }
        ContentType::Labels | ContentType::Masks | ContentType::Spans(_) => {
            content.column_names().iter().copied().map(Cow::Borrowed).collect()
        }
    }
}

/// The fields of the content, in the order of [`content_names`].
fn content_fields(content: &Content, is_one_column: bool) -> Result<Vec<String>> {
    Ok(match content {
        Content::Vector(vector) => {
            let scale = vector.scale.map(|scale| scale.to_string());
            let elements = vector.values.to_strings();
            match is_one_column {
                true => scale.into_iter().chain([format!("[{}]", elements.join(","))]).collect(),
                false => scale.into_iter().chain(elements).collect(),
            }
        }
        Content::Score { score, rank } => {
            rank.map(|rank| rank.to_string()).into_iter().chain([score.to_string()]).collect()
        }
        // The encoder knows how many columns are empty.
        Content::Null => Vec::new(),
        Content::Labels(labels) => vec![serde_json::to_string(labels)?],
        Content::Masks(masks) => vec![serde_json::to_string(masks)?],
        Content::Sparse(vector) => vec![serde_json::to_string(&Weights(vector))?],
        Content::Entities(entities) => vec![serde_json::to_string(entities)?],
        Content::Answers { answers, no_answer } => {
            vec![serde_json::to_string(answers)?, no_answer.to_string()]
        }
        Content::Outputs(outputs) => {
            outputs.iter().map(|output| content_fields(output, false)).collect::<Result<Vec<_>>>()?.concat()
        }
    })
}

/// Appends a line with these fields, quoted where necessary: without the buffer that a writer of the `csv`
/// crate allocates.
pub(crate) fn append_record<'a>(bytes: &mut Vec<u8>, fields: impl Iterator<Item = Cow<'a, str>>) {
    let start = bytes.len();
    for (i, field) in fields.enumerate() {
        if i > 0 {
            bytes.push(b',');
        }
        if field.contains(['"', ',', '\r', '\n']) {
            bytes.push(b'"');
            bytes.extend_from_slice(field.replace('"', "\"\"").as_bytes());
            bytes.push(b'"');
        } else {
            bytes.extend_from_slice(field.as_bytes());
        }
    }
    // An empty line is no row.
    if bytes.len() == start {
        bytes.extend_from_slice(b"\"\"");
    }
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::append_record;

    /// As the `csv` crate writes them.
    #[test]
    fn every_row_of_few_characters_is_written_as_the_csv_crate_writes_it() {
        let characters = ["", "a", "\"", ",", "\r", "\n", " ", "é", "'"];
        let fields = || characters.iter().flat_map(|a| characters.iter().map(move |b| format!("{a}{b}")));
        let rows = fields().map(|field| vec![field]);
        let rows = rows.chain(fields().flat_map(|a| fields().map(move |b| vec![a.clone(), b])));
        for row in rows {
            let (mut found, mut expected) = (b"a\n".to_vec(), b"a\n".to_vec());
            append_record(&mut found, row.iter().map(Into::into));
            csv::Writer::from_writer(&mut expected).write_record(&row).unwrap();
            assert_eq!(found, expected, "{row:?}");
        }
    }

    #[test]
    fn fields_are_quoted_where_necessary() {
        let mut bytes = b"a\n".to_vec();
        append_record(&mut bytes, ["1", "", "x, y", "\"z\"", "two\nlines"].into_iter().map(Into::into));
        assert_eq!(bytes, b"a\n1,,\"x, y\",\"\"\"z\"\"\",\"two\nlines\"\n");
    }
}
