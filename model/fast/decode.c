/* The model (model/gpt.py) on new positions of each sequence, for `GPTInC` of model/fast/decode.py. It
computes in float32, and reads all weights once, in their order in memory. With -DBFLOAT16=1, the
weights of matrices are bfloat16.

A matrix is stored in panels of 16 outputs: for each input, the 16 weights that multiply it, so that
no product needs a sum across a vector. Letters as in model/attention.py; rows are B times T. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#if defined __x86_64__ && defined __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 35) /* its libmvec has these for vectors, too */
#pragma omp declare simd notinbranch
float erff(float);
#pragma omp declare simd notinbranch
float expf(float);
#pragma omp declare simd notinbranch
float tanhf(float);
#endif
#endif

enum { LANES = 16, TILE = 8 };
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Half __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
enum { WEIGHT = BFLOAT16 ? sizeof(Half) : sizeof(Vector) }; /* bytes of 16 weights of a matrix */

enum activation { RELU, RELU2, GELU, GELU_TANH, STORE, ADD };

typedef struct { /* in the order of `GPTInC.shape` in model/fast/decode.py */
    int layers, C, H, G, hidden, V, positions, qk_norm, rotary, activation;
    int window[]; /* of each layer; 0: none */
} Shape;

static int panels(int n) { return (n + LANES - 1) / LANES; }

static int min(int a, int b) { return a < b ? a : b; }

/* Sixteen numbers; a bfloat16 is the upper half of a float32. */
static inline Vector load(const char *panel, long i, int bytes) {
    if (bytes == sizeof(Vector)) return ((const Vector *)panel)[i];
    return (Vector)(__builtin_convertvector(((const Half *)panel)[i], Bits) << 16);
}

/* sums[r] += the panel, with `bytes` per input, times row r of x. The sum has `steps` independent
parts. With several rows, the next panel is prefetched. */
static inline __attribute__((always_inline)) void multiply(
    Vector *sums, const void *panel, const int bytes, const float *x, int in, const int rows,
    const int steps) {
    Vector parts[TILE] = {0};
    int j = 0;
    for (; j + steps <= in; j += steps) {
        if (rows > 1) __builtin_prefetch((char *)panel + (long)bytes * (j + in), 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (int k = 0; k < steps; k++)
                parts[r * steps + k] += load(panel, j + k, bytes) * x[(long)r * in + j + k];
    }
    for (; j < in; j++)
        for (int r = 0; r < rows; r++)
            parts[r * steps] += load(panel, j, bytes) * x[(long)r * in + j];
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < steps; k++) sums[r] += parts[r * steps + k];
}

/* Finish a product x: apply an activation and store it in y, or add it to y. */
static void finish(enum activation how, const float *restrict x, float *restrict y, int n) {
#define EACH(value)                                                                                \
    _Pragma("omp simd") for (int i = 0; i < n; i++) {                                              \
        float a = x[i];                                                                            \
        y[i] = value;                                                                              \
    }                                                                                              \
    break
    switch (how) {
    case RELU: EACH(a > 0 ? a : 0 * a);
    case RELU2: EACH(a > 0 ? a * a : 0 * a); /* NaN stays */
    case GELU: EACH(0.5f * a * (1 + erff(0.70710678f * a)));
    case GELU_TANH: EACH(0.5f * a * (1 + tanhf(0.79788456f * (a + 0.044715f * a * a * a))));
    case STORE: EACH(a);
    case ADD: EACH(y[i] + a);
    }
}

/* y = finish(x W^T + b) for each row, without a barrier at the end. p: panels, each with b, then W;
returns the address after them. */
static const char *linear(const char *p, const float *x, float *y, int rows, int in, int out,
                          enum activation how) {
#pragma omp for nowait
    for (int i = 0; i < panels(out); i++) {
        const char *panel = p + (long)i * (in + 1) * WEIGHT;
        for (int row = 0, n; row < rows; row += n) {
            const float *from = x + (long)row * in;
            Vector sums[TILE];
            for (int r = 0; r < TILE; r++) sums[r] = load(panel, 0, WEIGHT);
            n = rows - row < TILE ? 1 : TILE;
            if (n == 1) multiply(sums, panel + WEIGHT, WEIGHT, from, in, 1, TILE);
            else multiply(sums, panel + WEIGHT, WEIGHT, from, in, TILE, 1);
            for (int r = 0; r < n; r++) {
                finish(how, (float *)&sums[r], y + (long)(row + r) * out + i * LANES,
                       min(LANES, out - i * LANES));
            }
        }
    }
    return p + (long)panels(out) * (in + 1) * WEIGHT;
}

/* LayerNorm of n numbers. p: weights, then biases. */
static void normalize(const float *p, const float *x, float *y, int n) {
    float mean = 0, square = 0;
#pragma omp simd reduction(+ : mean)
    for (int i = 0; i < n; i++) mean += x[i];
    mean /= n;
#pragma omp simd reduction(+ : square)
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    float scale = 1 / sqrtf(square / n + 1e-5f);
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = (x[i] - mean) * scale * p[i] + p[n + i];
}

static const char *normalize_rows(const char *p, const float *x, float *y, int rows, int n) {
#pragma omp for
    for (int r = 0; r < rows; r++) normalize((const float *)p, x + (long)r * n, y + (long)r * n, n);
    return p + 4L * 2 * n;
}

/* Rotates the pairs (d, d + D / 2). table: (2, positions, D), cosines and signed sines. */
static void rotate(const float *table, float *x, int D, int positions, int at) {
    const float *cos = table + (long)at * D, *sin = cos + (long)positions * D;
    for (int d = 0, e = D / 2; e < D; d++, e++) {
        float low = x[d], high = x[e];
        x[d] = low * cos[d] + high * sin[d];
        x[e] = high * cos[e] + low * sin[e];
    }
}

/* Store the key k and the value v of position `at`. Keys are in panels as if the scores were the
outputs of a linear layer, values as if z were. */
static void keep(const float *k, const float *v, float *keys, float *values, int D, int positions,
                 int at) {
    for (int d = 0; d < D; d++) {
        keys[((long)(at / LANES) * D + d) * LANES + at % LANES] = k[d];
        values[((long)(d / LANES) * positions + at) * LANES + d % LANES] = v[d];
    }
}

/* z = the output of one head at position `at`, which attends from position `first`. weights: scratch. */
static void attend(const float *q, float *z, const float *keys, const float *values, float *weights,
                   int D, int positions, int first, int at) {
    for (int s = first / LANES * LANES; s <= at; s += LANES) {
        Vector scores = {0};
        multiply(&scores, (Vector *)keys + (long)s / LANES * D, sizeof(Vector), q, D, 1, TILE);
        *(Vector *)(weights + s) = scores / sqrtf(D);
    }
    float largest = -INFINITY, total = 0;
#pragma omp simd reduction(max : largest)
    for (int s = first; s <= at; s++) largest = weights[s] > largest ? weights[s] : largest;
#pragma omp simd reduction(+ : total)
    for (int s = first; s <= at; s++) total += weights[s] = expf(weights[s] - largest);
    for (int d = 0; d < D; d += LANES) {
        Vector sum = {0};
        multiply(&sum, (Vector *)values + (long)d / LANES * positions + first, sizeof(Vector),
                 weights + first, at + 1 - first, 1, TILE);
        for (int i = 0; i < min(LANES, D - d); i++) z[d + i] = sum[i] / total;
    }
}

/* The size of the keys, or the values, of a head in numbers: (positions, D), both rounded up to 16. */
static int64_t count_kept(const Shape *m) {
    return (int64_t)panels(m->positions) * panels(m->C / m->H) * LANES * LANES;
}

/* The number of numbers that `forward` keeps for a sequence. */
int64_t count_cache(const Shape *m) { return 2 * m->layers * m->G * count_kept(m); }

/* The number of bytes of weights that `forward` reads. */
int64_t count_weights(const Shape *m) {
    int64_t C = m->C, D = C / m->H, inputs = 2 * panels(C) + 2 * panels(m->G * D);
    int64_t layer = inputs * (C + 1), norms = 2 * C + (m->qk_norm ? 4 * D : 0);
    if (m->hidden) {
        layer += panels(m->hidden) * (C + 1) + panels(C) * (m->hidden + 1L);
        norms += 2 * C;
    }
    int64_t vectors = m->layers * norms + 2 * C + (m->rotary ? 2 * m->positions * D : 0);
    return 4 * vectors + WEIGHT * (m->layers * layer + panels(m->V) * (C + 1));
}

/* Compute the logits (B, T, V) of x (B, T, C), at the positions from `start`; x is overwritten.

weights: see `laid_out` in model/fast/decode.py. cache: keys, then values, of each layer, sequence and head,
filled up to `start`. Returns 0 if there is not enough memory. */
int forward(const Shape *m, const char *weights, float *x, float *logits, float *cache, int B,
            int T, int start, int threads) {
    int C = m->C, H = m->H, G = m->G, D = C / H, kv = G * D, hidden = m->hidden, rows = B * T;
    long n = rows, positions = (long)panels(m->positions) * LANES;
    float *keys = cache, *values = keys + (long)m->layers * B * G * count_kept(m);
    float *scratch = malloc(4 * (n * (3L * C + 2 * kv + hidden) + B * G * positions));
    if (!scratch) return 0;
    float *normed = scratch, *queries = normed + n * C, *k_rows = queries + n * C;
    float *v_rows = k_rows + n * kv, *z = v_rows + n * kv, *neurons = z + n * C;
    float *scores = neurons + n * hidden;
#pragma omp parallel num_threads(threads)
    {
        const char *p = weights + (m->rotary ? 4 * 2L * m->positions * D : 0);
        for (int layer = 0; layer < m->layers; layer++) {
            p = normalize_rows(p, x, normed, rows, C);
            p = linear(p, normed, queries, rows, C, C, STORE);
            p = linear(p, normed, k_rows, rows, C, kv, STORE);
            p = linear(p, normed, v_rows, rows, C, kv, STORE);
#pragma omp barrier
            const float *norms = (const float *)(p + (long)panels(C) * (C + 1) * WEIGHT);
#pragma omp for
            for (int i = 0; i < B * G; i++) /* a head of keys and values */
                for (int t = 0; t < T; t++) {
                    long row = (long)(i / G) * T + t, kept = ((long)layer * B * G + i) * count_kept(m);
                    int at = start + t, group = H / G, width = m->window[layer];
                    int first = width && at >= width ? at + 1 - width : 0;
                    float *k = k_rows + row * kv + i % G * D;
                    /* the norms of queries and keys come after the weights of `out` */
                    if (m->qk_norm) normalize(norms + 2 * D, k, k, D);
                    if (m->rotary) rotate((const float *)weights, k, D, m->positions, at);
                    keep(k, v_rows + (k - k_rows), keys + kept, values + kept, D, positions, at);
                    for (int h = 0; h < group; h++) { /* the heads of queries that share it */
                        long head = row * C + (i % G * group + h) * D;
                        float *q = queries + head;
                        if (m->qk_norm) normalize(norms, q, q, D);
                        if (m->rotary) rotate((const float *)weights, q, D, m->positions, at);
                        attend(q, z + head, keys + kept, values + kept, scores + i * positions, D,
                               positions, first, at);
                    }
                }
            p = linear(p, z, x, rows, C, C, ADD);
#pragma omp barrier
            p += m->qk_norm ? 4 * 4 * D : 0;
            if (!hidden) continue; /* attention only */
            p = normalize_rows(p, x, normed, rows, C);
            p = linear(p, normed, neurons, rows, C, hidden, m->activation);
#pragma omp barrier
            p = linear(p, neurons, x, rows, hidden, C, ADD);
#pragma omp barrier
        }
        p = normalize_rows(p, x, normed, rows, C);
        linear(p, normed, logits, rows, C, m->V, STORE);
    }
    free(scratch);
    return 1;
}
