//! JSON lines: a vector in `"embedding"` or one per token in `"embeddings"`, and for int8 its `"scale"`; a sparse vector in `"weights"`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::batch::{TOKEN_VECTORS, VECTORS, is_shown};
use super::buffer::BlockBuffer;
use super::error::{no_vectors, token_integers};
use super::records::{RecordReader, Records, VisitRecord};
use super::source::{Opened, RowKind};
use super::sparse::{TokenNumbers, WEIGHTS};
use crate::field::FieldValue;
use crate::neighbours::Block;
use crate::output::{ColumnType, KeptColumn, OutputDtype, OutputMetadata};

/// Size in bytes at which a unit of lines ends.
const UNIT_BYTES: u64 = 1 << 19;
const BUFFER_BYTES: usize = 1 << 16;
/// Maximum size of a line in bytes. A longer one is cut, and then is no JSON.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// An indexed file.
struct JsonLines {
    name: Arc<str>,
    path: PathBuf,
    layout: Layout,
    /// The numbers of the tokens of sparse vectors.
    token_numbers: Option<Arc<TokenNumbers>>,
    columns: Vec<KeptColumn>,
    /// The rows of each unit.
    units: Vec<Range<usize>>,
    /// Offset of each unit, in bytes.
    offsets: Vec<u64>,
}

/// What the lines hold.
struct Layout {
    kind: RowKind,
    dtype: OutputDtype,
    /// Stored elements of a vector; 0 if vectors are sparse.
    width: usize,
    dimensions: usize,
}

/// The fields of a line with a sparse vector. Sums over its elements are in the order of the tokens.
#[derive(Deserialize)]
struct SparseLine {
    weights: Option<BTreeMap<String, f32>>,
}

/// The fields of a line that are vectors of floats.
#[derive(Deserialize)]
struct FloatLine {
    embedding: Option<Vec<f32>>,
}

/// The fields of a line with int8 elements.
#[derive(Deserialize)]
struct Int8Line {
    embedding: Option<Vec<i8>>,
    scale: Option<f32>,
}

/// The fields of a line with one vector of floats per token.
#[derive(Deserialize)]
struct FloatTokensLine {
    embeddings: Option<Vec<Vec<f32>>>,
}

/// Counts the lines of a file, and reads the first one.
pub(super) fn open(path: &Path, name: &Arc<str>) -> Result<Opened> {
    let unread = |error| anyhow!("cannot read {name} ({error}); check the file");
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(unread)?);
    let first = first_with_vector(name, &mut reader)?;
    let layout = Layout::new(name, &first)?;
    let Layout { kind, dtype, dimensions, .. } = layout;
    let has_sparse = kind.is_sparse() || first.get(WEIGHTS).is_some_and(Value::is_object);
    let columns = first.keys().filter(|key| is_shown(key, has_sparse));
    let columns =
        columns.map(|key| KeptColumn { name: key.clone(), column_type: ColumnType::Text }).collect();
    reader.rewind().map_err(unread)?;
    let (units, offsets) = index(&mut reader).map_err(unread)?;
    let rows = units.last().map_or(0, |unit| unit.end);
    let token_numbers = (kind == RowKind::SparseByToken).then(Arc::default);
    let (name, path, numbers) = (name.clone(), path.into(), token_numbers.clone());
    let file = Arc::new(JsonLines { name, path, layout, token_numbers: numbers, columns, units, offsets });
    let (vectors, columns) = (Box::new(RecordReader(file.clone())), Box::new(RecordReader(file)));
    let metadata = OutputMetadata::new();
    Ok(Opened { rows, dimensions, kind, token_numbers, dtype, metadata, vectors, columns })
}

/// The fields of the first line that has a vector, or of the first line if none has.
fn first_with_vector(name: &str, reader: &mut impl BufRead) -> Result<Map<String, Value>> {
    let (mut line, mut row, mut first) = (String::new(), 0, None);
    loop {
        line.clear();
        let read = reader.take(MAX_LINE_BYTES).read_line(&mut line);
        if read.map_err(|error| anyhow!("cannot read {name} ({error}); check the file"))? == 0 {
            return first.ok_or_else(|| no_vectors(name, "lines"));
        }
        if line.trim().is_empty() {
            continue;
        }
        let fields: Map<String, Value> = serde_json::from_str(&line).map_err(|error| {
            anyhow!("{name}: row {row} is not a JSON object ({error}); write the file again")
        })?;
        let has_vector = |key: &str| fields.get(key).is_some_and(|value| !value.is_null());
        if [VECTORS, TOKEN_VECTORS, WEIGHTS].into_iter().any(has_vector) {
            return Ok(fields);
        }
        // A file of other objects is not read to its end.
        if ![VECTORS, TOKEN_VECTORS, WEIGHTS].into_iter().any(|key| fields.contains_key(key)) {
            return Ok(first.unwrap_or(fields));
        }
        first.get_or_insert(fields);
        row += 1;
    }
}

impl Layout {
    /// Finds the vector in the fields of the first line.
    ///
    /// # Errors
    /// If there is none.
    fn new(name: &str, first: &Map<String, Value>) -> Result<Self> {
        if !first.contains_key(VECTORS) && !first.contains_key(TOKEN_VECTORS) && first.contains_key(WEIGHTS) {
            let (kind, dtype) = (RowKind::SparseByToken, OutputDtype::F32);
            return Ok(Layout { kind, dtype, width: 0, dimensions: 0 });
        }
        let per_token = !first.contains_key(VECTORS);
        let (key, expected) =
            if per_token { (TOKEN_VECTORS, "a list of vectors") } else { (VECTORS, "a list of numbers") };
        let Some(vector) = first.get(key) else { return Err(no_vectors(name, "field \"embedding\"")) };
        let vector = if per_token { vector.get(0) } else { Some(vector) };
        let Some(elements) = vector.and_then(Value::as_array) else {
            bail!("{name}: \"{key}\" of row 0 is not {expected}; write the file again");
        };
        // Floats are written with a decimal point.
        let is_int8 = !elements.is_empty() && elements.iter().all(Value::is_i64);
        let dtype = match first.get("scale") {
            Some(scale) if is_int8 && !scale.is_string() => OutputDtype::Int8,
            None if is_int8 => OutputDtype::Binary,
            _ => OutputDtype::F32,
        };
        if per_token && dtype != OutputDtype::F32 {
            return Err(token_integers(name));
        }
        let width = elements.len();
        let dimensions = if dtype == OutputDtype::Binary { 8 * width } else { width };
        let kind = if per_token { RowKind::PerToken } else { RowKind::Dense };
        Ok(Layout { kind, dtype, width, dimensions })
    }
}

/// The units of a file and their offsets. Empty lines are no rows.
fn index(reader: &mut impl BufRead) -> std::io::Result<(Vec<Range<usize>>, Vec<u64>)> {
    let (mut units, mut offsets) = (Vec::new(), Vec::new());
    let (mut start, mut offset, mut first, mut row) = (0, 0, 0, 0);
    loop {
        let bytes = reader.skip_until(b'\n')? as u64;
        offset += bytes;
        // A line of one or two bytes is empty: an object takes more.
        row += usize::from(bytes > 2);
        if row > first && (bytes == 0 || offset - start >= UNIT_BYTES) {
            units.push(first..row);
            offsets.push(start);
            (start, first) = (offset, row);
        }
        if bytes == 0 {
            return Ok((units, offsets));
        }
    }
}

impl Records for JsonLines {
    type Record = [u8];

    fn units(&self) -> &[Range<usize>] {
        &self.units
    }

    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn for_each(&self, unit: usize, visit: &mut VisitRecord<[u8]>) -> Result<ControlFlow<()>> {
        let unread = |error| anyhow!("cannot read {} ({error}); check the file", self.name);
        let mut file = File::open(&self.path).map_err(unread)?;
        file.seek(SeekFrom::Start(self.offsets[unit])).map_err(unread)?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let (mut line, mut row) = (Vec::new(), self.units[unit].start);
        while row < self.units[unit].end {
            line.clear();
            if (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(unread)? == 0 {
                bail!("{} was changed while it was read; run the command again", self.name);
            }
            if line.len() > 2 {
                if visit(row, &line)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                row += 1;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn append(&self, row: usize, line: &[u8], buffer: &mut BlockBuffer) -> Result<bool> {
        let name = &self.name;
        let invalid = |error: serde_json::Error| {
            let reason = match error.to_string() {
                message if message.contains("null") => {
                    "an element is null, which stands for NaN or infinity".into()
                }
                message => message,
            };
            anyhow!("{name}: row {row} cannot be used ({reason}); embed its text again, or remove the row")
        };
        let Layout { kind, dtype, width, .. } = self.layout;
        if let Some(numbers) = &self.token_numbers {
            let SparseLine { weights } = serde_json::from_slice(line).map_err(invalid)?;
            let Some(weights) = weights else { return Ok(false) };
            let values: Vec<f32> = weights.values().copied().collect();
            buffer.extend_sparse(weights.keys().map(|token| numbers.number(token)), &values);
            buffer.lengths.push(values.len());
            return Ok(true);
        }
        let per_token = kind == RowKind::PerToken;
        let widths = match (dtype == OutputDtype::F32, per_token) {
            (_, true) => {
                let FloatTokensLine { embeddings } = serde_json::from_slice(line).map_err(invalid)?;
                let Some(embeddings) = embeddings else { return Ok(false) };
                embeddings.iter().for_each(|vector| buffer.extend_f32(vector));
                embeddings.iter().map(Vec::len).collect()
            }
            (true, false) => {
                let FloatLine { embedding } = serde_json::from_slice(line).map_err(invalid)?;
                let Some(embedding) = embedding else { return Ok(false) };
                buffer.extend_f32(&embedding);
                vec![embedding.len()]
            }
            (false, false) => {
                let Int8Line { embedding, scale } = serde_json::from_slice(line).map_err(invalid)?;
                let Some(embedding) = embedding else { return Ok(false) };
                buffer.extend_int8(&embedding);
                // A null scale stands for NaN, which the search refuses.
                buffer.scales.extend((dtype == OutputDtype::Int8).then(|| scale.unwrap_or(f32::NAN)));
                vec![embedding.len()]
            }
        };
        if let Some(found) = widths.iter().find(|found| **found != width) {
            bail!(
                "{name}: the vector of row {row} has {found} elements, expected {width}; write the file again"
            );
        }
        buffer.lengths.extend(per_token.then_some(widths.len()));
        Ok(true)
    }

    fn block<'a>(&self, buffer: &'a BlockBuffer, first_row: usize, rows: usize) -> Block<'a> {
        let Layout { kind, dtype, dimensions, .. } = self.layout;
        match kind {
            RowKind::SparseByToken => buffer.sparse_block(first_row, dimensions),
            _ => buffer.block(dtype, first_row, rows, dimensions),
        }
    }

    fn values(&self, row: usize, line: &[u8], columns: &[usize]) -> Result<Vec<FieldValue>> {
        let mut fields: Map<String, Value> = serde_json::from_slice(line)
            .map_err(|error| anyhow!("{}: row {row} is malformed ({error})", self.name))?;
        let value = |column: &usize| fields.remove(&self.columns[*column].name).unwrap_or_default().into();
        Ok(columns.iter().map(value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::index;

    #[test]
    fn empty_lines_are_no_rows() {
        let (units, offsets) = index(&mut &b"\n{\"a\":1}\n\r\n{\"a\":2}"[..]).unwrap();
        assert_eq!((units.len(), units[0].clone(), offsets), (1, 0..2, vec![0]));
        assert!(index(&mut &b"\n\n"[..]).unwrap().0.is_empty());
    }
}
