//! Normalisation of one row.

/// Layer normalisation (Ba et al. 2016) in place: `(x − mean) / √(var + eps) · weight + bias`, with the
/// variance taken in a second pass so that a large mean costs no digits. An empty bias is none.
pub fn layer_norm(row: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let width = row.len() as f32;
    let mean = sum(row, |x| x) / width;
    let variance = sum(row, |x| (x - mean) * (x - mean)) / width;
    let scale = 1.0 / (variance + eps).sqrt();
    for (x, w) in row.iter_mut().zip(weight) {
        *x = (*x - mean) * scale * w;
    }
    add(row, bias);
}

/// Root mean square normalisation (Zhang & Sennrich 2019) in place: `x / √(mean(x²) + eps) · weight + bias`.
pub fn rms_norm(row: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let scale = 1.0 / (sum(row, |x| x * x) / row.len() as f32 + eps).sqrt();
    for (x, w) in row.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
    add(row, bias);
}

fn add(row: &mut [f32], bias: &[f32]) {
    for (x, b) in row.iter_mut().zip(bias) {
        *x += b;
    }
}

/// Scales a row to unit length in place; a row shorter than 1e-12 is divided by 1e-12, as
/// `torch.nn.functional.normalize` does.
pub fn l2_normalize(row: &mut [f32]) {
    let length = sum(row, |x| x * x).sqrt();
    // Not `max`, which would lose a NaN.
    let length = if length < 1e-12 { 1e-12 } else { length };
    for x in row {
        *x /= length;
    }
}

/// Sums `f(x)` in sixteen interleaved lanes: a fixed order, and one that vector units can follow.
fn sum(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; 16];
    for chunk in row.chunks(lanes.len()) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += f(*x);
        }
    }
    lanes.iter().sum()
}
