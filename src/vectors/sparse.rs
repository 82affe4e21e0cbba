//! Sparse vectors: the columns `indices` and `values`, and tokens in place of indices.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use anyhow::{Result, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use super::buffer::BlockBuffer;
use super::lists::{first_null, list_values};
use super::width::MAX_SPARSE_DIMENSIONS;
use crate::rows::columns::{INDICES, VALUES};
use crate::rows::field::convert;

/// Appends rows with the columns [`INDICES`] and [`VALUES`], whose first row is row `first_row` of the file,
/// to a buffer.
pub(super) fn append(
    name: &str,
    [indices, values]: [&ArrayRef; 2],
    first_row: usize,
    buffer: &mut BlockBuffer,
) -> Result<()> {
    let (index_offsets, indices) =
        lists(name, INDICES, indices, first_row, |indices| convert::numbers(indices, &DataType::UInt32))?;
    let (value_offsets, values) =
        lists(name, VALUES, values, first_row, |values| convert::rounded_to_f32(values))?;
    let row_of = |element: usize| first_row + index_offsets.partition_point(|end| *end <= element) - 1;
    let mut rows = index_offsets.windows(2).zip(value_offsets.windows(2)).zip(first_row..);
    if let Some(((a, b), row)) = rows.find(|((a, b), _)| a[1] - a[0] != b[1] - b[0]) {
        bail!(
            "{name}: row {row} has {} indices and {} values, expected as many of both; remove the row, or correct it",
            a[1] - a[0],
            b[1] - b[0]
        );
    }
    let indices = indices.as_primitive::<UInt32Type>();
    let is_dimension =
        |i: &usize| !indices.is_null(*i) && (indices.value(*i) as usize) < MAX_SPARSE_DIMENSIONS;
    if let Some(element) = (0..indices.len()).find(|i| !is_dimension(i)) {
        bail!(
            "{name}: row {} has an index that is not from 0 to {}; remove the row, or correct it",
            row_of(element),
            MAX_SPARSE_DIMENSIONS - 1
        );
    }
    buffer.extend_sparse(indices.values().iter().copied(), values.values());
    buffer.lengths.extend(index_offsets.windows(2).map(|bounds| bounds[1] - bounds[0]));
    Ok(())
}

/// The elements of the lists of a column, converted by `convert`, and the offsets of the lists among them.
fn lists<T>(
    name: &str,
    column: &str,
    lists: &ArrayRef,
    first_row: usize,
    convert: impl Fn(&ArrayRef) -> Option<T>,
) -> Result<(Vec<usize>, T)> {
    if let Some(row) = (0..lists.len()).find(|row| lists.null_count() > 0 && lists.is_null(*row)) {
        bail!(
            "{name}: column \"{column}\" of row {} is null; remove the row, or correct it",
            first_row + row
        );
    }
    let Some((values, offsets)) = list_values(lists) else {
        bail!(
            "{name}: column \"{column}\" has the type {}, expected lists; write it as lists of numbers",
            lists.data_type()
        );
    };
    let (start, end) = (offsets[0], offsets[offsets.len() - 1]);
    let values = values.slice(start, end - start);
    let offsets: Vec<usize> = offsets.iter().map(|offset| offset - start).collect();
    if let Some(element) = first_null(&values) {
        let row = first_row + offsets.partition_point(|end| *end <= element) - 1;
        bail!(
            "{name}: column \"{column}\" of row {row} has an element that is null; remove the row, or correct it"
        );
    }
    let Some(values) = convert(&values) else {
        bail!(
            "{name}: the elements of column \"{column}\" have the type {}, expected integers or floats; convert them",
            values.data_type()
        );
    };
    Ok((offsets, values))
}

/// Numbers for the tokens of a file that names elements by their tokens, in the order in which they are first
/// asked for.
#[derive(Debug, Default)]
pub struct TokenNumbers(RwLock<HashMap<String, u32>>);

impl TokenNumbers {
    /// The number of a token.
    pub fn number(&self, token: &str) -> u32 {
        if let Some(number) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(token) {
            return *number;
        }
        let mut numbers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let next = numbers.len() as u32;
        *numbers.entry(token.to_owned()).or_insert(next)
    }

    /// The tokens by their numbers.
    pub fn tokens(&self) -> Vec<String> {
        let numbers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut tokens = vec![String::new(); numbers.len()];
        numbers.iter().for_each(|(token, number)| tokens[*number as usize].clone_from(token));
        tokens
    }
}
