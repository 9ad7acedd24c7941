// What the page's terms mean.

const GLOSSARY = {
  token: "what the model reads and writes one at a time: a character, a byte or a subword",
  head: "a part of a layer that, at each token, attends to earlier tokens and copies from them",
  query: "the vector of the token that attends; it is compared with the keys of all tokens so far",
  key: "the vector of a token that is attended to; a large q·k means a large weight",
  "residual stream": "the vector at a token's position that every head and MLP adds to",
  logit: "the number for a possible next token that the softmax turns into its probability",
  nat: "the unit of surprisal: −ln of a probability; 0.69 nats are one bit",
  surprisal: "how unlikely a token was to the model, in nats",
  loss: "the mean surprisal of a text",
  "validation sequences": "texts, as long as the context, that the model was not trained on",
  "logit lens": "the output layer applied to an earlier residual stream (nostalgebraist 2020)",
  patching: "replacing an activation with the activation from another text",
  induction: "attending to the token after the previous occurrence of the current token",
  "below unigram": "the loss is below that of predicting each token by its frequency",
  "below bigram": "the loss is below that of predicting each token from the one before it",
  "previous-token head": "the head with the highest final score reaches half of it",
  "induction head": "the head with the highest final score reaches half of it",
  temperature: "divides the logits: below 1 favors likely tokens, 0 selects the most likely one",
  "top-k": "sample only from the k most likely tokens",
};
