//! JSON lines: a vector in `"embedding"` or one per token in `"embeddings"`, and for int8 its `"scale"`; a sparse vector in `"weights"`; or
//! any of these in another field.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::batch::is_shown;
use super::buffer::BlockBuffer;
use super::choice::{Candidate, Held, VectorField};
use super::error::{PASS_VECTORS, token_integers, wrong_width};
use super::records::{MAX_LINE_BYTES, Records, VisitRecord};
use super::source::Opened;
use super::sparse::TokenNumbers;
use super::width::checked_width;
use crate::neighbours::{Block, Representation};
use crate::rows::FieldValue;
use crate::rows::columns::{EMBEDDING, EMBEDDINGS, SCALE, WEIGHTS};
use crate::rows::{ColumnType, KeptColumn, OutputDtype};

/// Size in bytes at which a unit of lines ends.
const UNIT_BYTES: u64 = 1 << 19;
const BUFFER_BYTES: usize = 1 << 16;

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
    /// The field of the vectors.
    field: String,
    kind: Representation,
    dtype: OutputDtype,
    /// Stored elements of a vector; 0 if vectors are sparse.
    width: usize,
    dimensions: usize,
}

/// The fields of a line that are read: a vector, and its scale if it has int8 elements. All others are skipped.
struct Line<T> {
    vector: Option<T>,
    scale: Option<f32>,
}

/// Reads a [`Line`] whose vector is in this field.
struct LineReader<'a, T> {
    field: &'a str,
    reads_scale: bool,
    vector: PhantomData<T>,
}

/// The key of an object.
enum Key {
    Vector,
    Scale,
    Other,
}

/// Compares a key with the name of the field of the vectors.
struct KeyReader<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for KeyReader<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyReader<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(match key {
            key if key == self.0 => Key::Vector,
            SCALE => Key::Scale,
            _ => Key::Other,
        })
    }
}

impl<'de, T: Deserialize<'de>> LineReader<'_, T> {
    fn read(self, line: &'de [u8]) -> serde_json::Result<Line<T>> {
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        let found = deserializer.deserialize_map(self)?;
        deserializer.end()?;
        Ok(found)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for LineReader<'_, T> {
    type Value = Line<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line<T>, A::Error> {
        let mut line = Line { vector: None, scale: None };
        while let Some(key) = map.next_key_seed(KeyReader(self.field))? {
            match key {
                Key::Vector if line.vector.is_some() => {
                    return Err(A::Error::custom(format_args!("duplicate field `{}`", self.field)));
                }
                Key::Vector => line.vector = map.next_value()?,
                Key::Scale if self.reads_scale => line.scale = map.next_value()?,
                Key::Scale | Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(line)
    }
}

/// Counts the lines of a file, and reads the first one.
pub(super) fn open(path: &Path, name: &Arc<str>, field: VectorField) -> Result<Opened> {
    let unread = |error| anyhow!("cannot read {name} ({error}); check the file");
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(unread)?);
    let first = first_with_vector(name, field, &mut reader)?;
    let layout = Layout::new(name, field, &first)?;
    let Layout { kind, dtype, dimensions, .. } = layout;
    let has_sparse = kind == Representation::Sparse || first.get(WEIGHTS).is_some_and(Value::is_object);
    let columns = first.keys().filter(|key| **key != layout.field && is_shown(key, has_sparse));
    let columns =
        columns.map(|key| KeptColumn { name: key.clone(), column_type: ColumnType::Text }).collect();
    reader.rewind().map_err(unread)?;
    let (units, offsets) = index(&mut reader).map_err(unread)?;
    let rows = units.last().map_or(0, |unit| unit.end);
    let token_numbers = (kind == Representation::Sparse).then(Arc::default);
    let (name, path, numbers) = (name.clone(), path.into(), token_numbers.clone());
    let file = Arc::new(JsonLines { name, path, layout, token_numbers: numbers, columns, units, offsets });
    let (vectors, columns) = (Box::new(file.clone()), Box::new(file));
    Ok(Opened { token_numbers, ..Opened::new(rows, kind, (dtype, dimensions), vectors, columns) })
}

/// The fields of the first line that has a vector, or of the first line if none has.
fn first_with_vector(
    name: &str,
    field: VectorField,
    reader: &mut impl BufRead,
) -> Result<Map<String, Value>> {
    let named = field.name().into_iter();
    let names: Vec<&str> = match field {
        VectorField::Named(_) => named.collect(),
        _ => named.chain([EMBEDDING, EMBEDDINGS, WEIGHTS]).collect(),
    };
    let (mut line, mut row, mut first) = (String::new(), 0, None);
    loop {
        line.clear();
        let read = reader.take(MAX_LINE_BYTES).read_line(&mut line);
        if read.map_err(|error| anyhow!("cannot read {name} ({error}); check the file"))? == 0 {
            return first.ok_or_else(|| anyhow!("{name} has no lines; {PASS_VECTORS}"));
        }
        if line.trim().is_empty() {
            continue;
        }
        let fields: Map<String, Value> = serde_json::from_str(&line).map_err(|error| {
            anyhow!("{name}: row {row} is not a JSON object ({error}); remove the row, or correct it")
        })?;
        if names.iter().any(|key| fields.get(*key).is_some_and(|value| !value.is_null())) {
            return Ok(fields);
        }
        // A file of other objects is not read to its end.
        if !names.iter().any(|key| fields.contains_key(*key)) {
            return Ok(first.unwrap_or(fields));
        }
        first.get_or_insert(fields);
        row += 1;
    }
}

/// A field of an object, and whether it can be that of the vectors.
fn candidate((name, value): (&String, &Value)) -> Candidate {
    let is_list =
        |value: &Value| value.as_array().is_some_and(|x| !x.is_empty() && x.iter().all(Value::is_number));
    let (held, type_name) = match value {
        Value::Null => (Held::Other, "null".into()),
        Value::Bool(_) => (Held::Other, "boolean".into()),
        Value::Number(_) => (Held::Other, "number".into()),
        Value::String(_) => (Held::Other, "string".into()),
        Value::Array(vector) if is_list(value) => {
            (Held::Vectors, format!("list of {} numbers", vector.len()))
        }
        Value::Array(vectors) if !vectors.is_empty() && vectors.iter().all(is_list) => {
            (Held::Vectors, format!("list of {} lists of numbers", vectors.len()))
        }
        // An empty list, or null elements, which stand for NaN.
        Value::Array(_) => (Held::Ambiguous, "list".into()),
        Value::Object(_) if name == WEIGHTS => (Held::Ambiguous, "object".into()),
        Value::Object(_) => (Held::Other, "object".into()),
    };
    Candidate { name: name.clone(), type_name, held }
}

impl Layout {
    /// Finds the vector in the fields of the first line.
    fn new(name: &str, field: VectorField, first: &Map<String, Value>) -> Result<Self> {
        let mut candidates: Vec<Candidate> = first.iter().map(candidate).collect();
        let own = [EMBEDDING, EMBEDDINGS, WEIGHTS];
        let field = candidates.swap_remove(field.find(name, "field", &own, &candidates)?).name;
        let found = &first[&field];
        if found.is_object() {
            let (kind, dtype) = (Representation::Sparse, OutputDtype::F32);
            return Ok(Layout { field, kind, dtype, width: 0, dimensions: 0 });
        }
        let vectors = found.as_array().and_then(|vectors| vectors.first()?.as_array());
        let per_token = vectors.is_some() || field == EMBEDDINGS && found == &Value::Array(Vec::new());
        let elements = if per_token { vectors } else { found.as_array() };
        let Some(elements) = elements else {
            bail!(
                "{name}: field {field:?} of the first row is no list of numbers; write the vectors as lists"
            )
        };
        // Floats are written with a decimal point.
        let is_int8 = !elements.is_empty() && elements.iter().all(Value::is_i64);
        let dtype = match first.get(SCALE) {
            Some(scale) if is_int8 && !scale.is_string() => OutputDtype::Int8,
            None if is_int8 => OutputDtype::Binary,
            _ => OutputDtype::F32,
        };
        if per_token && dtype != OutputDtype::F32 {
            return Err(token_integers(name));
        }
        let width = match elements.len() {
            0 => 0,
            width => checked_width(name, width as u64)?,
        };
        let dimensions = if dtype == OutputDtype::Binary { 8 * width } else { width };
        let kind = if per_token { Representation::PerToken } else { Representation::Dense };
        Ok(Layout { field, kind, dtype, width, dimensions })
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

impl JsonLines {
    /// The vector of a line.
    fn line<'a, T: Deserialize<'a>>(&self, line: &'a [u8]) -> serde_json::Result<Line<T>> {
        let (field, reads_scale) = (&*self.layout.field, self.layout.dtype == OutputDtype::Int8);
        LineReader { field, reads_scale, vector: PhantomData }.read(line)
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
            anyhow!("{name}: row {row} cannot be used ({reason}); remove the row, or correct it")
        };
        let Layout { kind, dtype, width, .. } = self.layout;
        if let Some(numbers) = &self.token_numbers {
            // Sums over the elements are in the order of the tokens.
            let weights: Line<BTreeMap<String, f32>> = self.line(line).map_err(invalid)?;
            let Some(weights) = weights.vector else { return Ok(false) };
            let values: Vec<f32> = weights.values().copied().collect();
            buffer.extend_sparse(weights.keys().map(|token| numbers.number(token)), &values);
            buffer.lengths.push(values.len());
            return Ok(true);
        }
        let per_token = kind == Representation::PerToken;
        let widths = match (dtype == OutputDtype::F32, per_token) {
            (_, true) => {
                let vectors: Line<Vec<Vec<f32>>> = self.line(line).map_err(invalid)?;
                let Some(vectors) = vectors.vector else { return Ok(false) };
                vectors.iter().for_each(|vector| buffer.extend_f32(vector));
                vectors.iter().map(Vec::len).collect()
            }
            (true, false) => {
                let vector: Line<Vec<f32>> = self.line(line).map_err(invalid)?;
                let Some(vector) = vector.vector else { return Ok(false) };
                buffer.extend_f32(&vector);
                vec![vector.len()]
            }
            (false, false) => {
                let Line { vector, scale } = self.line::<Vec<i8>>(line).map_err(invalid)?;
                let Some(vector) = vector else { return Ok(false) };
                buffer.extend_int8(&vector);
                // A null scale stands for NaN, which the search refuses.
                buffer.scales.extend((dtype == OutputDtype::Int8).then(|| scale.unwrap_or(f32::NAN)));
                vec![vector.len()]
            }
        };
        if let Some(found) = widths.iter().find(|found| **found != width) {
            return Err(wrong_width(name, row, *found, width));
        }
        buffer.lengths.extend(per_token.then_some(widths.len()));
        Ok(true)
    }

    fn block<'a>(&self, buffer: &'a BlockBuffer, first_row: usize, rows: usize) -> Block<'a> {
        let Layout { kind, dtype, dimensions, .. } = self.layout;
        match kind {
            Representation::Sparse => buffer.sparse_block(first_row, dimensions),
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
