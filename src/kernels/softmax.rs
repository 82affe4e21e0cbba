//! Softmax of one row.

/// `softmax(scale · x)` in place, the largest score taken off first.
pub fn scaled_softmax(row: &mut [f32], scale: f32) {
    let max = row.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
    let mut total = 0f32;
    for x in row.iter_mut() {
        *x = ((*x - max) * scale).exp();
        total += *x;
    }
    for x in row {
        *x /= total;
    }
}
