//! AVX2 with FMA: 16 registers of 8 f32.

use std::arch::x86_64::*;

use super::{Int8Format, Simd, methods, range_of_bits};

/// [`Simd`] with AVX2 and FMA. A value exists only if the processor supports both.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor supports AVX2 and FMA.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx2(())
    }

    /// A mask with all bits set in the first `min(lanes, 8)` lanes.
    #[inline(always)]
    fn mask(self, lanes: usize) -> __m256i {
        const ONES_AND_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        let from = &ONES_AND_ZEROS[8 - lanes.min(8)..][..8];
        // SAFETY: `self` exists only if the processor supports AVX2; `from` is a slice of 8 i32.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    /// Rounds to bf16; the result is in the lower 16 bits of each lane.
    #[inline(always)]
    fn round_bf16(self, x: __m256) -> __m256i {
        // SAFETY: `self` exists only if the processor supports AVX2; the intrinsics access no memory.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            // Rounding could carry a NaN into infinity or 0, so a NaN is truncated and made quiet.
            let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, nan, is_nan))
        }
    }

    /// The transpose of an 8 × 8 block of rows that begin at `rows`.
    ///
    /// # Safety
    /// Each pointer is valid for reads of 8 u32.
    #[inline(always)]
    unsafe fn transposed(self, rows: [*const u32; 8]) -> [__m256i; 8] {
        let mut columns = [self.splat_u32(0); 8];
        for (half, columns) in columns.chunks_exact_mut(4).enumerate() {
            // SAFETY: `self` exists only if the processor supports AVX2. The pointers are valid for reads of
            // 8 u32 by the contract of this function, and `half` is 0 or 1.
            unsafe {
                // Loading halves costs no shuffle: the rows `i` and `4 + i` meet here.
                let mut pairs = [_mm256_setzero_si256(); 4];
                for (i, pair) in pairs.iter_mut().enumerate() {
                    let low = _mm256_castsi128_si256(_mm_loadu_si128(rows[i].add(4 * half).cast()));
                    *pair =
                        _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(rows[4 + i].add(4 * half).cast()));
                }
                let [a, b, c, d] = pairs;
                // Rows are interleaved by single elements, then by pairs.
                let (ab, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                let (cd, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
                columns[0] = _mm256_unpacklo_epi64(ab, cd);
                columns[1] = _mm256_unpackhi_epi64(ab, cd);
                columns[2] = _mm256_unpacklo_epi64(ab2, cd2);
                columns[3] = _mm256_unpackhi_epi64(ab2, cd2);
            }
        }
        columns
    }

    /// The transpose of the 8 × 8 block from `row` and `column` on.
    #[inline(always)]
    fn transposed_block(self, matrix: &[[u32; 16]; 16], row: usize, column: usize) -> [__m256i; 8] {
        let rows = std::array::from_fn(|i| matrix[row + i][column..column + 8].as_ptr());
        // SAFETY: the slices have 8 u32.
        unsafe { self.transposed(rows) }
    }

    /// Stores an 8 × 8 block from `row` and `column` on.
    #[inline(always)]
    fn store_block(self, matrix: &mut [[u32; 16]; 16], row: usize, column: usize, block: [__m256i; 8]) {
        for (to, from) in matrix[row..row + 8].iter_mut().zip(block) {
            // SAFETY: `self` exists only if the processor supports AVX2; the slice has 8 u32.
            unsafe { _mm256_storeu_si256(to[column..column + 8].as_mut_ptr().cast(), from) };
        }
    }
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const MR: usize = 6;
    const FAST_BF16: bool = false;
    const INT8: Int8Format = Int8Format::SUMS_IN_I16;
    type F = __m256;
    type I = __m256i;

    methods! {
        splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        min(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        select_less(a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
            _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
        }
        abs(x: __m256) -> __m256 { _mm256_andnot_ps(_mm256_set1_ps(-0.0), x) }
        extend_range(range: [__m256; 2], x: __m256) -> [__m256; 2] {{
            let [min, max] = [_mm256_castps_si256(range[0]), _mm256_castps_si256(range[1])];
            let x = _mm256_castps_si256(x);
            [_mm256_castsi256_ps(_mm256_max_epu32(min, x)), _mm256_castsi256_ps(_mm256_max_epi32(max, x))]
        }}
        reduce_range(range: [__m256; 2]) -> [f32; 2] {{
            let [min, max] = [_mm256_castps_si256(range[0]), _mm256_castps_si256(range[1])];
            // With the sign bit flipped u32 are in the order of i32, so one reduction does for both.
            let min = _mm256_xor_si256(min, _mm256_set1_epi32(i32::MIN));
            let low = _mm256_permute2x128_si256::<0x20>(min, max);
            let x = _mm256_max_epi32(low, _mm256_permute2x128_si256::<0x31>(min, max));
            let x = _mm256_max_epi32(x, _mm256_shuffle_epi32::<0b01_00_11_10>(x));
            let x = _mm256_max_epi32(x, _mm256_shuffle_epi32::<0b10_11_00_01>(x));
            let min = _mm256_cvtsi256_si32(x) ^ i32::MIN;
            range_of_bits(min.cast_unsigned(), _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(x)))
        }}
        reduce_sum(x: __m256) -> f32 {{
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }}
        reduce_max(x: __m256) -> f32 {{
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }}
        copysign(x: __m256, sign: __m256) -> __m256 {
            _mm256_or_ps(x, _mm256_and_ps(_mm256_set1_ps(-0.0), sign))
        }
        scale_exp2(x: __m256, n: __m256) -> __m256 {{
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let power = |n| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
            };
            _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(n, half)))
        }}
        split_exp2(x: __m256) -> (__m256, __m256) {{
            // This order of operands propagates NaN.
            let x = _mm256_max_ps(_mm256_set1_ps(-252.0), x);
            let floor = _mm256_floor_ps(x);
            (_mm256_sub_ps(x, floor), floor)
        }}
        // `n` is added to the biased exponent of `x`. Below 2⁻¹²⁶ that would be 0 or negative; these results
        // are 0.
        multiply_exp2(x: __m256, n: __m256) -> __m256 {{
            let exponent = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n));
            let product = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
            let is_zero = _mm256_cmp_ps::<_CMP_LT_OQ>(n, _mm256_set1_ps(-126.0));
            _mm256_andnot_ps(is_zero, product)
        }}
        splat_u32(element: u32) -> __m256i { _mm256_set1_epi32(element as i32) }
        prefetch_l1(line: *const u32) -> () { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        prefetch_l2(line: *const u32) -> () { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
        i32_to_f32(x: __m256i) -> __m256 { _mm256_cvtepi32_ps(x) }
        add_product_i16(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
            _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
        }
    }

    #[inline(always)]
    fn dot_int8<const N: usize>(self, sum: __m256i, a: [__m256i; N], b: [__m256i; N]) -> __m256i {
        // SAFETY: `self` exists only if the processor supports AVX2; the intrinsics access no memory.
        unsafe {
            let mut pairs = _mm256_maddubs_epi16(a[0], b[0]);
            for i in 1..N {
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(a[i], b[i]));
            }
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn transpose_u32(self, matrix: &mut [[u32; 16]; 16]) {
        // Four blocks are transposed; those off the diagonal change places.
        for first in [0, 8] {
            let block = self.transposed_block(matrix, first, first);
            self.store_block(matrix, first, first, block);
        }
        let (right, left) = (self.transposed_block(matrix, 0, 8), self.transposed_block(matrix, 8, 0));
        self.store_block(matrix, 8, 0, right);
        self.store_block(matrix, 0, 8, left);
    }

    #[inline(always)]
    unsafe fn interleave(self, x: *const u32, stride: usize, height: usize, to: *mut u32, to_stride: usize) {
        // SAFETY: `self` exists only if the processor supports AVX2. `x` and `to` are valid for these reads
        // and writes by the contract of this method. What a vector writes after `height` elements, the next
        // one overwrites if it belongs to it.
        unsafe {
            let rows = std::array::from_fn(|r: usize| x.add(r.min(height - 1) * stride));
            for (k, elements) in self.transposed(rows).into_iter().enumerate() {
                _mm256_storeu_si256(to.add(k * to_stride).cast(), elements);
            }
        }
    }

    #[inline(always)]
    fn load_partial(self, from: &[f32], pad: f32) -> __m256 {
        // SAFETY: `self` exists only if the processor supports AVX2; the mask enables only lanes that `from`
        // has.
        unsafe {
            let mask = self.mask(from.len());
            let x = _mm256_maskload_ps(from.as_ptr(), mask);
            _mm256_blendv_ps(_mm256_set1_ps(pad), x, _mm256_castsi256_ps(mask))
        }
    }

    #[inline(always)]
    fn store_partial(self, to: &mut [f32], x: __m256) {
        // SAFETY: `self` exists only if the processor supports AVX2; the mask enables only lanes that `to`
        // has.
        unsafe { _mm256_maskstore_ps(to.as_mut_ptr(), self.mask(to.len()), x) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: `self` exists only if the processor supports AVX2; `from` is valid for reads of 8 f32 by
        // the contract of this method.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m256) {
        // SAFETY: `self` exists only if the processor supports AVX2; `to` is valid for writes of 8 f32 by the
        // contract of this method.
        unsafe { _mm256_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_u32(self, from: *const u32) -> __m256i {
        // SAFETY: `self` exists only if the processor supports AVX2; `from` is valid for reads of 8 u32 by
        // the contract of this method.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, x: __m256) {
        let x = self.round_bf16(x);
        // SAFETY: `self` exists only if the processor supports AVX2; `to` is valid for writes of 8 u16 by the
        // contract of this method.
        unsafe {
            let halves = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            _mm_storeu_si128(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn store_int8_lhs(self, to: *mut u8, x: __m256) {
        // SAFETY: `self` exists only if the processor supports AVX2; `to` is valid for writes of 8 bytes by
        // the contract of this method.
        unsafe {
            let x = _mm256_cvtps_epi32(x);
            let x = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            _mm_storel_epi64(to.cast(), _mm_packus_epi16(x, x));
        }
    }

    #[inline(always)]
    unsafe fn store_int8_lhs_four(self, to: *mut u8, vectors: [__m256; 4]) {
        // SAFETY: `self` exists only if the processor supports AVX2; `to` is valid for writes of 32 bytes by
        // the contract of this method.
        unsafe {
            let [a, b, c, d] = vectors;
            let (a, b) = (_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
            let (c, d) = (_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
            // Packing works on halves: each gets four bytes of every vector.
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(to.cast(), bytes);
        }
    }
}
