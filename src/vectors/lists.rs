//! Columns of lists in Arrow record batches.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, UInt64Array};
use arrow_schema::{DataType, FieldRef};
use arrow_select::take::take;

/// The elements of a type of lists, and their number if all lists have the same; `None` if it is no type of
/// lists.
pub(super) fn list_items(data_type: &DataType) -> Option<(&FieldRef, Option<i32>)> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => Some((item, None)),
        DataType::FixedSizeList(item, size) => Some((item, Some(*size))),
        _ => None,
    }
}

/// The values of a column of lists of any type, and the offsets of the lists; `None` if it has another type.
pub(super) fn list_values(lists: &ArrayRef) -> Option<(ArrayRef, Vec<usize>)> {
    match lists.data_type() {
        DataType::List(_) => Some(offset_lists::<i32>(lists)),
        DataType::LargeList(_) => Some(offset_lists::<i64>(lists)),
        DataType::ListView(_) => list_views::<i32>(lists),
        DataType::LargeListView(_) => list_views::<i64>(lists),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).ok()?;
            Some((lists.as_fixed_size_list().values().clone(), (0..=lists.len()).map(|i| i * size).collect()))
        }
        _ => None,
    }
}

fn offset_lists<O: OffsetSizeTrait>(lists: &ArrayRef) -> (ArrayRef, Vec<usize>) {
    let list = lists.as_list::<O>();
    (list.values().clone(), list.value_offsets().iter().map(|offset| offset.as_usize()).collect())
}

/// Lists that may be in any order, overlap, and leave values out.
fn list_views<O: OffsetSizeTrait>(lists: &ArrayRef) -> Option<(ArrayRef, Vec<usize>)> {
    let views = lists.as_list_view::<O>();
    let (mut indices, mut offsets) = (Vec::new(), vec![0]);
    for (offset, size) in views.offsets().iter().zip(views.sizes().iter()) {
        indices.extend((offset.as_usize()..offset.as_usize() + size.as_usize()).map(|index| index as u64));
        offsets.push(indices.len());
    }
    Some((take(views.values(), &UInt64Array::from(indices), None).ok()?, offsets))
}

/// The first element that is null.
pub(super) fn first_null(values: &ArrayRef) -> Option<usize> {
    (0..values.len()).find(|i| values.null_count() > 0 && values.is_null(*i))
}
