//! Softmax of one row.

/// `scale · x + bias` in place; an empty bias is none.
pub fn scale_and_bias(row: &mut [f32], scale: f32, bias: &[f32]) {
    for x in row.iter_mut() {
        *x *= scale;
    }
    for (x, bias) in row.iter_mut().zip(bias) {
        *x += bias;
    }
}

/// `softmax(x)` in place, the largest score taken off first.
pub fn softmax(row: &mut [f32]) {
    let max = row.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
    let mut total = 0f32;
    for x in row.iter_mut() {
        *x = (*x - max).exp();
        total += *x;
    }
    for x in row {
        *x /= total;
    }
}
