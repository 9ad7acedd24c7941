// What the page's terms mean, and its keys.

const GLOSSARY = {
  token: "what the model reads and writes one at a time: a character, a byte or a subword",
  head:
    "a part of a layer that, at each token, attends to earlier tokens and copies something from " +
    "them; each head learns where to attend",
  query: "the vector of the token that attends; it is compared with the keys of all earlier tokens",
  key: "the vector of a token that is attended to; a large q·k means a large weight",
  weight: "the share of a query's attention that a key gets; the weights of a row sum to 1",
  "residual stream":
    "the vector that runs through all layers at a token's place; every head and MLP adds to it",
  MLP: "the other half of a layer, which works on each token alone",
  logit: "the score of a next token, before the softmax turns all scores into probabilities",
  nat: "the unit of surprisal: −ln of a probability; 0.69 nats are one bit",
  surprisal: "how unlikely a token was to the model, in nats",
  loss: "the mean surprisal of a text",
  "validation sequences": "texts, as long as the context, that the model was not trained on",
  "logit lens":
    "reading the residual stream of an earlier layer as if it were the last (nostalgebraist 2020)",
  ablation:
    "replacing the output of a part by zeros, or by its mean over the validation sequences, to see " +
    "whether the model needs it",
  patching:
    "activation patching: putting what the model computed for one text into its pass over " +
    "another, to find where a difference travels",
  induction: "attending to the token after the previous occurrence of the current token",
  temperature:
    "divides the logits before a token is sampled: below 1 favors likely tokens, 0 takes the most " +
    "likely",
  "top-k": "sample from the k most likely tokens only",
};

const KEY_NAMES = [
  ["← → ↑ ↓", "select another head; in the text, a map or a table, another token"],
  ["t, Esc", "type in the text, leave it"],
  ["Ctrl-Z", "undo typing, also of what the model wrote"],
  ["[ ]", "earlier, later in training"],
  ["p", "play the training"],
  ["x", "ablate the selected head"],
  ["h", "hide the selected token from later ones"],
  ["u", "undo all edits"],
  ["r", "reset: last step, no edits"],
  ["s", "scores, mask, softmax"],
  ["Enter", "keep a token selected; Esc selects none"],
  ["?", "this list"],
];
