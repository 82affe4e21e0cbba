// Self-attention over a ragged batch, softmax(scale · Q Kᵀ) V for every sequence and head (Vaswani et al. 2017,
// equation 1), one tile of keys after the other with an online softmax (Dao 2023, algorithm 1).
//
// q and out are (T, heads · HEAD_DIM), k and v (T, key_value_heads · HEAD_DIM), all aligned to 16 bytes. Query head h
// attends to key/value head h · key_value_heads / heads. Query i sees the keys of its sequence from i − window_left to
// i + window_right, which always includes itself. The scale is positive.
//
// A block of 4 warps computes 64 queries of one head: grid (query tiles, heads). query_tiles is (tiles, 3): the first
// row of the sequence, its number of rows, and the first query of the tile inside the sequence.

#include "common.cuh"

constexpr unsigned ATTENTION_THREADS = 128;
constexpr unsigned TILE = 64;            // queries of a block, and keys of a step
constexpr unsigned WARP_QUERIES = 16;    // rows of a matrix fragment
constexpr float LOG2_E = 1.44269504f;

// A range of keys, first..end.
struct KeyRange {
    unsigned first, end;
};

// The keys that a query of a sequence of `rows` tokens sees.
__device__ __forceinline__ KeyRange visible_keys(unsigned query, unsigned rows, unsigned window_left,
                                                 unsigned window_right) {
    return {query > window_left ? query - window_left : 0, window_right < rows - query ? query + window_right + 1 : rows};
}

// Copies the TILE rows from row `first` on to shared memory, asynchronously. Rows from `end` on are not read but set to
// 0. Rows in shared memory are padded by 16 bytes to an odd multiple of 16 bytes, so that eight consecutive rows have
// no bank conflicts.
template <int HEAD_DIM, typename D>
__device__ __forceinline__ void load_rows_async(D* to, const D* from, unsigned width, unsigned first, unsigned end) {
    constexpr unsigned VECTORS = HEAD_DIM / 8;
    UNROLL
    for (unsigned i = 0; i < TILE * VECTORS / ATTENTION_THREADS; ++i) {
        const unsigned part = i * ATTENTION_THREADS + threadIdx.x;
        const unsigned row = part / VECTORS, column = part % VECTORS * 8;
        copy_16_async(to + row * (HEAD_DIM + 8) + column, from + size_t(first + row) * width + column, first + row < end);
    }
}

// The body of the kernel. It is one function, because the fragments of queries, scores and accumulators stay in
// registers from step to step.
template <typename D, int HEAD_DIM>
__device__ __forceinline__ void attention(D* out, const D* q, const D* k, const D* v, const unsigned* query_tiles,
                                          unsigned heads, unsigned key_value_heads, float scale, unsigned window_left,
                                          unsigned window_right) {
    constexpr int STEPS = HEAD_DIM / 16;  // K steps of Q Kᵀ, 16 columns of a head each
    constexpr int STRIDE = HEAD_DIM + 8;
    SHARED(D, key_rows, TILE * STRIDE);
    SHARED(D, value_rows, TILE * STRIDE);

    const unsigned start = query_tiles[3 * size_t(blockIdx.x)], rows = query_tiles[3 * size_t(blockIdx.x) + 1];
    const unsigned first = query_tiles[3 * size_t(blockIdx.x) + 2];
    if (first >= rows) return;
    const unsigned last = rows - first < TILE ? rows - 1 : first + TILE - 1;
    const unsigned head = blockIdx.y;
    const unsigned width = heads * HEAD_DIM, key_width = key_value_heads * HEAD_DIM;
    q += size_t(start) * width + head * HEAD_DIM;
    out += size_t(start) * width + head * HEAD_DIM;
    k += size_t(start) * key_width + head * key_value_heads / heads * HEAD_DIM;
    v += size_t(start) * key_width + head * key_value_heads / heads * HEAD_DIM;

    // The rows and the pair of columns that this lane holds of a fragment of 16 × 8 or 16 × 16.
    const unsigned lane = threadIdx.x % LANES, group = lane / 4, pair = 2 * (lane % 4);
    const unsigned query[2] = {first + threadIdx.x / LANES * WARP_QUERIES + group,
                               first + threadIdx.x / LANES * WARP_QUERIES + group + 8};
    // Lanes past the end of the sequence repeat the last query and do not write it.
    const unsigned clamped[2] = {query[0] < last ? query[0] : last, query[1] < last ? query[1] : last};
    const KeyRange visible[2] = {visible_keys(clamped[0], rows, window_left, window_right),
                                 visible_keys(clamped[1], rows, window_left, window_right)};

    Packed queries[STEPS][4];
    UNROLL
    for (int step = 0; step < STEPS; ++step) {
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const D* from = q + size_t(clamped[i % 2]) * width + step * 16 + i / 2 * 8 + pair;
            queries[step][i] = *reinterpret_cast<const Packed*>(from);
        }
    }

    // The keys that at least one query of the tile sees, and those that every query sees.
    const KeyRange first_keys = visible_keys(first, rows, window_left, window_right);
    const KeyRange last_keys = visible_keys(last, rows, window_left, window_right);
    const KeyRange some_see = {first_keys.first, last_keys.end}, all_see = {last_keys.first, first_keys.end};
    const float factor = scale * LOG2_E;
    float accumulators[HEAD_DIM / 8][4] = {};
    float row_max[2] = {-INFINITY, -INFINITY};
    float row_sum[2] = {};

    load_rows_async<HEAD_DIM>(key_rows, k, key_width, some_see.first, some_see.end);
    for (unsigned key = some_see.first; key < some_see.end; key += TILE) {
        wait_for_copies();
        __syncthreads();  // the keys have arrived, and the values before are no longer needed
        load_rows_async<HEAD_DIM>(value_rows, v, key_width, key, some_see.end);

        float scores[TILE / 8][4] = {};
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            UNROLL
            for (int n = 0; n < int(TILE / 16); ++n) {
                // Four matrices of 8 × 8: 16 keys by 16 columns.
                Packed b[4];
                const unsigned row = n * 16 + lane / 16 * 8 + lane % 8, column = step * 16 + lane / 8 % 2 * 8;
                load_matrices(b, key_rows + row * STRIDE + column);
                mma_m16n8k16(scores[2 * n], queries[step], b[0], b[1], D());
                mma_m16n8k16(scores[2 * n + 1], queries[step], b[2], b[3], D());
            }
        }

        if (key < all_see.first || key + TILE > all_see.end) {
            UNROLL
            for (int n = 0; n < int(TILE / 8); ++n) {
                UNROLL
                for (int i = 0; i < 4; ++i) {
                    const unsigned j = key + n * 8 + pair + i % 2;
                    if (j < visible[i / 2].first || j >= visible[i / 2].end) scores[n][i] = -INFINITY;
                }
            }
        }
        UNROLL
        for (int r = 0; r < 2; ++r) {
            float max = row_max[r];
            UNROLL
            for (int n = 0; n < int(TILE / 8); ++n) max = fmaxf(max, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
            max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
            max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
            // Finite: the first tile of keys begins with the first key that any query sees, so every query sees a key
            // in it.
            const float base = max * factor;
            const float rescale = exp2_fast(row_max[r] * factor - base);
            row_max[r] = max;
            row_sum[r] *= rescale;
            UNROLL
            for (int n = 0; n < int(TILE / 8); ++n) {
                UNROLL
                for (int i = 2 * r; i < 2 * r + 2; ++i) {
                    scores[n][i] = exp2_fast(scores[n][i] * factor - base);
                    row_sum[r] += scores[n][i];
                }
            }
            UNROLL
            for (int n = 0; n < HEAD_DIM / 8; ++n) {
                accumulators[n][2 * r] *= rescale;
                accumulators[n][2 * r + 1] *= rescale;
            }
        }

        wait_for_copies();
        __syncthreads();  // the values have arrived, and these keys are no longer needed
        if (some_see.end - key > TILE) load_rows_async<HEAD_DIM>(key_rows, k, key_width, key + TILE, some_see.end);
        UNROLL
        for (int step = 0; step < int(TILE / 16); ++step) {
            // The layout of the weights as accumulators of an mma is that of its left operand.
            Packed a[4];
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const float(&from)[4] = scores[2 * step + i / 2];
                pack_pair(from[i % 2 * 2], from[i % 2 * 2 + 1], D(), a[i]);
            }
            UNROLL
            for (int n = 0; n < STEPS; ++n) {
                // Four matrices of 8 × 8: 16 keys by 16 columns.
                Packed b[4];
                const unsigned row = step * 16 + lane % 16, column = n * 16 + lane / 16 * 8;
                load_matrices_transposed(b, value_rows + row * STRIDE + column);
                mma_m16n8k16(accumulators[2 * n], a, b[0], b[1], D());
                mma_m16n8k16(accumulators[2 * n + 1], a, b[2], b[3], D());
            }
        }
    }

    UNROLL
    for (int r = 0; r < 2; ++r) {
        row_sum[r] += __shfl_xor_sync(ALL_LANES, row_sum[r], 1);
        row_sum[r] += __shfl_xor_sync(ALL_LANES, row_sum[r], 2);
    }
    UNROLL
    for (int r = 0; r < 2; ++r) {
        if (query[r] > last) continue;
        const float inverse_sum = 1.0f / row_sum[r];
        UNROLL
        for (int n = 0; n < HEAD_DIM / 8; ++n) {
            Packed both;
            pack_pair(accumulators[n][2 * r] * inverse_sum, accumulators[n][2 * r + 1] * inverse_sum, D(), both);
            *reinterpret_cast<Packed*>(out + size_t(query[r]) * width + n * 8 + pair) = both;
        }
    }
}

// Minimum resident blocks per multiprocessor. With more, registers would spill.
#define ATTENTION_BLOCKS(HEAD_DIM) (HEAD_DIM <= 32 ? 4 : HEAD_DIM <= 64 ? 3 : 2)

#define ATTENTION_OF(suffix, D, HEAD_DIM)                                                                             \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS(HEAD_DIM))                       \
        attention_##suffix##_##HEAD_DIM(D* out, const D* q, const D* k, const D* v, const unsigned* query_tiles,      \
                                    unsigned heads, unsigned key_value_heads, float scale, unsigned window_left,      \
                                    unsigned window_right) {                                                          \
        attention<D, HEAD_DIM>(out, q, k, v, query_tiles, heads, key_value_heads, scale, window_left, window_right);  \
    }
#define ATTENTION(suffix, D)    \
    ATTENTION_OF(suffix, D, 32) \
    ATTENTION_OF(suffix, D, 64) \
    ATTENTION_OF(suffix, D, 96) \
    ATTENTION_OF(suffix, D, 128)
ATTENTION(f16, __half)
ATTENTION(bf16, __nv_bfloat16)
#undef ATTENTION
#undef ATTENTION_OF
#undef ATTENTION_BLOCKS
