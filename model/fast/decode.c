/* The model (model/gpt.py) on new positions of each sequence, for `GPTInC` of model/fast/decode.py. It
computes in float32, and reads all weights once, in their order in memory. With -DBFLOAT16=1, the
weights of matrices are bfloat16.

A matrix is stored in panels of 16 outputs: their biases, and for each input, the 16 weights that
multiply it, so that no product needs a sum across a vector. In bfloat16, two inputs share 16 words
of 32 bits, which a shift or a mask makes float32. Letters as in model/attention.py; rows are B
times T. */

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

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
typedef uint32_t Bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
enum { WEIGHT = 4 * LANES / (BFLOAT16 ? 2 : 1) }; /* bytes of 16 weights of a matrix */

enum activation { RELU, RELU2, GELU, GELU_TANH, STORE, ADD };

typedef struct { /* in the order of `GPTInC.shape` in model/fast/decode.py */
    int layers, C, H, G, hidden, V, positions, qk_norm, rotary, activation, learned, ngrams;
    int ngram_rows;
    int window[]; /* of each layer; 0: none */
} Shape;

/* Wait for the other threads. The barrier of GCC's OpenMP makes a system call each time. */
static void meet(atomic_int *arrived) {
#ifdef _OPENMP
    int threads = omp_get_num_threads(), before = atomic_fetch_add(arrived, 1);
    for (int i = 0; atomic_load(arrived) < before / threads * threads + threads; i++)
        if (i > 10000) sched_yield(); /* another program may have the core */
#endif
}

static int panels(int n) { return (n + LANES - 1) / LANES; }

/* The size of a panel: biases, and weights of an even number of inputs. */
static int64_t panel_bytes(int in) { return sizeof(Vector) + (in + in % 2) * (int64_t)WEIGHT; }

static int min(int a, int b) { return a < b ? a : b; }

/* The weights of input i; a bfloat16 is the upper half of a float32. */
static inline Vector load(const char *panel, long i, int bytes) {
    if (bytes == sizeof(Vector)) return ((const Vector *)panel)[i];
    Bits pair = ((const Bits *)panel)[i / 2];
    return i % 2 ? (Vector)(pair & 0xffff0000) : (Vector)(pair << 16);
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

/* y = finish(x W^T + b) for each row, without a barrier at the end. p: panels; returns the address
after them. */
static const char *linear(const char *p, const float *x, float *y, int rows, int in, int out,
                          enum activation how) {
#pragma omp for nowait
    for (int i = 0; i < panels(out); i++) {
        const char *panel = p + i * panel_bytes(in);
        for (int row = 0, n; row < rows; row += n) {
            const float *from = x + (long)row * in;
            Vector sums[TILE];
            for (int r = 0; r < TILE; r++) sums[r] = *(const Vector *)panel;
            n = rows - row < TILE ? 1 : TILE;
            if (n == 1) multiply(sums, panel + sizeof(Vector), WEIGHT, from, in, 1, TILE);
            else multiply(sums, panel + sizeof(Vector), WEIGHT, from, in, TILE, 1);
            for (int r = 0; r < n; r++) {
                finish(how, (float *)&sums[r], y + (long)(row + r) * out + i * LANES,
                       min(LANES, out - i * LANES));
            }
        }
    }
    return p + panels(out) * panel_bytes(in);
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
#pragma omp for nowait
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

/* x = the sum of the embeddings of the token at position `at`, of the position, and of n-grams.
tables: of tokens, of positions or NULL, of 2-grams, of 3-grams, ... */
static void embed(const Shape *m, const float *const *tables, const int64_t *tokens, int at, float *x) {
    for (int i = 0; i < m->C; i++) {
        x[i] = tables[0][tokens[at] * m->C + i];
        if (m->learned) x[i] += tables[1][(long)at * m->C + i];
    }
    for (int n = 2; n <= m->ngrams; n++) {
        int64_t row = 0; /* as in `NgramEmbeddings` */
        for (int s = at + 1 - n; s <= at; s++)
            row = (row * m->V + (s < 0 ? 0 : tokens[s])) % m->ngram_rows;
        for (int i = 0; i < m->C; i++) x[i] += tables[n][row * m->C + i];
    }
}

/* The size of the keys, or the values, of a head in numbers: (positions, D), both rounded up to 16. */
static int64_t count_kept(const Shape *m) {
    return (int64_t)panels(m->positions) * panels(m->C / m->H) * LANES * LANES;
}

/* The number of bytes that `forward` keeps for a sequence: keys, values and tokens. */
int64_t count_cache(const Shape *m) {
    return 4 * 2 * m->layers * m->G * count_kept(m) + 8L * m->positions;
}

/* The number of bytes of weights that `forward` reads. */
int64_t count_weights(const Shape *m) {
    int64_t C = m->C, D = C / m->H, inputs = 2 * panels(C) + 2 * panels(m->G * D);
    int64_t layer = inputs * panel_bytes(C), norms = 2 * C + (m->qk_norm ? 4 * D : 0);
    if (m->hidden) {
        layer += panels(m->hidden) * panel_bytes(C) + panels(C) * panel_bytes(m->hidden);
        norms += 2 * C;
    }
    int64_t vectors = m->layers * norms + 2 * C + (m->rotary ? 2 * m->positions * D : 0);
    return 4 * vectors + m->layers * layer + panels(m->V) * panel_bytes(C);
}

/* Compute the logits (B, T, V) of the tokens (B, T), at the positions from `start`.

weights: see `laid_out` in model/fast/decode.py. tables: see `embed`. cache: keys, then values, of each
layer, sequence and head, then the tokens, filled up to `start`. Returns 0 if there is not enough memory,
and -1 if a token is not in the vocabulary. */
int forward(const Shape *m, const char *weights, const float *const *tables, const int64_t *tokens,
            float *logits, float *cache, int B, int T, int start, int threads) {
    int C = m->C, H = m->H, G = m->G, D = C / H, kv = G * D, hidden = m->hidden, rows = B * T;
    long n = rows, positions = (long)panels(m->positions) * LANES;
    float *keys = cache, *values = keys + (long)m->layers * B * G * count_kept(m);
    int64_t *history = (int64_t *)(values + (long)m->layers * B * G * count_kept(m));
    for (int row = 0; row < rows; row++)
        if (tokens[row] < 0 || tokens[row] >= m->V) return -1;
    float *scratch = malloc(4 * (n * (4L * C + 2 * kv + hidden) + B * G * positions));
    if (!scratch) return 0;
    float *x = scratch, *normed = x + n * C, *queries = normed + n * C, *k_rows = queries + n * C;
    float *v_rows = k_rows + n * kv, *z = v_rows + n * kv, *neurons = z + n * C;
    float *scores = neurons + n * hidden;
    for (int row = 0; row < rows; row++) {
        int64_t *read = history + (long)(row / T) * m->positions;
        int at = start + row % T;
        read[at] = tokens[row];
        embed(m, tables, read, at, x + (long)row * C);
    }
    atomic_int arrived = 0;
#pragma omp parallel num_threads(threads)
    {
        const char *p = weights + (m->rotary ? 4 * 2L * m->positions * D : 0);
        for (int layer = 0; layer < m->layers; layer++) {
            p = normalize_rows(p, x, normed, rows, C);
            meet(&arrived);
            p = linear(p, normed, queries, rows, C, C, STORE);
            p = linear(p, normed, k_rows, rows, C, kv, STORE);
            p = linear(p, normed, v_rows, rows, C, kv, STORE);
            meet(&arrived);
            const float *norms = (const float *)(p + panels(C) * panel_bytes(C));
#pragma omp for nowait
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
            meet(&arrived);
            p = linear(p, z, x, rows, C, C, ADD);
            meet(&arrived);
            p += m->qk_norm ? 4 * 4 * D : 0;
            if (!hidden) continue; /* attention only */
            p = normalize_rows(p, x, normed, rows, C);
            meet(&arrived);
            p = linear(p, normed, neurons, rows, C, hidden, m->activation);
            meet(&arrived);
            p = linear(p, neurons, x, rows, hidden, C, ADD);
            meet(&arrived);
        }
        p = normalize_rows(p, x, normed, rows, C);
        meet(&arrived);
        linear(p, normed, logits, rows, C, m->V, STORE);
    }
    free(scratch);
    return 1;
}
