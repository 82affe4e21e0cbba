//! Plain Rust over arrays of 4 f32, which the compiler vectorises as far as the target allows.

use std::array::from_fn;

use half::bf16;

use super::{Int8Format, Simd, range_of_bits};

/// [`Simd`] for every processor.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

const N: usize = 4;

impl Simd for Portable {
    const LANES: usize = N;
    const MR: usize = 6;
    const FAST_BF16: bool = false;
    const INT8: Int8Format = Int8Format::UNSIGNED_LHS;
    type F = [f32; N];
    type I = [u32; N];

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> [f32; N] {
        // SAFETY: `from` is valid for reads of 4 f32 by the contract of this method.
        unsafe { from.cast::<[f32; N]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: [f32; N]) {
        // SAFETY: `to` is valid for writes of 4 f32 by the contract of this method.
        unsafe { to.cast::<[f32; N]>().write_unaligned(x) }
    }

    #[inline(always)]
    fn load_partial(self, from: &[f32], pad: f32) -> [f32; N] {
        let mut buffer = [pad; N];
        for (to, x) in buffer.iter_mut().zip(from) {
            *to = *x;
        }
        buffer
    }

    #[inline(always)]
    fn store_partial(self, to: &mut [f32], x: [f32; N]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to = x;
        }
    }

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] / b[i])
    }

    /// Not `mul_add`, which is a library call on targets without FMA.
    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn select_less(self, a: [f32; N], b: [f32; N], yes: [f32; N], no: [f32; N]) -> [f32; N] {
        from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn abs(self, x: [f32; N]) -> [f32; N] {
        x.map(f32::abs)
    }

    // As on AVX2.
    #[inline(always)]
    fn extend_range(self, [min, max]: [[f32; N]; 2], x: [f32; N]) -> [[f32; N]; 2] {
        let greater = |a: f32, b: f32| {
            f32::from_bits(a.to_bits().cast_signed().max(b.to_bits().cast_signed()).cast_unsigned())
        };
        let min = from_fn(|i| f32::from_bits(min[i].to_bits().max(x[i].to_bits())));
        [min, from_fn(|i| greater(max[i], x[i]))]
    }

    #[inline(always)]
    fn reduce_range(self, [min, max]: [[f32; N]; 2]) -> [f32; 2] {
        let min = min.map(f32::to_bits).into_iter().fold(0, u32::max);
        let max = max.map(|x| x.to_bits().cast_signed()).into_iter().fold(0, i32::max);
        range_of_bits(min, max)
    }

    #[inline(always)]
    fn reduce_sum(self, x: [f32; N]) -> f32 {
        (x[0] + x[2]) + (x[1] + x[3])
    }

    #[inline(always)]
    fn reduce_max(self, x: [f32; N]) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn copysign(self, x: [f32; N], sign: [f32; N]) -> [f32; N] {
        from_fn(|i| x[i].copysign(sign[i]))
    }

    #[inline(always)]
    fn scale_exp2(self, x: [f32; N], n: [f32; N]) -> [f32; N] {
        from_fn(|i| {
            let n = n[i] as i32;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            x[i] * power(n >> 1) * power(n - (n >> 1))
        })
    }

    #[inline(always)]
    fn splat_u32(self, element: u32) -> [u32; N] {
        [element; N]
    }

    #[inline(always)]
    unsafe fn load_u32(self, from: *const u32) -> [u32; N] {
        // SAFETY: `from` is valid for reads of 4 u32 by the contract of this method.
        unsafe { from.cast::<[u32; N]>().read_unaligned() }
    }

    #[inline(always)]
    fn add_product_i16(self, sum: [u32; N], a: [u32; N], b: [u32; N]) -> [u32; N] {
        std::array::from_fn(|i| {
            sum[i].wrapping_add((i32::from(a[i] as i16) * i32::from(b[i] as i16)).cast_unsigned())
        })
    }

    #[inline(always)]
    fn i32_to_f32(self, x: [u32; N]) -> [f32; N] {
        x.map(|x| x as i32 as f32)
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: [f32; N]) {
        // SAFETY: `to` is valid for writes of 4 u16 by the contract of this method.
        unsafe { to.cast::<[u16; N]>().write_unaligned(x.map(|x| bf16::from_f32(x).to_bits())) }
    }

    #[inline(always)]
    fn dot_int8<const E: usize>(self, mut sum: [u32; N], a: [[u32; N]; E], b: [[u32; N]; E]) -> [u32; N] {
        // Products of 16-bit integers, which every vector unit has.
        let product = |a: i16, b: i16| i32::from(a) * i32::from(b);
        let products = |a: u32, b: u32| {
            let [even, odd, ..] = a.to_le_bytes().map(i16::from);
            product(even, ((b as i16) << 8) >> 8) + product(odd, (b as i16) >> 8)
        };
        for (a, b) in a.into_iter().zip(b) {
            for i in 0..N {
                let low = products(a[i], b[i]);
                sum[i] = sum[i].wrapping_add((low + products(a[i] >> 16, b[i] >> 16)) as u32);
            }
        }
        sum
    }

    #[inline(always)]
    unsafe fn store_int8_lhs(self, to: *mut u8, x: [f32; N]) {
        // SAFETY: `to` is valid for writes of 4 bytes by the contract of this method.
        unsafe { to.cast::<[u8; N]>().write(x.map(|x| x.round_ties_even() as u8)) }
    }
}
