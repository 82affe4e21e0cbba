//! The launches that every kernel is checked with, at sizes around the boundaries of blocks, vectors and
//! tiles, and the outputs of the references.

use candle_core::{DType, Device, Result, Tensor};

use crate::ops::activation::NAMES;
use crate::ops::add_norm::{NormKind, NormWeights};
use crate::ops::attention::{Attention, AttentionWindow, query_tiles};
use crate::ops::gpu::Launch;
use crate::ops::lookup::EmbeddingTable;
use crate::ops::pooling::Pool;
use crate::ops::rotary::Rotation;
use crate::ops::{add_norm, linear as linear_layer, lookup as embeddings, pooling as pools};

/// Takes a launch, the expected output, and what of the kernel is checked.
pub(super) type Visit<'a> = dyn FnMut(&Launch, &Tensor, String) -> Result<()> + 'a;

/// A tensor of deterministic f32 values in (−1, 1): a Weyl sequence.
///
/// # Errors
/// If the shape is too large.
pub fn tensor(seed: usize, shape: &[usize]) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i + 1) * (2 * seed + 1)) as f64 * 0.618_033_988_749_895 % 1.0;
    let values: Vec<f32> = (0..count).map(|i| 2.0 * value(i) as f32 - 1.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// The `cu_seqlens` of sequences of these lengths.
pub fn cu_seqlens(lengths: &[usize]) -> Vec<usize> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

fn tensor_of(dtype: DType, seed: usize, shape: &[usize]) -> Result<Tensor> {
    tensor(seed, shape)?.to_dtype(dtype)
}

fn norm_weights(kind: NormKind, width: usize, bias: bool, dtype: DType) -> Result<NormWeights> {
    let bias = bias.then(|| tensor_of(dtype, 4, &[width])).transpose()?;
    Ok(NormWeights { kind, weight: tensor_of(dtype, 3, &[width])?, bias, eps: 1e-3 })
}

/// One to four tables, with and without a norm.
pub(super) fn lookup(dtype: DType, visit: &mut Visit) -> Result<()> {
    const TABLE_ROWS: usize = 7;
    for (tokens, width) in [(1, 1), (3, 8), (5, 127), (2, 128), (2, 1032)] {
        for count in 1..=4 {
            let (mut operands, mut tables) = (Vec::new(), Vec::new());
            for table in 0..count {
                let values = tensor_of(dtype, table, &[TABLE_ROWS, width])?;
                let indices: Vec<u32> =
                    (0..tokens).map(|token| ((token + table) * 5 % TABLE_ROWS) as u32).collect();
                tables.push((EmbeddingTable::resident(values.to_dtype(DType::F32)?)?, indices.clone()));
                operands.push((values, Tensor::from_vec(indices, tokens, &Device::Cpu)?));
            }
            let tables: Vec<(&EmbeddingTable, &[u32])> =
                tables.iter().map(|(table, indices)| (table, &indices[..])).collect();
            let norm = norm_weights(NormKind::Layer, width, count % 2 == 0, dtype)?;
            for norm in [None, Some(&norm)] {
                let expected = embeddings::reference(&tables, norm, &Device::Cpu)?;
                let what = format!("{tokens} tokens, {count} tables of {width}, norm {}", norm.is_some());
                visit(&embeddings::launch(&operands, norm)?, &expected, what)?;
            }
        }
    }
    Ok(())
}

/// Every activation, with and without a residual.
pub(super) fn linear(dtype: DType, visit: &mut Visit) -> Result<()> {
    for (rows, width) in [(3, 7), (2, 1028)] {
        let y = (tensor_of(dtype, 1, &[rows, width])? * 6.0)?;
        let residual = tensor_of(dtype, 2, &[rows, width])?;
        // The reference of a linear layer with the weight 1.
        let column = y.to_dtype(DType::F32)?.reshape(((), 1))?;
        let one = Tensor::ones((1, 1), DType::F32, &Device::Cpu)?;
        for (name, activation) in NAMES {
            let activated = linear_layer::reference(&column, &one, None, *activation, None)?;
            let activated = activated.reshape((rows, width))?;
            let sum = (&activated + residual.to_dtype(DType::F32)?)?;
            for (residual, expected) in [(None, &activated), (Some(&residual), &sum)] {
                let what = format!("{name} of {rows} × {width}, residual {}", residual.is_some());
                visit(&linear_layer::launch(&y, *activation, residual)?, expected, what)?;
            }
        }
    }
    Ok(())
}

/// All kinds of norms, with and without bias and residual.
pub(super) fn norm(dtype: DType, visit: &mut Visit) -> Result<()> {
    for (rows, width) in [(1, 1), (3, 7), (2, 8), (2, 384), (1, 1000), (1, 1024), (1, 5000)] {
        let residual = tensor_of(dtype, 2, &[rows, width])?;
        // A mean far from 0: mean square minus squared mean would lose the digits.
        let x = (tensor_of(dtype, 1, &[rows, width])? + 20.0)?;
        for kind in [NormKind::Layer, NormKind::RootMeanSquare, NormKind::Affine] {
            for (bias, residual) in [(true, None), (true, Some(&residual)), (false, Some(&residual))] {
                let norm = norm_weights(kind, width, bias, dtype)?;
                let expected = add_norm::reference(&x, residual, &norm)?;
                let what =
                    format!("{kind:?} of {rows} × {width}, bias {bias}, residual {}", residual.is_some());
                visit(&add_norm::launch(&x, residual, &norm)?, &expected, what)?;
            }
        }
    }
    Ok(())
}

/// Both layouts of pairs, with heads that are rotated as a whole or in part.
pub(super) fn rotary(dtype: DType, visit: &mut Visit) -> Result<()> {
    const POSITIONS: usize = 7;
    for (tokens, heads, head_dim, pairs) in
        [(1, 1, 2, 1), (5, 3, 8, 4), (4, 2, 10, 3), (3, 12, 64, 32), (2, 5, 130, 65)]
    {
        let x = tensor_of(dtype, 1, &[tokens, heads * head_dim])?;
        let position_ids: Vec<u32> = (0..tokens).map(|token| (token * 3 % POSITIONS) as u32).collect();
        let on_device = Tensor::new(&position_ids[..], &Device::Cpu)?;
        let angles = tensor(2, &[POSITIONS, pairs])?;
        for interleaved in [false, true] {
            let rotation = Rotation { cos: angles.cos()?, sin: angles.sin()?, interleaved };
            let expected = rotation.reference(&x, &position_ids, head_dim)?;
            let what = format!("{tokens} tokens, {heads} heads of {head_dim}, {pairs} pairs, {interleaved}");
            visit(&rotation.launch(&x, &on_device, head_dim)?, &expected, what)?;
        }
    }
    Ok(())
}

/// Every pooling mode, also with prompts that are longer than some of the sequences.
pub(super) fn pooling(dtype: DType, visit: &mut Visit) -> Result<()> {
    const POOLS: [Pool; 7] =
        [Pool::Cls, Pool::Max, Pool::Mean, Pool::MeanSqrtLen, Pool::WeightedMean, Pool::Last, Pool::Pooler];
    let cu_seqlens = [0, 1, 4, 5, 70];
    let on_device = Tensor::new(&cu_seqlens.map(|offset| offset as u32), &Device::Cpu)?;
    for width in [1, 127, 128, 129, 384] {
        let hidden = tensor_of(dtype, 1, &[70, width])?;
        for pool in POOLS {
            for prompt_tokens in 0..=2 {
                let expected = pools::reference(&hidden, &cu_seqlens, &[pool], prompt_tokens)?;
                let what = format!("{pool:?} of {width}, {prompt_tokens} prompt tokens");
                visit(&pool.launch(&hidden, &on_device, prompt_tokens)?, &expected, what)?;
            }
        }
    }
    Ok(())
}

/// Sequences around the size of a tile, shared keys and values, and windows: all windows for the smallest
/// head dim.
pub(super) fn attention(head_dim: usize, dtype: DType, visit: &mut Visit) -> Result<()> {
    const FULL: AttentionWindow = AttentionWindow::FULL;
    let window = |left, right| AttentionWindow { left, right };
    let mut check =
        |lengths: &[usize], heads, window| attention_of(lengths, heads, head_dim, window, dtype, visit);
    check(&[1, 63, 64, 65, 2, 130], [2, 2], FULL)?;
    check(&[40, 5], [6, 2], FULL)?;
    check(&[1, 64, 65], [2, 1], window(5, 5))?;
    if head_dim == 32 {
        check(&[16, 17, 300], [1, 1], FULL)?;
        for (left, right) in [(0, 0), (1, 0), (0, 3), (64, 64), (usize::MAX, 0), (200, 0), (70, 2)] {
            check(&[1, 64, 65, 200], [2, 1], window(left, right))?;
        }
    }
    Ok(())
}

/// Sequences of these lengths with `[heads, key_value_heads]`.
fn attention_of(
    lengths: &[usize],
    [heads, key_value_heads]: [usize; 2],
    head_dim: usize,
    window: AttentionWindow,
    dtype: DType,
    visit: &mut Visit,
) -> Result<()> {
    let cu_seqlens = cu_seqlens(lengths);
    let tokens = cu_seqlens[lengths.len()];
    let q = (tensor_of(dtype, 1, &[tokens, heads * head_dim])? * 2.0)?;
    let k = (tensor_of(dtype, 2, &[tokens, key_value_heads * head_dim])? * 2.0)?;
    let v = tensor_of(dtype, 3, &[tokens, key_value_heads * head_dim])?;
    let attention = Attention { key_value_heads, window, ..Attention::plain(heads, head_dim) };
    let expected = attention.reference(&q, &k, &v, &cu_seqlens)?;
    let query_tiles = query_tiles(&cu_seqlens, &Device::Cpu)?;
    let what = format!(
        "sequences of {lengths:?}, {heads} heads of {head_dim}, {key_value_heads} of keys, {window:?}"
    );
    visit(&attention.launch(&q, &k, &v, &query_tiles)?, &expected, what)
}
