// What the page's terms mean, and its tour.

const GLOSSARY = {
  token:
    "what the model reads and writes one at a time: here a character or a byte",
  head:
    "a small part of a layer that, from each token, looks back at earlier ones and copies " +
    "something from where it looks; each head learns where to look",
  query:
    "the vector with which a token asks: it is compared with the keys of all earlier tokens",
  key:
    "the vector by which a token is found; a large product of query and key means a large " +
    "weight",
  weight:
    "how much of its look a query spends on a key; each row sums to 1",
  "residual stream":
    "the vector that runs through all layers at a token's place; every head and MLP adds to it",
  MLP:
    "the other half of a layer: it works on each token alone",
  logit:
    "the model's score for a next token, before the softmax makes probabilities of all scores",
  nat:
    "the unit of surprise: −ln of the probability that something had; 0.69 nats is one bit",
  surprisal:
    "how unlikely the model thought what came, in nats",
  loss:
    "the mean surprisal of a text",
  "validation windows":
    "pieces of text, as long as the context, that the model was not trained on",
  "logit lens":
    "reading the residual stream of an earlier layer as if it were the last (nostalgebraist " +
    "2020)",
  ablation:
    "switching a part off to see whether it was needed: its output is set to zero, or to its " +
    "mean, which takes away only what it says and not what it always adds",
  patching:
    "activation patching: putting what the model computed for one text into its pass over " +
    "another, to find where a difference travels",
  induction:
    "looking for the last place where the current token stood, at what came after it",
  temperature:
    "divides the logits before a token is drawn: below 1 likely ones become likelier, 0 takes " +
    "the likeliest",
  "top-k":
    "draw from the k likeliest tokens only",
};

const TOUR = [
  [
    "text-section",
    "Type here. The colour of a character is how much it surprised the model, and below stands " +
    "what it expects next. What is before the caret never changes: no position sees the future.",
  ],
  [
    "heads-section",
    "Each square is an attention head: a row for each token that looks, a column for each it " +
    "looks at. Darker (in the dark, brighter) is more. Its switch takes the head out of the " +
    "model.",
  ],
  [
    "head-section",
    "The selected head, large. Point at a cell to read it; the table works the softmax out in " +
    "numbers.",
  ],
  [
    "bar",
    "The weights of the model while it was trained. Drag, and watch the heads form under your " +
    "own text.",
  ],
  [
    "patch-section",
    "Two texts that differ in a character: put the inside of one into the other, and find the " +
    "place through which the difference travels.",
  ],
];
