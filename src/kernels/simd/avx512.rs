//! AVX-512: 32 registers of 16 f32, with or without the dot products of bytes (VNNI) and of bf16 (BF16).

use std::arch::x86_64::*;

use super::{Int8Format, Simd, methods, range_of_bits};

/// [`Simd`] with AVX-512 F, BW, DQ and VL, and with VNNI and BF16 as the parameters say. A value exists only
/// if the processor supports all of them.
#[derive(Debug, Clone, Copy)]
pub struct Avx512<const VNNI: bool, const BF16: bool>(());

impl<const VNNI: bool, const BF16: bool> Avx512<VNNI, BF16> {
    /// # Safety
    /// The processor supports AVX-512 F, BW, DQ and VL; if `VNNI`, also VNNI; if `BF16`, also BF16.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx512(())
    }

    /// The transpose of a 16 × 16 block.
    #[inline(always)]
    fn transpose(self, mut rows: [__m512i; 16]) -> [__m512i; 16] {
        // SAFETY: `self` exists only if the processor supports AVX-512; the intrinsics access no memory.
        unsafe {
            // Rows are interleaved by single elements, then by pairs, then by fours, then by eights.
            let mut next = rows;
            for i in 0..8 {
                next[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                next[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
            }
            for i in 0..4 {
                let [a, b, c, d] = [next[4 * i], next[4 * i + 1], next[4 * i + 2], next[4 * i + 3]];
                rows[4 * i] = _mm512_unpacklo_epi64(a, c);
                rows[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
                rows[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
                rows[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
            }
            // Here the quarter `q` of row `4 i + j` holds column `4 q + j` of the rows `4 i..4 i + 4`.
            for j in 0..4 {
                let [a, b, c, d] = [rows[j], rows[4 + j], rows[8 + j], rows[12 + j]];
                let (low, high) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
                let (low2, high2) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
                next[j] = _mm512_shuffle_i32x4::<0x88>(low, low2);
                next[4 + j] = _mm512_shuffle_i32x4::<0x88>(high, high2);
                next[8 + j] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
                next[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
            }
            next
        }
    }
}

impl<const VNNI: bool, const BF16: bool> Simd for Avx512<VNNI, BF16> {
    const LANES: usize = 16;
    const MR: usize = 12;
    const FAST_BF16: bool = BF16;
    const FAST_LOOKUP: bool = true;
    const INT8: Int8Format =
        if VNNI { Int8Format::UNSIGNED_LHS } else { Int8Format { rotation: 4, ..Int8Format::SUMS_IN_I16 } };
    type F = __m512;
    type I = __m512i;

    methods! {
        splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        // A division takes as long as sixteen multiplications; one Newton step on the estimate takes as long
        // as three.
        div_normal(a: __m512, b: __m512) -> __m512 {{
            let estimate = _mm512_rcp14_ps(b);
            let error = _mm512_fnmadd_ps(b, estimate, _mm512_set1_ps(1.0));
            let reciprocal = _mm512_fmadd_ps(estimate, error, estimate);
            let quotient = _mm512_mul_ps(a, reciprocal);
            _mm512_fmadd_ps(_mm512_fnmadd_ps(b, quotient, a), reciprocal, quotient)
        }}
        fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        select_less(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes)
        }
        abs(x: __m512) -> __m512 { _mm512_abs_ps(x) }
        extend_range(range: [__m512; 2], x: __m512) -> [__m512; 2] {{
            let [min, max] = [_mm512_castps_si512(range[0]), _mm512_castps_si512(range[1])];
            let x = _mm512_castps_si512(x);
            [_mm512_castsi512_ps(_mm512_max_epu32(min, x)), _mm512_castsi512_ps(_mm512_max_epi32(max, x))]
        }}
        reduce_range(range: [__m512; 2]) -> [f32; 2] {{
            let [min, max] = [_mm512_castps_si512(range[0]), _mm512_castps_si512(range[1])];
            // With the sign bit flipped u32 are in the order of i32, so one reduction does for both.
            let min = _mm512_xor_si512(min, _mm512_set1_epi32(i32::MIN));
            let x = _mm512_max_epi32(
                _mm512_shuffle_i64x2::<0b01_00_01_00>(min, max),
                _mm512_shuffle_i64x2::<0b11_10_11_10>(min, max),
            );
            let x = _mm512_max_epi32(x, _mm512_shuffle_i64x2::<0b10_11_00_01>(x, x));
            let x = _mm512_max_epi32(x, _mm512_shuffle_epi32::<0b01_00_11_10>(x));
            let x = _mm512_max_epi32(x, _mm512_shuffle_epi32::<0b10_11_00_01>(x));
            let min = _mm512_cvtsi512_si32(x) ^ i32::MIN;
            range_of_bits(min.cast_unsigned(), _mm_cvtsi128_si32(_mm512_extracti32x4_epi32::<2>(x)))
        }}
        reduce_sum(x: __m512) -> f32 { _mm512_reduce_add_ps(x) }
        reduce_sums_f64(vectors: [__m512; 4]) -> f64 {{
            let mut sum = _mm512_setzero_pd();
            for x in vectors {
                let low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
                let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(x));
                sum = _mm512_add_pd(sum, _mm512_add_pd(low, high));
            }
            _mm512_reduce_add_pd(sum)
        }}
        reduce_max(x: __m512) -> f32 { _mm512_reduce_max_ps(x) }
        copysign(x: __m512, sign: __m512) -> __m512 {
            _mm512_or_ps(x, _mm512_and_ps(_mm512_set1_ps(-0.0), sign))
        }
        scale_exp2(x: __m512, n: __m512) -> __m512 { _mm512_scalef_ps(x, n) }
        // `vscalefps` rounds `n` down itself, and `vreduceps` of an infinite value is 0.
        split_exp2(x: __m512) -> (__m512, __m512) {
            (_mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x), x)
        }
        // A subnormal result of `vscalefps` takes an Intel processor more than a hundred cycles. What is not
        // less than −126 may be NaN.
        scale_exp2_or_zero(x: __m512, n: __m512) -> __m512 {
            _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(n, _mm512_set1_ps(-126.0)), x, n)
        }
        splat_u32(element: u32) -> __m512i { _mm512_set1_epi32(element as i32) }
        prefetch_l1(line: *const u32) -> () { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        prefetch_l2(line: *const u32) -> () { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
        i32_to_f32(x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
        add_product_i16(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
            _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))
        }
        dot_bf16(sum: __m512, a: __m512i, b: __m512i) -> __m512 {{
            let a = std::mem::transmute::<__m512i, __m512bh>(a);
            let b = std::mem::transmute::<__m512i, __m512bh>(b);
            _mm512_dpbf16_ps(sum, a, b)
        }}
    }

    #[inline(always)]
    fn dot_int8<const N: usize>(self, mut sum: __m512i, a: [__m512i; N], b: [__m512i; N]) -> __m512i {
        // SAFETY: `self` exists only if the processor supports AVX-512, and VNNI if `VNNI`; the intrinsics
        // access no memory.
        unsafe {
            if VNNI {
                for i in 0..N {
                    sum = _mm512_dpbusd_epi32(sum, a[i], b[i]);
                }
                return sum;
            }
            let mut pairs = _mm512_maddubs_epi16(a[0], b[0]);
            for i in 1..N {
                pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(a[i], b[i]));
            }
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn lookup(self, table: &[f32; 32], index: __m512) -> __m512 {
        // SAFETY: `self` exists only if the processor supports AVX-512; the table has two vectors. The
        // instruction reads the lowest 5 bits of an index.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(table.as_ptr()), _mm512_loadu_ps(table.as_ptr().add(16)));
            _mm512_permutex2var_ps(low, _mm512_castps_si512(index), high)
        }
    }

    #[inline(always)]
    fn load_partial(self, from: &[f32], pad: f32) -> __m512 {
        let mask = (1 << from.len().min(16)) - 1;
        // SAFETY: `self` exists only if the processor supports AVX-512; the mask enables only lanes that
        // `from` has.
        unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(pad), mask as u16, from.as_ptr()) }
    }

    #[inline(always)]
    fn store_partial(self, to: &mut [f32], x: __m512) {
        let mask = (1 << to.len().min(16)) - 1;
        // SAFETY: `self` exists only if the processor supports AVX-512; the mask enables only lanes that `to`
        // has.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask as u16, x) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: `self` exists only if the processor supports AVX-512; `from` is valid for reads of 16 f32
        // by the contract of this method.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m512) {
        // SAFETY: `self` exists only if the processor supports AVX-512; `to` is valid for writes of 16 f32 by
        // the contract of this method.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_u32(self, from: *const u32) -> __m512i {
        // SAFETY: `self` exists only if the processor supports AVX-512; `from` is valid for reads of 16 u32
        // by the contract of this method.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: __m512) {
        // SAFETY: `self` exists only if the processor supports AVX-512; `to` is valid for writes of 16 u16 by
        // the contract of this method.
        unsafe {
            let halves = if BF16 {
                std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))
            } else {
                let bits = _mm512_castps_si512(x);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                // Rounding could carry a NaN into infinity or 0, so a NaN is truncated and made quiet.
                let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
                let bits = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x40_0000));
                _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits))
            };
            _mm256_storeu_si256(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_each<const N: usize>(self, to: *mut u16, vectors: [__m512; N]) {
        // SAFETY: `self` exists only if the processor supports AVX-512, and BF16 if `BF16`; `to` is valid for
        // writes of `16 N` u16 by the contract of this method.
        unsafe {
            match vectors.as_slice() {
                // One instruction and one store for both.
                [low, high] if BF16 => {
                    let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(*high, *low));
                    _mm512_storeu_si512(to.cast(), halves);
                }
                vectors => {
                    for (i, x) in vectors.iter().enumerate() {
                        self.store_bf16(to.add(16 * i), *x);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn round_bf16(self, x: __m512) -> __m512 {
        let mut halves = [0u16; 16];
        // SAFETY: `self` exists only if the processor supports AVX-512; `halves` is valid for reads and
        // writes of 16 u16.
        unsafe {
            let halves = if BF16 {
                std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))
            } else {
                self.store_bf16(halves.as_mut_ptr(), x);
                _mm256_loadu_si256(halves.as_ptr().cast())
            };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_pairs(self, to: *mut u32, low: __m512, high: __m512) -> [__m512; 2] {
        // SAFETY: `self` exists only if the processor supports AVX-512; `to` is valid for writes of 16 u32 by
        // the contract of this method.
        unsafe {
            let pairs = if BF16 {
                let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                // Element `i` of `low` is u16 `i`, that of `high` is u16 `16 + i`.
                let order = std::array::from_fn::<u16, 32, _>(
                    #[inline(always)]
                    |i| (i / 2 + i % 2 * 16) as u16,
                );
                _mm512_permutexvar_epi16(_mm512_loadu_si512(order.as_ptr().cast()), halves)
            } else {
                let (low, high) = (self.round_bf16(low), self.round_bf16(high));
                let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
                _mm512_or_si512(low, _mm512_castps_si512(high))
            };
            _mm512_storeu_si512(to.cast(), pairs);
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8, x: __m512) {
        // SAFETY: `self` exists only if the processor supports AVX-512; `to` is valid for writes of 16 bytes
        // by the contract of this method.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))) }
    }

    #[inline(always)]
    fn transpose_u32(self, matrix: &mut [[u32; 16]; 16]) {
        // SAFETY: `self` exists only if the processor supports AVX-512; each row is valid for reads and
        // writes of 16 u32.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); 16];
            for (row, from) in rows.iter_mut().zip(matrix.iter()) {
                *row = _mm512_loadu_si512(from.as_ptr().cast());
            }
            for (to, row) in matrix.iter_mut().zip(self.transpose(rows)) {
                _mm512_storeu_si512(to.as_mut_ptr().cast(), row);
            }
        }
    }

    #[inline(always)]
    unsafe fn interleave(self, x: *const u32, stride: usize, height: usize, to: *mut u32, to_stride: usize) {
        // SAFETY: `self` exists only if the processor supports AVX-512. `x` and `to` are valid for these
        // reads and writes by the contract of this method. What a vector writes after `height` elements, the
        // next one overwrites if it belongs to it.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); 16];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_si512(x.add(r.min(height - 1) * stride).cast());
            }
            for (k, elements) in self.transpose(rows).into_iter().enumerate() {
                _mm512_storeu_si512(to.add(k * to_stride).cast(), elements);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_up_to(self, to: *mut f32, x: __m512, count: usize) {
        if count >= 16 {
            // Store-to-load forwarding does not work for masked stores.
            // SAFETY: `to` is valid for writes of 16 values by the contract of this method.
            return unsafe { self.store(to, x) };
        }
        let mask = (1 << count) - 1;
        // SAFETY: `self` exists only if the processor supports AVX-512; the mask enables the first `count`
        // lanes, and `to` is valid for writes of `count` values by the contract of this method.
        unsafe { _mm512_mask_storeu_ps(to, mask, x) }
    }

    #[inline(always)]
    unsafe fn load_up_to(self, from: *const f32, count: usize) -> __m512 {
        if count >= 16 {
            // SAFETY: `from` is valid for reads of 16 values by the contract of this method.
            return unsafe { self.load(from) };
        }
        let mask = (1 << count) - 1;
        // SAFETY: `self` exists only if the processor supports AVX-512; the mask enables the first `count`
        // lanes, and `from` is valid for reads of `count` values by the contract of this method.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    #[inline(always)]
    unsafe fn store_int8_lhs(self, to: *mut u8, x: __m512) {
        // SAFETY: `self` exists only if the processor supports AVX-512; `to` is valid for writes of 16 bytes
        // by the contract of this method.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))) }
    }

    #[inline(always)]
    unsafe fn store_int8_lhs_four(self, to: *mut u8, vectors: [__m512; 4]) {
        // SAFETY: `self` exists only if the processor supports AVX-512; `to` is valid for writes of 64 bytes
        // by the contract of this method.
        unsafe {
            let [a, b, c, d] = vectors;
            let (a, b) = (_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
            let (c, d) = (_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
            // Packing works on quarters: each gets four bytes of every vector.
            let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi32(order, bytes));
        }
    }
}
