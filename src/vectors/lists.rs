//! Columns of lists in Arrow record batches.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};

/// The values of a column of lists of any length, and the offsets of the lists; `None` if it has another type.
pub(super) fn list_values(lists: &ArrayRef) -> Option<(&ArrayRef, Vec<usize>)> {
    if let Some(list) = lists.as_list_opt::<i32>() {
        return Some((list.values(), list.value_offsets().iter().map(|x| *x as usize).collect()));
    }
    let list = lists.as_list_opt::<i64>()?;
    Some((list.values(), list.value_offsets().iter().map(|x| *x as usize).collect()))
}

/// The first element that is null.
pub(super) fn first_null(values: &ArrayRef) -> Option<usize> {
    (0..values.len()).find(|i| values.null_count() > 0 && values.is_null(*i))
}
