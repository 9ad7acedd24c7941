// The weights of a model from its config, as model/gpt.py makes them.

import { range, sum } from "./numbers.js";
import { Random } from "./random.js";

/** Number of weights in a tensor. */
export const countOf = ([, shape]) => shape.reduce((a, b) => a * b, 1);

/** [name, shape] of each weight, in the order of a GPT's state_dict. */
export function shapesOf(config, vocabSize, ngramRows) {
  const { n_layer: L, n_head: H, n_kv_head: G, n_embd: C, block_size: B, bias } = config;
  const D = C / H, hidden = config.mlp_ratio * C;
  const norm = (name, biased = bias, width = C) =>
    [[`${name}.weight`, [width]], ...(biased ? [[`${name}.bias`, [width]]] : [])];
  const linear = (name, rows, columns, biased = bias) =>
    [[`${name}.weight`, [rows, columns]], ...(biased ? [[`${name}.bias`, [rows]]] : [])];
  return [
    ...linear("token_embedding", vocabSize, C, false),
    ...(config.positions === "learned" ? linear("position_embedding", B, C, false) : []),
    ...range(config.ngrams - 1).flatMap((i) => linear(
      `ngram_embeddings.${i}`, Math.min(vocabSize ** (i + 2), ngramRows), C, false)),
    ...range(L).map((l) => `blocks.${l}`).flatMap((name) => [
      ...norm(`${name}.attn_norm`),
      ...linear(`${name}.attn.query`, C, C),
      ...["key", "value"].flatMap((kind) => linear(`${name}.attn.${kind}`, (G ?? H) * D, C)),
      ...linear(`${name}.attn.out`, C, C),
      ...(config.qk_norm
        ? ["q", "k"].flatMap((kind) => norm(`${name}.attn.${kind}_norm`, false, D)) : []),
      ...(hidden ? [
        ...norm(`${name}.mlp_norm`),
        ...linear(`${name}.mlp.up`, hidden, C),
        ...linear(`${name}.mlp.down`, C, hidden),
      ] : []),
    ]),
    ...norm("final_norm"),
    ...(config.tie_embeddings ? [] : linear("head", vocabSize, C, config.head_bias)),
  ];
}

/** Return weights drawn from a seed, one tensor after the other: GPT.init_weights, with other
 * random numbers. */
export function initialize(config, shapes, seed) {
  const random = new Random(seed), weights = new Float32Array(sum(shapes.map(countOf)));
  const writers = config.n_layer * (config.mlp_ratio ? 2 : 1);
  const toResidual = config.zero_init ? 0 : 0.02 / Math.sqrt(writers);
  let at = 0;
  for (const tensor of shapes) {
    const [name, shape] = tensor, count = countOf(tensor);
    const std = /attn\.out\.weight|mlp\.down\.weight/.test(name) ? toResidual
      : name.startsWith("ngram") ? 0 : name.startsWith("blocks.") ? 0.02 : 0.01;
    if (shape.length === 1) weights.fill(name.endsWith("weight") ? 1 : 0, at, at + count);
    else if (std) for (let i = at; i < at + count; i++) weights[i] = std * random.normal();
    at += count;
  }
  return weights;
}
