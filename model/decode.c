/* One block of the model (model/gpt.py, Block) for one new position of each row, in float32.

Called by `CompiledBlock` in model/decode.py. Letters as in model/attention.py. */

#include <math.h>

enum activation { STORE, ADD, RELU2, GELU, GELU_TANH, SWIGLU };

typedef struct { const float *weight, *bias; } Affine; /* NULL where there is none */

typedef struct {
    int C, H, hidden, positions, rms, qk_norm, activation;
    Affine attn_norm, qkv, out, mlp_norm, gate, up, down;
    const float *cos, *sin; /* (2, positions, D), of queries and of keys; NULL: no rotation */
} Block;

enum { LANES = 16 };
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static float sum(Vector v) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

static float finish(enum activation how, float new, float old) {
    switch (how) {
    case ADD: return old + new;
    case RELU2: return new > 0 ? new * new : 0;
    case GELU: return 0.5f * new * (1 + erff(new * 0.70710678f));
    case GELU_TANH: return 0.5f * new * (1 + tanhf(0.79788456f * (new + 0.044715f * new * new * new)));
    case SWIGLU: return old / (1 + expf(-old)) * new;
    default: return new;
    }
}

/* y = finish(x W^T + b, y) for each row: four outputs at a time, so that sums do not wait for each
other, and their weights are read once for all rows. */
static void linear(Affine a, const float *x, float *y, int B, int in, int out, enum activation how) {
#pragma omp for
    for (int i = 0; i < out; i += 4) {
        const float *w[4];
        for (int k = 0; k < 4; k++) /* past the end, the last output once more */
            w[k] = a.weight + (long)(i + k < out ? i + k : out - 1) * in;
        for (int b = 0; b < B; b++) {
            const float *row = x + (long)b * in;
            Vector s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
            int j = 0;
            for (; j + LANES <= in; j += LANES) {
                Vector r = *(Vector *)(row + j);
                s0 += *(Vector *)(w[0] + j) * r;
                s1 += *(Vector *)(w[1] + j) * r;
                s2 += *(Vector *)(w[2] + j) * r;
                s3 += *(Vector *)(w[3] + j) * r;
            }
            float sums[4] = {sum(s0), sum(s1), sum(s2), sum(s3)};
            for (; j < in; j++)
                for (int k = 0; k < 4; k++) sums[k] += w[k][j] * row[j];
            for (int k = 0; k < 4 && i + k < out; k++) {
                float *to = y + (long)b * out + i + k;
                *to = finish(how, sums[k] + (a.bias ? a.bias[i + k] : 0), *to);
            }
        }
    }
}

/* LayerNorm, or RMSNorm, of n numbers. */
static void normalize(Affine a, const float *x, float *y, int n, int rms) {
    float mean = 0, square = 0;
    if (!rms) {
#pragma omp simd reduction(+ : mean)
        for (int i = 0; i < n; i++) mean += x[i];
        mean /= n;
    }
#pragma omp simd reduction(+ : square)
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    float scale = 1 / sqrtf(square / n + 1e-5f);
    for (int i = 0; i < n; i++)
        y[i] = (x[i] - mean) * scale * (a.weight ? a.weight[i] : 1) + (a.bias ? a.bias[i] : 0);
}

/* One head at position `at`: q and k normalized and rotated, k and v kept, q replaced by what it
attends to. */
static void head(const Block *p, float *restrict q, float *k, const float *v, float *keys,
                 float *values, float *weights, int at) {
    int D = p->C / p->H;
    for (int i = 0; i < 2; i++) {
        float *x = i ? k : q;
        if (p->qk_norm) normalize((Affine){0}, x, x, D, 0);
        if (p->cos) {
            const float *cos = p->cos + ((long)i * p->positions + at) * D;
            const float *sin = p->sin + ((long)i * p->positions + at) * D;
            for (int d = 0; d < D / 2; d++) {
                int e = d + D / 2;
                float low = x[d], high = x[e];
                x[d] = low * cos[d] + high * sin[d];
                x[e] = high * cos[e] + low * sin[e];
            }
            if (D % 2) x[D - 1] *= cos[D - 1]; /* has no other half: not rotated, but scaled */
        }
    }
    for (int d = 0; d < D; d++) keys[at * D + d] = k[d], values[at * D + d] = v[d];

    float largest = -INFINITY, total = 0;
    for (int s = 0; s <= at; s++) {
        float score = 0;
#pragma omp simd reduction(+ : score)
        for (int d = 0; d < D; d++) score += q[d] * keys[s * D + d];
        weights[s] = score / sqrtf(D);
        largest = fmaxf(largest, weights[s]);
    }
    for (int s = 0; s <= at; s++) total += weights[s] = expf(weights[s] - largest);
    for (int d = 0; d < D; d++) q[d] = 0;
    for (int s = 0; s <= at; s++) {
        float weight = weights[s] / total;
#pragma omp simd
        for (int d = 0; d < D; d++) q[d] += weight * values[s * D + d];
    }
}

/* x (B, C) through the block. keys, values: (B, H, positions, D), filled up to `at`. scratch: as
many numbers as `CompiledBlock` says. */
void block(const Block *p, float *x, float *keys, float *values, float *scratch, int B, int at) {
    int C = p->C, H = p->H, D = C / H;
    float *normed = scratch, *qkv = normed + B * C, *hidden = qkv + 3 * B * C;
    float *z = hidden + B * p->hidden, *weights = z + B * C;
#pragma omp parallel
    {
#pragma omp for
        for (int b = 0; b < B; b++) normalize(p->attn_norm, x + b * C, normed + b * C, C, p->rms);
        linear(p->qkv, normed, qkv, B, C, 3 * C, STORE);
#pragma omp for
        for (int i = 0; i < B * H; i++) {
            long to = (long)i * p->positions;
            float *q = qkv + i / H * 3 * C + i % H * D;
            head(p, q, q + C, q + 2 * C, keys + to * D, values + to * D, weights + to, at);
            for (int d = 0; d < D; d++) z[i * D + d] = q[d];
        }
        linear(p->out, z, x, B, C, C, ADD);
#pragma omp for
        for (int b = 0; b < B; b++) normalize(p->mlp_norm, x + b * C, normed + b * C, C, p->rms);
        if (p->activation == SWIGLU) linear(p->gate, normed, hidden, B, C, p->hidden, STORE);
        linear(p->up, normed, hidden, B, C, p->hidden, p->activation);
        linear(p->down, hidden, x, B, p->hidden, C, ADD);
    }
}
