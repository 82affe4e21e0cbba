// Attention of every text of a ragged batch over itself, softmax(scale · Q Kᵀ) V for every head (Vaswani et al. 2017,
// equation 1), a tile of keys after the other with the softmax kept up as they come (Dao 2023, algorithm 1).
//
// q and out are (T, heads · SIZE), k and v (T, key_value_heads · SIZE), all on boundaries of 16 bytes; query head h
// meets key/value head h · key_value_heads / heads. Query i sees the keys of its text from i − before to i + after,
// and so itself, always. The scale is above 0.
//
// A block of 4 warps does 64 queries of one head: grid (tiles, heads). A tile is three numbers: the first row of its
// text, the rows of the text, and the tile's first query inside the text.

#include "common.cuh"

constexpr unsigned ATTENTION_THREADS = 128;
constexpr unsigned TILE = 64;            // queries of a block, keys of a step
constexpr unsigned WARP_QUERIES = 16;    // as many as a matrix fragment has rows
constexpr float LOG2_E = 1.44269504f;

// Keys first..end that a query, or all queries of a tile, see.
struct Keys {
    unsigned first, end;
};

__device__ __forceinline__ Keys keys_of(unsigned query, unsigned rows, unsigned before, unsigned after) {
    return {query > before ? query - before : 0, after < rows - query ? query + after + 1 : rows};
}

// Brings TILE rows from row `first` on into shared memory; those from `end` on are zeros there, and not read. Rows in
// shared memory are 16 bytes longer than SIZE, an odd number of 16 bytes, so that eight of them one below the other
// have no bank in common.
template <int SIZE, typename D>
__device__ __forceinline__ void bring_rows(D* to, const D* from, unsigned width, unsigned first, unsigned end) {
    constexpr unsigned PARTS = SIZE / 8;
    UNROLL
    for (unsigned i = 0; i < TILE * PARTS / ATTENTION_THREADS; ++i) {
        const unsigned part = i * ATTENTION_THREADS + threadIdx.x;
        const unsigned row = part / PARTS, column = part % PARTS * 8;
        copy_16(to + row * (SIZE + 8) + column, from + size_t(first + row) * width + column, first + row < end);
    }
}

template <typename D, int SIZE>
__device__ __forceinline__ void attention(D* out, const D* q, const D* k, const D* v, const unsigned* tiles,
                                          unsigned heads, unsigned key_value_heads, float scale, unsigned before,
                                          unsigned after) {
    constexpr int STEPS = SIZE / 16;  // of a product over a head's columns
    constexpr int STRIDE = SIZE + 8;
    SHARED(D, key_rows, TILE * STRIDE);
    SHARED(D, value_rows, TILE * STRIDE);

    const unsigned start = tiles[3 * size_t(blockIdx.x)], rows = tiles[3 * size_t(blockIdx.x) + 1];
    const unsigned first = tiles[3 * size_t(blockIdx.x) + 2];
    if (first >= rows) return;
    const unsigned last = rows - first < TILE ? rows - 1 : first + TILE - 1;
    const unsigned head = blockIdx.y;
    const unsigned width = heads * SIZE, key_width = key_value_heads * SIZE;
    q += size_t(start) * width + head * SIZE;
    out += size_t(start) * width + head * SIZE;
    k += size_t(start) * key_width + head * key_value_heads / heads * SIZE;
    v += size_t(start) * key_width + head * key_value_heads / heads * SIZE;

    // The rows and the pair of columns of a fragment of 16 × 8 or 16 × 16 that this lane has.
    const unsigned lane = threadIdx.x % LANES, group = lane / 4, pair = 2 * (lane % 4);
    const unsigned query[2] = {first + threadIdx.x / LANES * WARP_QUERIES + group,
                               first + threadIdx.x / LANES * WARP_QUERIES + group + 8};
    // Past the end of the text, the last query is done once more and not written.
    const unsigned clamped[2] = {query[0] < last ? query[0] : last, query[1] < last ? query[1] : last};
    const Keys sees[2] = {keys_of(clamped[0], rows, before, after), keys_of(clamped[1], rows, before, after)};

    Word queries[STEPS][4];
    UNROLL
    for (int step = 0; step < STEPS; ++step) {
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const D* from = q + size_t(clamped[i % 2]) * width + step * 16 + i / 2 * 8 + pair;
            queries[step][i] = *reinterpret_cast<const Word*>(from);
        }
    }

    // What any query of the tile sees, and what all of them do.
    const Keys of_first = keys_of(first, rows, before, after), of_last = keys_of(last, rows, before, after);
    const Keys any = {of_first.first, of_last.end}, all = {of_last.first, of_first.end};
    const float factor = scale * LOG2_E;
    float sums[SIZE / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY};
    float total[2] = {};

    bring_rows<SIZE>(key_rows, k, key_width, any.first, any.end);
    for (unsigned key = any.first; key < any.end; key += TILE) {
        copies_wait();
        __syncthreads();  // the keys are there, and nobody needs the last values any more
        bring_rows<SIZE>(value_rows, v, key_width, key, any.end);

        float scores[TILE / 8][4] = {};
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            UNROLL
            for (int n = 0; n < int(TILE / 16); ++n) {
                // 16 keys, 8 at a time, by 16 columns, 8 at a time.
                Word b[4];
                const unsigned row = n * 16 + lane / 16 * 8 + lane % 8, column = step * 16 + lane / 8 % 2 * 8;
                load_matrices(b, key_rows + row * STRIDE + column);
                multiply_add(scores[2 * n], queries[step], b[0], b[1], D());
                multiply_add(scores[2 * n + 1], queries[step], b[2], b[3], D());
            }
        }

        if (key < all.first || key + TILE > all.end) {
            UNROLL
            for (int n = 0; n < int(TILE / 8); ++n) {
                UNROLL
                for (int i = 0; i < 4; ++i) {
                    const unsigned j = key + n * 8 + pair + i % 2;
                    if (j < sees[i / 2].first || j >= sees[i / 2].end) scores[n][i] = -INFINITY;
                }
            }
        }
        UNROLL
        for (int r = 0; r < 2; ++r) {
            float most = top[r];
            UNROLL
            for (int n = 0; n < int(TILE / 8); ++n) most = fmaxf(most, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            // Not −∞: the tiles begin with the first key of the first query, so that every query sees one of the
            // first tile.
            const float base = most * factor;
            const float shrink = exp2_fast(top[r] * factor - base);
            top[r] = most;
            total[r] *= shrink;
            UNROLL
            for (int n = 0; n < int(TILE / 8); ++n) {
                UNROLL
                for (int i = 2 * r; i < 2 * r + 2; ++i) {
                    scores[n][i] = exp2_fast(scores[n][i] * factor - base);
                    total[r] += scores[n][i];
                }
            }
            UNROLL
            for (int n = 0; n < SIZE / 8; ++n) {
                sums[n][2 * r] *= shrink;
                sums[n][2 * r + 1] *= shrink;
            }
        }

        copies_wait();
        __syncthreads();  // the values are there, and nobody needs these keys any more
        if (any.end - key > TILE) bring_rows<SIZE>(key_rows, k, key_width, key + TILE, any.end);
        UNROLL
        for (int step = 0; step < int(TILE / 16); ++step) {
            // As sums of a product, the weights lie where they have to lie as factors of one.
            Word a[4];
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const float(&from)[4] = scores[2 * step + i / 2];
                narrow_pair(from[i % 2 * 2], from[i % 2 * 2 + 1], D(), a[i]);
            }
            UNROLL
            for (int n = 0; n < STEPS; ++n) {
                // 16 keys, 8 at a time, by 16 columns, 8 at a time.
                Word b[4];
                const unsigned row = step * 16 + lane % 16, column = n * 16 + lane / 16 * 8;
                load_matrices_transposed(b, value_rows + row * STRIDE + column);
                multiply_add(sums[2 * n], a, b[0], b[1], D());
                multiply_add(sums[2 * n + 1], a, b[2], b[3], D());
            }
        }
    }

    UNROLL
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(ALL_LANES, total[r], 1);
        total[r] += __shfl_xor_sync(ALL_LANES, total[r], 2);
    }
    UNROLL
    for (int r = 0; r < 2; ++r) {
        if (query[r] > last) continue;
        const float share = 1.0f / total[r];
        UNROLL
        for (int n = 0; n < SIZE / 8; ++n) {
            Word both;
            narrow_pair(sums[n][2 * r] * share, sums[n][2 * r + 1] * share, D(), both);
            *reinterpret_cast<Word*>(out + size_t(query[r]) * width + n * 8 + pair) = both;
        }
    }
}

// How many blocks a processor should have registers for: more would spill them.
#define ATTENTION_BLOCKS(SIZE) (SIZE <= 32 ? 4 : SIZE <= 64 ? 3 : 2)

#define ATTENTION_OF(suffix, D, SIZE)                                                                                 \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS(SIZE))                           \
        attention_##suffix##_##SIZE(D* out, const D* q, const D* k, const D* v, const unsigned* tiles,                \
                                    unsigned heads, unsigned key_value_heads, float scale, unsigned before,           \
                                    unsigned after) {                                                                 \
        attention<D, SIZE>(out, q, k, v, tiles, heads, key_value_heads, scale, before, after);                        \
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
