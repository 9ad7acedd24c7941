"""GPT on one page: from characters to samples, in the order in which it runs.

    python docs/learn/gpt.py             # train on Python's manual, in about two minutes
    python docs/learn/gpt.py novel.txt   # train on another text

This is GPT-2 (Radford et al. 2019), small, with no ready-made layer, loss or optimizer. A name ends
with the axes of its tensor: B sequences, T positions (S, if attended to), C channels, H heads of
D = C / H channels, N neurons, V distinct tokens.
"""

import math
import sys
from pathlib import Path
from pydoc_data.topics import topics  # the manual behind Python's help()

import torch
from torch import Tensor

layers, T, C, H = 4, 128, 128, 4
steps, B, warmup, peak_rate, beta1, beta2, decay = 600, 16, 100, 1e-3, 0.9, 0.99, 0.1
torch.manual_seed(1337)  # every run draws the same random numbers

# 1. TOKENS. A network computes with numbers, so each distinct character of the text gets one.
text = Path(sys.argv[1]).read_text("utf-8") if sys.argv[1:] else "\n".join(topics.values())
chars = sorted(set(text))
token_of = {char: token for token, char in enumerate(chars)}
tokens = torch.tensor([token_of[char] for char in text])
splits = tokens.tensor_split([len(tokens) * 9 // 10])  # the last tenth is held out, for a test
train, test = (split.unfold(0, T + 1, 1) for split in splits)  # all sequences of T + 1 tokens


# 2. WEIGHTS. All that the model will ever know is in these numbers, which are random at first.
def linear_weights(outputs: int, inputs: int, std: float = 0.02) -> tuple[Tensor, Tensor]:
    return torch.randn(outputs, inputs) * std, torch.zeros(outputs)


blocks = [
    {
        "attn_norm": (torch.ones(C), torch.zeros(C)),
        "attn.query": linear_weights(C, C),
        "attn.key": linear_weights(C, C),
        "attn.value": linear_weights(C, C),
        "attn.out": linear_weights(C, C, 0.02 / math.sqrt(2 * layers)),  # x sums up 2 * layers
        "mlp_norm": (torch.ones(C), torch.zeros(C)),
        "mlp.up": linear_weights(4 * C, C),
        "mlp.down": linear_weights(C, 4 * C, 0.02 / math.sqrt(2 * layers)),
    }
    for _ in range(layers)
]
final_norm = (torch.ones(C), torch.zeros(C))
token_VC, position_TC = torch.randn(len(chars), C) * 0.01, torch.randn(T, C) * 0.01
pairs = [(token_VC, position_TC), *(p for block in blocks for p in block.values()), final_norm]
weights = [weight.requires_grad_() for pair in pairs for weight in pair]


# 3. NETWORK. From the tokens so far, it computes a score for each token that may come next.
def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.T + bias  # every output is a weighted sum of all inputs


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)  # mean 0 and variance 1, however large the sum x has grown
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def gpt(tokens_BT: Tensor) -> Tensor:
    x_BTC = token_VC[tokens_BT] + position_TC[: tokens_BT.size(1)]
    for block in blocks:  # attention and MLP add to x, which keeps what earlier blocks found
        # Attention moves information between positions: to a query, from the keys that match it.
        y_BTC = norm(x_BTC, *block["attn_norm"])
        q_BHTD, k_BHSD, v_BHSD = (
            linear(y_BTC, *block[f"attn.{part}"]).unflatten(-1, (H, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        # A sum of D products spreads like sqrt(D). Undivided, one key would get all the weight.
        scores_BHTS = q_BHTD @ k_BHSD.mT / math.sqrt(C / H)
        # A later token is the answer to an earlier position, so it is hidden: exp(-inf) = 0.
        future_TS = torch.ones(scores_BHTS.shape[2:]).triu(1).bool()
        weights_BHTS = scores_BHTS.masked_fill(future_TS, -math.inf).softmax(-1)
        z_BHTD = weights_BHTS @ v_BHSD  # in each head, the mean of the values with these weights
        x_BTC = x_BTC + linear(z_BHTD.transpose(1, 2).flatten(2), *block["attn.out"])
        # The MLP computes at each position separately: N patterns, and what each of them implies.
        h_BTN = linear(norm(x_BTC, *block["mlp_norm"]), *block["mlp.up"])
        h_BTN = h_BTN * (1 + torch.erf(h_BTN / math.sqrt(2))) / 2  # GELU: near 0 without a match
        x_BTC = x_BTC + linear(h_BTN, *block["mlp.down"])
    return norm(x_BTC, *final_norm) @ token_VC.T  # (B, T, V): high for tokens that x resembles


# 4. LOSS. How improbable was each next token? A guess costs ln V, certainty (if right) nothing.
def loss_of(sequences_BT: Tensor) -> Tensor:
    log_p_BTV = gpt(sequences_BT[:, :-1]).log_softmax(-1)
    return -log_p_BTV.gather(-1, sequences_BT[:, 1:, None]).mean()


# 5. TRAINING. Change every weight a little, in the direction that lowers the loss, and repeat.
means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
for step in range(1, steps + 1):
    loss = loss_of(train[torch.randint(len(train), (B,))])
    gradients = torch.autograd.grad(loss, weights)  # by the chain rule, from the loss backward
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    cosine = math.cos(math.pi * max(0, step - 1 - warmup) / (steps - warmup))
    rate = peak_rate * min(1, step / warmup) * (1 + cosine) / 2  # rises, then falls to zero
    with torch.no_grad():
        for weight, gradient, mean, square in zip(weights, gradients, means, squares, strict=True):
            gradient = gradient / length.clamp(min=1)  # one odd batch must not undo the others
            mean.lerp_(gradient, 1 - beta1)  # AdamW: running means, which began at zero ...
            square.lerp_(gradient.square(), 1 - beta2)
            m, s = mean / (1 - beta1**step), square / (1 - beta2**step)  # ... as if they had not
            weight *= 1 - rate * decay * (weight.dim() == 2)
            weight -= rate * m / (s.sqrt() + 1e-8)  # about `rate`, whatever the gradient's size
        if step % 100 == 0:
            print(f"step {step}  loss {loss:.3f}  held out {loss_of(test[:: len(test) // 99]):.3f}")

# 6. SAMPLES. The model continues its own output: each time, a token drawn from its prediction.
sample_T = test[0, :1]
with torch.no_grad():
    for _ in range(500):
        p_V = (gpt(sample_T[None, -T:])[0, -1] / 0.8).softmax(-1)  # 0.8: fewer improbable tokens
        sample_T = torch.cat((sample_T, p_V.multinomial(1)))
print("".join(chars[token] for token in sample_T))
