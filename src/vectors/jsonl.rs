//! JSON lines: a vector in `"embedding"` or one per token in `"embeddings"`, and for int8 its `"scale"`; a
//! sparse vector in `"weights"`; or any of these in another field.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::batch::is_shown;
use super::buffer::BlockBuffer;
use super::choice::{Candidate, Held, VectorField};
use super::error::{PASS_VECTORS, token_integers, wrong_width};
use super::records::Records;
use super::source::Opened;
use super::sparse::TokenNumbers;
use super::width::checked_width;
use crate::formats::VisitRow;
use crate::formats::error::unread;
use crate::formats::jsonl::{JsonlFile, JsonlStart, VectorLine};
use crate::neighbours::{Block, Representation};
use crate::rows::columns::{EMBEDDING, EMBEDDINGS, SCALE, WEIGHTS};
use crate::rows::{ColumnType, FieldValue, KeptColumn, OutputDtype};

/// An indexed file.
struct JsonLines {
    name: Arc<str>,
    file: JsonlFile,
    layout: Layout,
    /// The numbers of the tokens of sparse vectors.
    token_numbers: Option<Arc<TokenNumbers>>,
    columns: Vec<KeptColumn>,
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

/// Counts the lines of a file, and reads the first one.
pub(super) fn open(path: &Path, name: &Arc<str>, field: VectorField) -> Result<Opened> {
    let unread = |error| unread(name, error);
    let mut lines = JsonlStart::open(path).map_err(unread)?;
    let first = first_with_vector(name, field, &mut lines)?;
    let layout = Layout::new(name, field, &first)?;
    let Layout { kind, dtype, dimensions, .. } = layout;
    let has_sparse = kind == Representation::Sparse || first.get(WEIGHTS).is_some_and(Value::is_object);
    let columns = first.keys().filter(|key| **key != layout.field && is_shown(key, has_sparse));
    let columns = columns.map(|key| KeptColumn::new(key, ColumnType::Text)).collect();
    let file = lines.index(name).map_err(unread)?;
    let rows = file.units().last().map_or(0, |unit| unit.end);
    let token_numbers = (kind == Representation::Sparse).then(Arc::default);
    let (name, numbers) = (name.clone(), token_numbers.clone());
    let file = Arc::new(JsonLines { name, file, layout, token_numbers: numbers, columns });
    let (vectors, columns) = (Box::new(file.clone()), Box::new(file));
    Ok(Opened { token_numbers, ..Opened::new(rows, kind, (dtype, dimensions), vectors, columns) })
}

/// The fields of the first line that has a vector, or of the first line if none has.
fn first_with_vector(name: &str, field: VectorField, lines: &mut JsonlStart) -> Result<Map<String, Value>> {
    let named = field.name().into_iter();
    let names: Vec<&str> = match field {
        VectorField::Named(_) => named.collect(),
        _ => named.chain([EMBEDDING, EMBEDDINGS, WEIGHTS]).collect(),
    };
    let (mut line, mut row, mut first) = (String::new(), 0, None);
    loop {
        if lines.read_line(&mut line).map_err(|error| unread(name, error))? == 0 {
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

impl JsonLines {
    /// The vector of a line.
    fn line<'a, T: Deserialize<'a>>(&self, line: &'a [u8]) -> serde_json::Result<VectorLine<T>> {
        VectorLine::read(line, &self.layout.field, self.layout.dtype == OutputDtype::Int8)
    }
}

impl Records for JsonLines {
    type Record = [u8];

    fn units(&self) -> &[Range<usize>] {
        self.file.units()
    }

    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn for_each(&self, unit: usize, visit: &mut VisitRow<[u8]>) -> Result<ControlFlow<()>> {
        self.file.for_each_line(unit, visit)
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
            let weights: VectorLine<BTreeMap<String, f32>> = self.line(line).map_err(invalid)?;
            let Some(weights) = weights.vector else { return Ok(false) };
            let values: Vec<f32> = weights.values().copied().collect();
            buffer.extend_sparse(weights.keys().map(|token| numbers.number(token)), &values);
            buffer.lengths.push(values.len());
            return Ok(true);
        }
        let per_token = kind == Representation::PerToken;
        let widths = match (dtype == OutputDtype::F32, per_token) {
            (_, true) => {
                let vectors: VectorLine<Vec<Vec<f32>>> = self.line(line).map_err(invalid)?;
                let Some(vectors) = vectors.vector else { return Ok(false) };
                vectors.iter().for_each(|vector| buffer.extend_f32(vector));
                vectors.iter().map(Vec::len).collect()
            }
            (true, false) => {
                let vector: VectorLine<Vec<f32>> = self.line(line).map_err(invalid)?;
                let Some(vector) = vector.vector else { return Ok(false) };
                buffer.extend_f32(&vector);
                vec![vector.len()]
            }
            (false, false) => {
                let VectorLine { vector, scale } = self.line::<Vec<i8>>(line).map_err(invalid)?;
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
        let fields: Map<String, Value> = serde_json::from_slice(line)
            .map_err(|error| anyhow!("{}: row {row} is malformed ({error})", self.name))?;
        // A column may be asked for twice.
        let value =
            |column: &usize| fields.get(&self.columns[*column].name).cloned().unwrap_or_default().into();
        Ok(columns.iter().map(value).collect())
    }
}
